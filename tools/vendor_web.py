"""Brings the page's libraries into accsd/web/vendor: exact versions, their hashes checked, their imports made relative.

    python tools/vendor_web.py             needs npm, and replaces what stands there
    python tools/vendor_web.py --check     is everything as its manifest says? Needs no network
    python tools/vendor_web.py --compare   and as the packages have it? Needs npm

Each package is fetched by `npm pack`, so whatever registry npm is told to use. What is committed is what is served:
there is no build step. What only the tests need goes to tests/browser/vendor. A new version: its number and the
`dist.integrity` that `npm view NAME@VERSION` shows, below.
"""

import argparse
import base64
import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_ROOT: Final = Path(__file__).resolve().parents[1]
VENDOR: Final = _ROOT / "accsd" / "web" / "vendor"
TESTS: Final = _ROOT / "tests" / "browser" / "vendor"
FOLDERS: Final = (VENDOR, TESTS)
# Bare names that a browser can't look up, and the file of each.
_IMPORTS: Final = {
    "preact": "./preact.js",
    "preact/hooks": "./hooks.js",
    "@preact/signals-core": "./signals-core.js",
    "htm": "./htm.js",
}


class Package(NamedTuple):
    name: str
    version: str
    integrity: str  # of the archive
    licence: str
    files: dict[str, str]  # of the archive: as what it is stored
    folder: Path = VENDOR


PACKAGES: Final = (
    Package(
        "preact",
        "11.2.0",
        "sha512-/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
        "MIT",
        {"dist/preact.mjs": "preact.js", "hooks/dist/hooks.mjs": "hooks.js", "LICENSE": "LICENSE.preact"},
    ),
    Package(
        "@preact/signals",
        "2.11.4",
        "sha512-Rb+5RPo9gWSaHtzJeauhHxiC8KP/IF2DEPkHPEOGOnuy2wnJzRqyeLRankUCYd6ADqtxS6GnWGv6Ie343d8aYw==",
        "MIT",
        {"dist/signals.mjs": "signals.js", "LICENSE": "LICENSE.signals"},
    ),
    Package(
        "@preact/signals-core",
        "1.14.5",
        "sha512-vcRv7Ityz5JVmeiVqIluLFzT/PDS/AlhHUpw3/aUWqcVUs6bDGIPXE/6RSC4evBNWYvnniozg5Syfj33al3gkg==",
        "MIT",
        {"dist/signals-core.mjs": "signals-core.js", "LICENSE": "LICENSE.signals-core"},
    ),
    Package(
        "htm",
        "3.1.1",
        "sha512-983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
        "Apache-2.0",
        {"dist/htm.mjs": "htm.js", "LICENSE": "LICENSE.htm"},
    ),
    Package(
        "axe-core",
        "4.14.0",
        "sha512-9WTZxEjsZ7b13TH8JPmbV2z8CHbl80/2hm3XPEG4JgNdQLK81IBRXmSxHfMAOkSqQeRxT/0dwNDz2GOm3zzpcQ==",
        "MPL-2.0",
        {"axe.min.js": "axe.js", "LICENSE": "LICENSE.axe"},
        TESTS,
    ),
)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--check", action="store_true", help="only compare what is here with its manifest, offline")
    asked.add_argument("--compare", action="store_true", help="only compare what is here with the packages")
    chosen = asked.parse_args()
    if chosen.check or chosen.compare:
        found = problems() + (differences() if chosen.compare else [])
        sys.exit("\n".join(found) or None)
    for folder in FOLDERS:
        _bring(folder)


def problems() -> list[str]:
    """What is not as its manifest says, or not as this file says. Needs no network."""
    return [problem for folder in FOLDERS for problem in _problems(folder)]


def _problems(folder: Path) -> Iterator[str]:
    listed = [line.split() for line in (folder / "MANIFEST").read_text(encoding="utf-8").splitlines()]
    expected = {
        (stored, package.name, package.version, package.licence)
        for package in PACKAGES
        if package.folder == folder
        for stored in package.files.values()
    }
    if {tuple(rest) for _, *rest in listed} != expected:
        yield f"{folder}/MANIFEST lists other files, versions or licences than tools/vendor_web.py: run it"
    if strangers := {file.name for file in folder.iterdir()} - {name for _, name, *_ in listed} - {"MANIFEST"}:
        yield f"{folder} has files that its MANIFEST does not list: {', '.join(sorted(strangers))}"
    for digest, name, *_ in listed:
        if not (folder / name).is_file() or _digest((folder / name).read_bytes()) != digest:
            yield f"{folder / name} is not what its MANIFEST says"


def differences() -> list[str]:
    """What is not as the packages have it."""
    return [
        f"{package.folder / stored} is not what {package.name} {package.version} has"
        for package in PACKAGES
        for stored, content in _files_of(package)
        if (package.folder / stored).read_bytes() != content
    ]


def _bring(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    lines: list[str] = []
    for package in (package for package in PACKAGES if package.folder == folder):
        for stored, content in _files_of(package):
            (folder / stored).write_bytes(content)
            lines.append(f"{_digest(content)}  {stored}  {package.name} {package.version}  {package.licence}\n")
    (folder / "MANIFEST").write_text("".join(sorted(lines, key=lambda line: line.split()[1])), encoding="utf-8")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _files_of(package: Package) -> list[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["npm", "pack", "--silent", f"{package.name}@{package.version}"],
            cwd=folder, check=True, capture_output=True,
        )  # fmt: skip
        [archive] = Path(folder).glob("*.tgz")
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if f"sha512-{digest}" != package.integrity:
            sys.exit(f"{package.name} {package.version} is another one: sha512-{digest}")
        with tarfile.open(archive) as opened:
            found = {name: opened.extractfile(f"package/{name}") for name in package.files}
            return [(package.files[name], _relative(name, file.read())) for name, file in found.items() if file]


def _relative(name: str, content: bytes) -> bytes:
    if not name.endswith(".mjs"):
        return content
    text = re.sub(r"//# sourceMappingURL=.*\n?", "", content.decode())
    for bare, file in _IMPORTS.items():
        text = re.sub(rf'(from|import)(\s*)"{re.escape(bare)}"', rf'\1\2"{file}"', text)
        text = re.sub(rf"(from|import)(\s*)'{re.escape(bare)}'", rf'\1\2"{file}"', text)
    return text.encode()


if __name__ == "__main__":
    main()
