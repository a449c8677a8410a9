"""The reference is generated: it says what the code says."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _tool():
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "tools" / "make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["settings.md", "commands.md"])
def test_the_reference_is_what_the_code_says(page: str):
    written = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    assert written == _tool().PAGES[page](), "run `make reference`"


def test_the_roles_of_the_daemon_are_those_of_its_tables():
    page = (ROOT / "docs" / "daemon.md").read_text(encoding="utf-8")
    assert page == _tool().daemon_page(), "run `make reference`"
    assert page.count("<!-- roles: ") == 2
