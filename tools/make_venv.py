"""Makes .venv with pip in it, for `make install` on a machine without uv.

Debian splits ensurepip off into python3-venv, so `python3 -m venv` fails where only python3 is. Then
pip itself comes from PyPI, one pinned and verified file.
"""

import hashlib
import subprocess
import sys
import tempfile
import urllib.request
import venv
from pathlib import Path

PIP_URL = (
    "https://files.pythonhosted.org/packages/62/36/"
    "a3aed958d60531cb442b7ab4596cda7b3621cfb916f8ae1d6769795c7dc1/pip-26.2-py3-none-any.whl"
)
PIP_SHA256 = "931c303696af6fa3417112103b1cad26890e5a07eccb5b99783700e33f2b8aad"


def main(target: Path) -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - run by whatever python3 there is
        sys.exit("accsd needs Python 3.11 or newer: make install PYTHON=python3.x")
    if (target / "bin/pip").exists():
        return  # what is new in the lock is installed into it
    if has_ensurepip():
        venv.create(target, with_pip=True, clear=True)  # one without pip was made by uv
        return
    venv.create(target, with_pip=False, clear=True)
    with tempfile.TemporaryDirectory() as folder:
        wheel = download_pip(Path(folder))
        # A wheel is a zip file that Python can run from: pip installs itself.
        subprocess.run([target / "bin/python", wheel / "pip", "install", "--quiet", "--no-index", wheel], check=True)


def has_ensurepip() -> bool:
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        return False
    return True


def download_pip(folder: Path) -> Path:
    with urllib.request.urlopen(PIP_URL, timeout=60) as answer:
        content: bytes = answer.read()
    if hashlib.sha256(content).hexdigest() != PIP_SHA256:
        sys.exit(f"{PIP_URL} is not the file that it should be")
    wheel = folder / PIP_URL.rpartition("/")[2]
    wheel.write_bytes(content)
    return wheel


main(Path(sys.argv[1]))
