"""docs/writing-a-service.md is true: its snippets run."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from accsd.runners.compose.declared import read_declarations
from accsd.settings import Settings

DOC = (Path(__file__).parents[2] / "docs" / "writing-a-service.md").read_text()


def snippets(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOC, re.MULTILINE | re.DOTALL)


def ran(folder: Path, *argv: str, given: str = "", **environ: str) -> str:
    path = f"{folder}/bin:{os.environ['PATH']}"
    ended = subprocess.run(
        argv, cwd=folder, input=given.encode(), env={"PATH": path, **environ}, stdout=subprocess.PIPE, timeout=60,
        check=True,
    )  # fmt: skip
    return ended.stdout.decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    # Not a link: a virtual environment is found by where its python lies.
    (tmp_path / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    return tmp_path


def test_the_service_can_be_tried_as_it_is_said(folder: Path):
    (folder / "shouter.py").write_text(snippets("python")[0])
    said = ran(folder, "sh", "-ec", snippets("sh")[0])
    assert '"maximum": 100' in said
    assert '  warn  it was loud  {"characters": 6}\n' in said
    assert 'result  {"characters": 12}\n' in said
    assert (folder / "out" / "loud.txt").read_text() == "HELLO\nHELLO\n"


def test_the_service_without_accsd_runs(folder: Path):
    (folder / "bin" / "accsd").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m accsd "$@"\n')
    (folder / "bin" / "accsd").chmod(0o755)
    assert "wrote accsd_wire.py\n" in ran(folder, "sh", "-ec", snippets("sh")[2])
    (folder / "measure.py").write_text(snippets("python")[2])
    said = ran(folder, "python", "-E", "-S", "measure.py", given='{"params": {"width": 2}}\n')
    assert json.loads(said.splitlines()[-1])["results"] == {"pixels": 720}


def test_the_service_in_shell_runs(folder: Path):
    (folder / "inputs" / "ingest").mkdir(parents=True)
    (folder / "inputs" / "ingest" / "words.txt").write_text("b\na\n")
    said = ran(folder, "sh", "-ec", snippets("sh")[3], ACC_WORKDIR=str(folder)).splitlines()
    assert [json.loads(line)["type"] for line in said[1:]] == ["progress", "artifact", "result"]
    assert (folder / "sorted.txt").read_text() == "a\nb\n"


def test_the_configurations_are_valid():
    settings = Settings.model_validate(tomllib.loads(snippets("toml")[0]))
    assert settings.services["shouter"].command == ["python3", "shouter.py"]
    declared = read_declarations({"name": "studio", **yaml.safe_load(snippets("yaml")[0])}, {})
    assert (list(declared.services), declared.problems) == (["shouter"], ())
