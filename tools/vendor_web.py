"""Brings the page's libraries into accsd/web/vendor: exact versions, their hashes checked, their imports made relative.

    python tools/vendor_web.py            needs npm, and replaces what stands there

Each package is fetched by `npm pack`, so whatever registry npm is told to use. What is committed is what is served:
there is no build step. accsd/web/vendor/MANIFEST says what each file is, and a test compares.
"""

import base64
import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

VENDOR: Final = Path(__file__).resolve().parents[1] / "accsd" / "web" / "vendor"
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
)


def main() -> None:
    VENDOR.mkdir(parents=True, exist_ok=True)
    for old in VENDOR.iterdir():
        old.unlink()
    lines: list[str] = []
    for package in PACKAGES:
        for stored, content in _files_of(package):
            (VENDOR / stored).write_bytes(content)
            digest = hashlib.sha256(content).hexdigest()
            lines.append(f"{digest}  {stored}  {package.name} {package.version}  {package.licence}\n")
    (VENDOR / "MANIFEST").write_text("".join(sorted(lines, key=lambda line: line.split()[1])), encoding="utf-8")


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
