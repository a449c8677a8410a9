"""What this machine gives to keep a program in: tried, not guessed; and why untrusted code may not run where it gives
too little."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from box import Box
from keeper import Ground, Limits
from languages import PATH

_TRIAL = Limits(cpu_ms=2000, wall_ms=5000, memory_kb=256 * 1024, file_bytes=0, processes=8, tmp_bytes=1 << 20)
TRUST = "JUDGE_TRUSTS_CODE"  # in the environment of the judge: "yes"


def ground_of_this_machine() -> Ground:
    """The best of what works here."""
    is_root = os.geteuid() == 0
    candidates = [
        Ground(namespaces=True, user_namespace=not is_root, own_user=is_root),
        Ground(namespaces=False, user_namespace=False, own_user=is_root),
        Ground(namespaces=False, user_namespace=False, own_user=False),
    ]
    return next(each for each in candidates if each == candidates[-1] or why_it_fails(each) is None)


def why_it_fails(ground: Ground):
    """Runs a program that does nothing; None: it ran."""
    folder = Path(tempfile.mkdtemp(prefix="judge-trial-"))
    try:
        ran = Box(folder, ground).run(("true",), _TRIAL, path=PATH)
        return None if ran.status == 0 else f"a program that does nothing ended with {ran.status}"
    except OSError as error:
        return str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def why_unsafe(ground: Ground):
    """Why code of strangers may not run here; None: it may."""
    if os.environ.get(TRUST) == "yes":
        return None
    advice = f"run the judge as root, in a container without network, or set {TRUST}=yes if all code is trusted"
    if not ground.namespaces and (routes := _routes()):
        return f"the network can't be denied to programs here ({', '.join(routes)} is there): {advice}"
    if not ground.namespaces and not ground.own_user:
        return f"the files of this user can't be denied to programs here: {advice}"
    return None


def _routes() -> list:
    """The interfaces, but for the loopback, by which something can be reached."""
    found = set()
    for name, column in (("route", 0), ("ipv6_route", -1)):
        try:
            lines = Path("/proc/net", name).read_text().splitlines()[1 if name == "route" else 0 :]
        except OSError:
            return ["an unknown interface"]
        found |= {line.split()[column] for line in lines if line.strip()}
    return sorted(found - {"lo"})


def described(ground: Ground) -> str:
    if ground.namespaces:
        return f"namespaces of its own{' (made as a user)' if ground.user_namespace else ', a user of its own'}"
    return "a user of its own, no network" if ground.own_user else "limits only: the code is trusted"


if __name__ == "__main__":  # the probe of the service: whether this machine can judge
    here = ground_of_this_machine()
    problem = why_unsafe(here) or (why_it_fails(here) if not here.namespaces else None)
    (sys.stderr if problem else sys.stdout).write(f"{problem or described(here)}\n")
    sys.exit(1 if problem else 0)
