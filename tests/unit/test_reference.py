"""The reference is generated: it says what the code says."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _tool():
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "tools" / "make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_and_the_tables_of_other_pages_are_what_the_code_says():
    tool = _tool()
    written = {
        str(path.relative_to(ROOT / "docs")): (path.read_text(encoding="utf-8"), text) for path, text in tool.pages()
    }
    assert set(written) == {
        *("reference/settings.md", "reference/commands.md", "reference/openapi.json"),
        *(f"reference/openapi-{door}.json" for door in tool.DOORS),
        *("daemon.md", "protocol.md"),
    }
    for page, (there, wanted) in written.items():
        assert there == wanted, f"{page}: run `make reference`"
    marked = "".join(there for there, _ in written.values())
    assert [name for name in tool.TABLES if f"<!-- generated: {name} -->\n" not in marked] == []
