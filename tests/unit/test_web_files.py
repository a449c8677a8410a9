"""The files of the page: small enough to load and to read, and the vendored ones as they were published."""

import re
import subprocess
import sys
from pathlib import Path

from accsd.gateway.routes.page import _files, modules_of

ROOT = Path(__file__).parents[2]
WEB = ROOT / "accsd" / "web"
SCRIPT_BUDGET = 90_000  # bytes
MOST_LINES = 300


def test_what_is_vendored_is_what_the_manifests_say():
    asked = [sys.executable, str(ROOT / "tools" / "vendor_web.py"), "--check"]
    checked = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_each_page_needs_at_most_90_kilobytes_of_scripts():
    """As they are sent: the frame, and what the page itself brings when it is first opened."""
    frame = modules_of("app/main.js")
    pages = re.findall(r'import\("\./(pages/\w+\.js)"\)', (WEB / "app" / "main.js").read_text(encoding="utf-8"))
    assert len(pages) > 20
    for page in pages:
        needed = frame | modules_of(f"app/{page}")
        assert sum(len(_files()[name].packed) for name in needed) <= SCRIPT_BUDGET, page


def test_no_file_of_the_page_is_longer_than_300_lines():
    written = [file for file in WEB.rglob("*") if file.suffix in (".js", ".css") and file.parent.name != "vendor"]
    lines = {file.relative_to(WEB): len(file.read_text(encoding="utf-8").splitlines()) for file in written}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_every_module_of_the_page_exists_that_another_one_imports():
    for file in WEB.rglob("*.js"):
        for wanted in re.findall(r'(?:from |import |import\()"(\.[^"]+)"', file.read_text(encoding="utf-8")):
            assert (file.parent / wanted).is_file(), f"{file.relative_to(WEB)} imports {wanted}"
