"""The tools that services of a node declare, read from their files."""

from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from accsd.agent.offers import offered_tools
from accsd.runners.base import Runner
from accsd.work.service import LocalService

ALIASES = "a: &a [x, x]\nb: &b [*a, *a]\ninput_schema: {enum: [*b, *b]}\n"


def service(name: str, tool: str | None = None, schema: Path | None = None) -> LocalService:
    still = timedelta(seconds=1)
    return LocalService(name, cast("Runner", None), 1, None, still, None, 1, tool=tool, tool_schema=schema)


def test_an_offer_is_the_file_with_the_names_of_tool_and_service(tmp_path: Path):
    file = tmp_path / "probe.yaml"
    file.write_text("name: other.name\ndescription: How long.\ninput_schema: {required: [url]}\n")
    assert offered_tools([service("plain"), service("bare", "a.b"), service("prober", "media.probe", file)]) == [
        {"name": "a.b", "service": "bare"},
        {
            "name": "media.probe",
            "service": "prober",
            "description": "How long.",
            "input_schema": {"required": ["url"]},
        },
    ]


@pytest.mark.parametrize(
    "written",
    [
        None,
        b"[1, 2]",
        b"\xff\xfe\xfa",
        b"a: b: c",
        b"[" * 5000,
        ALIASES.encode(),
        b"input_schema: {description: " + b"x" * 70_000 + b"}",
        b"# " + b"x" * 300_000,
    ],
)
def test_a_file_that_can_not_be_read_keeps_no_other_tool_from_being_offered(tmp_path: Path, written: bytes | None):
    file = tmp_path / "probe.yaml"
    if written is not None:
        file.write_bytes(written)
    assert offered_tools([service("prober", "media.probe", file), service("s", "a.b")]) == [
        {"name": "a.b", "service": "s"}
    ]


def test_what_the_database_can_not_hold_is_replaced(tmp_path: Path):
    file = tmp_path / "probe.yaml"
    file.write_text('{"description": "a\\u0000b", "examples": [.nan, 2026-01-01], 5: 6}')
    [offer] = offered_tools([service("s", "a.b", file)])
    said: dict[str, Any] = {**offer, "examples": None}
    assert said == {"name": "a.b", "service": "s", "description": "a\ufffdb", "examples": None, "5": 6}
    assert all(isinstance(each, str) for each in offer["examples"])


def test_a_node_offers_fifty_tools(tmp_path: Path):
    assert len(offered_tools(service(f"s{n}", "a.b") for n in range(60))) == 50
