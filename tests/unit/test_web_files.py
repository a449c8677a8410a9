"""The files of the page: small enough to load and to read, and the vendored ones as they were published."""

import re
import subprocess
import sys
from pathlib import Path

from accsd.gateway.routes.page import _files

ROOT = Path(__file__).parents[2]
WEB = ROOT / "accsd" / "web"
SCRIPT_BUDGET = 90_000  # bytes of all scripts together, as they are sent
MOST_LINES = 300


def test_what_is_vendored_is_what_the_manifests_say():
    asked = [sys.executable, str(ROOT / "tools" / "vendor_web.py"), "--check"]
    checked = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_all_scripts_of_the_page_are_sent_in_90_kilobytes():
    packed = {name: len(file.packed) for name, file in _files().items() if name.endswith(".js")}
    assert sum(packed.values()) <= SCRIPT_BUDGET, sorted(packed.items(), key=lambda each: -each[1])


def test_no_file_of_the_page_is_longer_than_300_lines():
    written = [file for file in WEB.rglob("*") if file.suffix in (".js", ".css") and file.parent.name != "vendor"]
    lines = {file.relative_to(WEB): len(file.read_text(encoding="utf-8").splitlines()) for file in written}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_every_module_of_the_page_exists_that_another_one_imports():
    for file in WEB.rglob("*.js"):
        for wanted in re.findall(r'(?:from|import)\s*"(\.[^"]+)"', file.read_text(encoding="utf-8")):
            assert (file.parent / wanted).is_file(), f"{file.relative_to(WEB)} imports {wanted}"
