"""Words that the commands and the page share: no command, no terminal and no database is needed for them."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from accsd.db.views.events import EventRow
from accsd.db.why import Blocker
from accsd.explain.events import StateWord, is_for_people, what_happened
from accsd.explain.reasons import reason
from accsd.explain.why import Explanation, document
from accsd.explain.words import cut, duration, one_line, short
from accsd.model.outcome import MEANINGS, Blame, DatabaseCode, ErrorCode, meaning_of

SCHEMA = (Path(__file__).parents[2] / "schema.sql").read_text(encoding="utf-8")
JOB, TASK = UUID("019a0000-0000-7000-8000-0000deadbeef"), UUID(int=2)
EVENT = EventRow(1, datetime.now(UTC), timedelta(seconds=1), TASK, "a", 1, "agent", "info", "status", None, None)


# Error codes


def test_the_table_has_a_row_for_each_code_and_none_for_another():
    assert list(MEANINGS) == [*ErrorCode, *DatabaseCode]
    assert all(row.sentence and row.advice for row in MEANINGS.values())
    by_fault = {code: MEANINGS[code].fault for code in ErrorCode}
    assert by_fault.pop(ErrorCode.FILE_MISSING) is Blame.WORKFLOW
    assert set(by_fault.values()) == {Blame.TASK, Blame.MACHINE}


def test_a_code_that_the_schema_gives_is_in_the_table():
    given = {*re.findall(r"error_code = '(\w+)'", SCHEMA), *re.findall(r"reject_job\([\w.]+, '(\w+)'", SCHEMA)}
    assert {"upstream_failed", "cancelled", "workflow_inactive", "instantiate_failed"} <= given
    assert given <= set(MEANINGS)


def test_a_code_of_a_service_has_no_words_but_an_advice():
    assert meaning_of("no_such_font") == meaning_of(None)
    assert meaning_of("no_such_font").sentence == ""
    assert "log" in meaning_of("no_such_font").advice


# Why


def test_a_document_has_a_row_for_each_blocker_with_its_words_and_the_next_command():
    blockers = [
        Blocker("dependency", None, None, None, None, {"task_key": "ingest", "status": "running"}),
        Blocker("service_paused", None, None, None, None, {"name": "renderer", "by": "ann", "reason": "licence"}),
    ]
    rows = document([Explanation(JOB, TASK, "render", blockers, is_critical=True)])
    assert [(row["blocker"], row["text"], row["next"]) for row in rows] == [
        ("dependency", 'it waits for step "ingest", which is running', "`accsd why deadbeef/ingest`"),
        ("service_paused", 'service "renderer" is paused by ann: licence', "`accsd services resume renderer`"),
    ]
    assert {(row["job_id"], row["task_key"], row["is_critical"]) for row in rows} == {(JOB, "render", True)}
    assert [row["remedies"] for row in rows] == [
        [_remedy("open_why", "deadbeef/ingest", "Why deadbeef/ingest waits", "accsd why deadbeef/ingest")],
        [_remedy("resume_service", "renderer", "Resume service renderer", "accsd services resume renderer")],
    ]


def _remedy(kind: str, target: str, label: str, cli: str) -> dict[str, str]:
    return {"kind": kind, "target": target, "label": label, "cli": cli}


def test_what_to_do_is_a_sentence_whose_commands_are_remedies():
    detail = {"node": "n1", "service": "renderer", "quarantine": {"reason": "it fails", "probe_in_sec": 5}}
    obstacle = {"obstacle": "no disk {0}\n→ make room in {spool}"}
    hindered = reason(Blocker("node_quarantined", None, None, None, None, detail | obstacle), job=JOB, step="render")
    assert hindered.advice == "on n1: make room in {spool}; then `accsd nodes resume n1`"
    assert [remedy.kind for remedy in hindered.remedies] == ["resume_node"]
    ended = reason(Blocker("error", None, None, None, None, {"error_code": "oom"}), job=JOB, step="encode[3]")
    assert ended.advice is not None
    assert ended.advice.endswith(": `accsd logs deadbeef --step 'encode[3]'`, `accsd retry deadbeef`")
    assert [remedy.target for remedy in ended.remedies] == ["deadbeef/encode[3]", "deadbeef"]
    assert reason(Blocker("not_due", None, None, None, None, {}), job=JOB, step=None).advice is None


# Events


@pytest.mark.parametrize(
    ("kind", "message", "data", "said"),
    [
        ("progress", "frame 12", {"progress": 0.5}, " 50%  frame 12"),
        ("status", "queued → starting", {"from": "queued", "to": "starting", "node": "n1"}, "queued → starting on n1"),
        (
            "status",
            "it broke",
            {"from": "running", "to": "error", "error_code": "oom"},
            "running → error: it broke [oom]",
        ),
        ("status", "resumed", {}, "resumed"),
        ("log", "hello\nworld", None, "hello world"),
        ("artifact", "jobs/1/out.wav", {"kind": "output"}, "kept out.wav"),
        ("truncated", None, None, "truncated"),
    ],
)
def test_an_event_is_a_sentence(kind: str, message: str | None, data: dict[str, Any] | None, said: str):
    assert "".join(what_happened(replace(EVENT, type=kind, message=message, data=data))) == said


def test_a_state_in_a_sentence_is_marked_for_whoever_shows_it():
    event = replace(EVENT, message="running → error", data={"from": "running", "to": "error"})
    assert [piece for piece in what_happened(event) if isinstance(piece, StateWord)] == ["error"]


def test_what_is_said_to_programs_is_not_for_people():
    assert is_for_people(EVENT)
    assert not is_for_people(replace(EVENT, level="debug"))
    assert not is_for_people(replace(EVENT, type="artifact", data={"kind": "log"}))


# Values


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0s"), (9.94, "9.9s"), (10, "10s"), (65, "1m5s"), (3600, "1h"), (90061, "1d1h"), (-65, "-1m5s")],
)
def test_a_length_of_time_has_its_two_largest_units(seconds: float, said: str):
    assert duration(timedelta(seconds=seconds)) == said


def test_ids_and_long_texts_are_shortened():
    assert short(JOB) == "deadbeef"
    assert one_line("a\n b   c") == "a b c"
    assert one_line("word " * 50, longest=20) == "word word word word…"
    assert (cut("four", 4), cut("fourteen", 4)) == ("four", "fou…")
