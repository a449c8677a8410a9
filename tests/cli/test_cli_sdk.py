"""`accsd sdk vendor`: what a service carries into an image that has no accsd."""

import ast
import os
import sys
from pathlib import Path

import pytest

from accsd.sdk import serving, wire
from tests.support.cli import Cli

SERVING = Path(serving.__file__).parent
NAMES = ["accsd_wire.py", *(f"accsd_serving/{file.name}" for file in sorted(SERVING.glob("*.py")))]
WIRE, PACKAGE = Path(wire.__file__).read_text(), Path(serving.__file__).read_text()


def written(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


async def test_the_copies_are_what_the_library_has(tmp_path: Path):
    folder = tmp_path / "studio" / "services"
    ended = (await Cli(None)("sdk", "vendor", str(folder))).ends(0)
    assert ended.out.splitlines() == [f"wrote {folder / name}" for name in NAMES]
    found = written(folder)
    assert sorted(found) == sorted(NAMES)
    assert found["accsd_wire.py"] == WIRE
    assert found["accsd_serving/__init__.py"] == PACKAGE


async def test_the_copies_need_only_the_standard_library_of_python_3_9(tmp_path: Path):
    (await Cli(None)("sdk", "vendor", str(tmp_path))).ends(0)
    for name, text in written(tmp_path).items():
        tree = ast.parse(text, name, feature_version=(3, 9))
        plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        named = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}
        assert {module.partition(".")[0] for module in plain | named} <= sys.stdlib_module_names, name


async def test_a_second_time_changes_nothing(tmp_path: Path):
    (await Cli(None)("sdk", "vendor", str(tmp_path))).ends(0)
    (tmp_path / "service.py").write_text("mine")
    before = written(tmp_path)
    again = (await Cli(None)("sdk", "vendor", str(tmp_path))).ends(0)
    assert again.out.splitlines() == [f"{tmp_path / name} is there already" for name in NAMES]
    assert written(tmp_path) == before


async def test_a_file_that_differs_is_replaced_only_by_force(tmp_path: Path):
    (tmp_path / "accsd_wire.py").write_text("changed by hand")
    refused = (await Cli(None)("sdk", "vendor", str(tmp_path))).ends(2, "accsd_wire.py", "→ --force")
    assert refused.out == ""
    assert written(tmp_path) == {"accsd_wire.py": "changed by hand"}, "nothing is written, not even what is new"
    (await Cli(None)("sdk", "vendor", str(tmp_path), "--force")).ends(0, f"wrote {tmp_path / 'accsd_wire.py'}")
    assert written(tmp_path)["accsd_wire.py"] == WIRE


@pytest.mark.skipif(os.geteuid() != 0, reason="a place that nobody may write to, root included")
async def test_a_folder_that_cannot_be_written_to_is_named():
    (await Cli(None)("sdk", "vendor", "/proc/services")).ends(2, "/proc/services cannot be written")
