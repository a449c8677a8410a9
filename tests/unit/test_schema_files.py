"""schema.sql is what the files in schema/ make."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _tool():
    spec = importlib.util.spec_from_file_location("make_schema", ROOT / "tools" / "make_schema.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_schema_is_assembled_from_its_files():
    assert (ROOT / "schema.sql").read_bytes() == _tool().assembled().encode(), "run `make schema`"


def test_every_file_has_its_place():
    assert sorted(_tool().order()) == sorted(file.stem for file in (ROOT / "schema").iterdir())


def test_the_map_names_every_table_and_view():
    schema = (ROOT / "schema.sql").read_text(encoding="utf-8")
    made = set(re.findall(r"^CREATE (?:TABLE|VIEW) (accs\.\w+)", schema, re.MULTILINE))
    head = schema.partition("CREATE SCHEMA accs;")[0]
    assert made
    assert made - set(re.findall(r"accs\.\w+", head)) == set()


def test_no_line_is_longer_than_140_columns():
    for file in (*(ROOT / "schema").iterdir(), ROOT / "accsd" / "db" / "roles.sql"):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            assert len(line) <= 140, f"{file.name}:{number}"
            assert line == line.rstrip(), f"{file.name}:{number}"


def test_every_verb_is_declared_beside_its_function():
    for file in (ROOT / "schema").iterdir():
        made = ""
        for line in file.read_text(encoding="utf-8").splitlines():
            if function := re.match(r"CREATE FUNCTION accs\.(\w+)", line):
                made = function[1]
            elif declared := re.match(r"SELECT accs\.is_verb\('(\w+)'", line):
                assert declared[1] == made, file.name


def test_every_verb_is_documented():
    verbs = re.findall(r"is_verb\('(\w+)'", (ROOT / "schema.sql").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "sql-verbs.md").read_text(encoding="utf-8")
    assert [verb for verb in verbs if f"`{verb}(" not in page] == []
