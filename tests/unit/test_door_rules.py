"""The pages of docs/doors say which test shows each rule of a door. Their tables are read here: no rule is left out,
each test is there, and says itself which rule it shows."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
DOORS = ("joblib", "seqpulse", "judge", "ordinaut", "mcp")

_RULE = r"(?:JB|SP|OJ|G|HT|AG|MC)-?\d+"
_RULES = re.compile(rf"\b({_RULE})(?:\s*(?:…|to)\s*({_RULE}))?")
_TESTS = re.compile(r"`([\w/]*\btest_\w+)(?:\.py)?`(?:: ([^;`]*))?")
_PART_OF_A_NAME = re.compile(r"[a-z0-9_]+")
_FOLDERS = ("tests/doors/{page}/", "tests/doors/", "tests/unit/", "tests/db/", "")


class Row(NamedTuple):
    page: str
    head: str
    rules: frozenset[str]
    tests: str


class Shown(NamedTuple):
    name: str
    rules: frozenset[str]  # that it, or the docstring of its module, names


def rules_in(text: str) -> frozenset[str]:
    found: set[str] = set()
    for first, last in _RULES.findall(text):
        kind = first.rstrip("0123456789")
        begins, ends = (int(each.removeprefix(kind)) for each in (first, last or first))
        found |= {f"{kind}{n}" for n in range(begins, ends + 1)}
    return frozenset(found)


def rows_of(page: str) -> list[Row]:
    _, heading, below = (ROOT / f"docs/doors/{page}.md").read_text(encoding="utf-8").partition("\n## Rules")
    assert heading, f"{page}.md has no heading on rules"
    tables = [line.strip("|").split("|") for line in below.splitlines() if line.startswith("| ")]
    return [Row(page, cells[0].strip(), rules_in(" ".join(cells[:2])), cells[-1]) for cells in tables]


@cache
def shown_by(file: Path) -> list[Shown]:
    text = file.read_text(encoding="utf-8")
    module = ast.parse(text)
    of_all = rules_in(ast.get_docstring(module) or "")
    functions = [each for each in module.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [
        Shown(each.name, of_all | rules_in(ast.get_source_segment(text, each) or ""))
        for each in functions
        if each.name.startswith("test_")
    ]


def shown_of(row: Row) -> list[Shown]:
    """Whole files, or those of their tests that have a part of their names after them."""
    found: list[Shown] = []
    for name, said in _TESTS.findall(row.tests):
        folders = [ROOT / folder.format(page=row.page) for folder in _FOLDERS]
        file = next((folder / f"{name}.py" for folder in folders if (folder / f"{name}.py").exists()), None)
        assert file is not None, f"{row.page}.md: there is no {name}"
        parts = [part for each in said.split(",") if _PART_OF_A_NAME.fullmatch(part := each.strip(" .…"))]
        for part in parts:
            assert any(part in test.name for test in shown_by(file)), f"{row.page}.md: no …{part}… in {name}"
        found += [test for test in shown_by(file) if not parts or any(part in test.name for part in parts)]
    return found


def rules_on(page: str) -> frozenset[str]:
    """Those that have a test."""
    return frozenset[str]().union(*(row.rules for row in rows_of(page) if shown_of(row)))


@pytest.mark.parametrize("page", DOORS)
def test_no_rule_of_a_door_is_left_out(page: str):
    (listed,) = (row.rules for row in rows_of("README") if row.head == f"[{page}]({page}.md#rules-and-their-tests)")
    assert {rule for rule in rules_on(page) if not rule.startswith("G-")} == listed


def test_what_holds_for_all_doors_is_shown_once_for_all_or_by_each():
    by_each = frozenset[str].intersection(*(rules_on(page) for page in DOORS))
    assert rules_in("G-1 … G-11") - rules_on("README") <= by_each


@pytest.mark.parametrize("page", ["README", *DOORS])
def test_each_rule_has_a_test_that_names_it(page: str):
    for row in rows_of(page):
        if tests := shown_of(row):
            named = frozenset[str]().union(*(test.rules for test in tests))
            assert row.rules <= named, f"{page}.md: {sorted(row.rules - named)} is named by none of:{row.tests}"
