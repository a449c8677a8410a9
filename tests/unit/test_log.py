"""Log lines are JSON in any case, carry no secret, and reach task_events through the sink."""

import asyncio
import gc
import os
import pty
import re
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import orjson
import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accsd import log
from accsd.log import (
    LoggedEvent,
    bind_event_sink,
    configure_logging,
    get_logger,
    log_event,
    log_loop_errors,
    register_secret,
)

CANARY = "Qx7f3a/9v+é"


@pytest.fixture(autouse=True)
def fresh_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(log, "_secrets", set[str]())
    monkeypatch.setattr(log, "_struck_order", ())
    configure_logging("debug", "stdout")
    yield
    configure_logging(format="json")
    bind_event_sink(None)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture
def events() -> list[LoggedEvent]:
    collected: list[LoggedEvent] = []
    bind_event_sink(collected.append)
    return collected


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    # By \n alone, as every reader of JSON lines does: splitlines() would also cut at a U+0085 inside a text.
    return [orjson.loads(line) for line in capsys.readouterr().out.split("\n") if line]


# The logger


async def test_what_asyncio_can_tell_nobody_is_a_line_like_any_other(capsys: pytest.CaptureFixture[str]):
    async def fails() -> None:
        raise TimeoutError("never retrieved")

    log_loop_errors(asyncio.get_running_loop())
    forgotten = asyncio.ensure_future(fails())
    await asyncio.wait([forgotten])
    del forgotten
    gc.collect()
    [line] = lines(capsys)
    assert (line["action"], line["component"], line["level"]) == ("loop_error", "asyncio", "error")
    assert "Task exception was never retrieved" in line["message"]
    assert "TimeoutError: never retrieved" in line["exception"]


def test_a_record_is_one_line_with_its_action_level_time_and_context(capsys: pytest.CaptureFixture[str]):
    with structlog.contextvars.bound_contextvars(job_id="j1", attempt_id=3):
        get_logger(service="renderer").warning("lease_lost", reason="stale_attempt")

    [line] = lines(capsys)
    assert line.pop("ts").endswith("+00:00")
    assert line == {"level": "warn", "action": "lease_lost", "service": "renderer", "reason": "stale_attempt",
                    "job_id": "j1", "attempt_id": 3}  # fmt: skip


def test_records_below_the_level_are_not_written(capsys: pytest.CaptureFixture[str]):
    configure_logging("warn", "stdout")

    get_logger().info("idle_pass")
    get_logger().error("role_crashed")

    assert [line["action"] for line in lines(capsys)] == ["role_crashed"]


def test_commands_log_to_stderr(capsys: pytest.CaptureFixture[str]):
    configure_logging()

    get_logger().info("schema_installed")

    captured = capsys.readouterr()
    assert captured.out == ""
    assert "schema_installed" in captured.err


def test_an_exception_is_part_of_its_line(capsys: pytest.CaptureFixture[str]):
    try:
        raise KeyError("lost")
    except KeyError:
        get_logger().exception("role_crashed")

    [line] = lines(capsys)
    assert "KeyError: 'lost'" in line["exception"]
    assert line["level"] == "error"


def test_a_closed_stream_does_not_stop_the_work(monkeypatch: pytest.MonkeyPatch):
    class Gone:
        def write(self, _: str) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Gone())

    get_logger().info("still_working")
    log_event("info", "log", "still working")


# log_event


def test_an_event_is_a_line_on_stdout_and_where_a_sink_is_bound_an_event(
    capsys: pytest.CaptureFixture[str], events: list[LoggedEvent]
):
    job, task = uuid4(), uuid4()

    log_event("info", "progress", "half way", {"frame": 120}, job, str(task), source="service:audio")

    [line] = lines(capsys)
    assert line.pop("ts")
    assert line == {"level": "info", "type": "progress", "source": "service:audio", "message": "half way",
                    "data": {"frame": 120}, "job_id": str(job), "job_task_id": str(task)}  # fmt: skip
    [event] = events
    assert (event.job_id, event.job_task_id) == (job, task)
    assert (event.level, event.type, event.source) == ("info", "progress", "service:audio")
    assert event.data == {"frame": 120}


def test_without_a_job_or_a_sink_there_is_only_the_line(capsys: pytest.CaptureFixture[str], events: list[LoggedEvent]):
    log_event("warning", "log", "no job")
    bind_event_sink(None)
    log_event("nonsense", "log", "no sink", job_id=UUID(int=1))

    assert [(line["level"], line["source"]) for line in lines(capsys)] == [
        ("warn", "service:render"), ("info", "service:render"),
    ]  # fmt: skip
    assert events == []


@pytest.mark.parametrize("job_id", [UUID(int=1), "not a uuid"])
def test_a_failing_sink_is_said_and_does_not_fail_the_caller(capsys: pytest.CaptureFixture[str], job_id: UUID | str):
    def broken(_: LoggedEvent) -> None:
        raise RuntimeError("queue closed")

    bind_event_sink(broken)
    log_event("info", "log", "hello", job_id=job_id)

    assert [line.get("action") for line in lines(capsys)] == [None, "event_sink_failed"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    message=st.text(st.characters()),
    data=st.dictionaries(st.text(st.characters()), st.floats() | st.integers()),
)
def test_hostile_content_still_makes_a_line_and_an_event(
    capsys: pytest.CaptureFixture[str], events: list[LoggedEvent], message: str, data: dict[str, Any]
):
    events.clear()
    log_event("info", "log", message, data, UUID(int=1))

    assert len(lines(capsys)) == 1
    assert len(events) == 1


def test_a_huge_message_is_cut_and_keeps_its_envelope(capsys: pytest.CaptureFixture[str], events: list[LoggedEvent]):
    log_event("error", "log", "x" * 10_000_000, {"y": "z" * 10_000_000}, UUID(int=1))

    captured = capsys.readouterr().out
    assert len(captured) <= log.MAX_LINE_BYTES + 1
    assert orjson.loads(captured)["level"] == "error"
    assert len(orjson.dumps([events[0].message, events[0].data])) < 512 * 1024


# Secrets


def test_the_canary_appears_in_no_line_and_no_event(capsys: pytest.CaptureFixture[str], events: list[LoggedEvent]):
    register_secret(CANARY)
    url = f"postgresql://u:{log.quote(CANARY, safe='')}@h/d"
    padded = "x" * (log.MAX_LINE_BYTES - 200) + CANARY * 40

    def leak() -> None:
        raise RuntimeError(f"cannot reach {url} with {CANARY}")

    try:
        leak()
    except RuntimeError:
        get_logger(password=CANARY).exception("leak", **{CANARY: [{"deep": CANARY.encode()}]}, url=url)
    for message in (CANARY, url, padded):
        log_event("info", CANARY, message, {CANARY: [CANARY, url, padded]}, UUID(int=1), source=f"service:{CANARY}")

    everything = capsys.readouterr().out + repr(events)
    for form in (CANARY, log.quote(CANARY, safe=""), CANARY[:6]):
        assert form not in everything
    assert "***" in everything


def test_a_secret_inside_a_longer_one_does_not_leave_the_rest_standing():
    register_secret("hunter2secret")
    register_secret("postgresql://u:hunter2secret@h/d")

    assert log.redact("at postgresql://u:hunter2secret@h/d and hunter2secret") == "at *** and ***"


def test_a_text_too_short_to_be_a_secret_is_not_struck_out():
    register_secret("a")
    register_secret("")

    assert log.redact("banana") == "banana"


# For a person


def test_a_person_reads_local_time_who_says_what_and_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        configure_logging("debug", "stdout", "text")
        get_logger(component="supervisor").info("pass", role="discovery", did="serving greeter", took_ms=0.7)
    time.tzset()
    get_logger(component="services").error("service_not_served", error="no image", hint="build it", slots={"a": 1})
    log_event("warn", "refused", "heartbeat refused", job_id=uuid4(), source="agent:render")
    passed, failed, hint, event = capsys.readouterr().out.splitlines()
    local = datetime.now(ZoneInfo("Asia/Tokyo"))
    assert passed[:2] in (f"{local:%H}", f"{local - timedelta(seconds=9):%H}")
    assert re.fullmatch(r"\d\d:\d\d:\d\d info  discovery: serving greeter", passed)
    assert re.fullmatch(r'\S+ error services: service not served: no image  slots=\{"a":1\}', failed)
    assert hint == " " * 15 + "→ build it"
    assert re.fullmatch(r"\S+ warn  agent:render: heartbeat refused  job_id=\S+", event)


def test_what_a_person_reads_has_no_secret_and_nothing_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]):
    register_secret(CANARY)
    configure_logging("debug", "stdout", "text")
    try:
        raise KeyError(f"{CANARY}\x1b[2J")
    except KeyError:
        get_logger().exception(f"{CANARY}\x1b[2J", error=f"\x1b]0;{CANARY}\x07", **{f"\x1b{CANARY}": [CANARY]})
    said = capsys.readouterr().out
    assert CANARY not in said
    assert "\x1b" not in said
    assert "Traceback" in said


@pytest.mark.parametrize(("variable", "coloured"), [(None, True), ("NO_COLOR", False)])
def test_a_terminal_gets_text_and_everything_else_json(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str | None, coloured: bool
):
    monkeypatch.delenv("NO_COLOR", raising=False)
    if variable:
        monkeypatch.setenv(variable, "1")
    screen, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        configure_logging("info", "stdout")
        get_logger().warning("lease_lost")
        seen = os.read(screen, 1000).decode()
        assert ("lease lost" in seen, "\x1b[33mwarn" in seen) == (True, coloured)
    os.close(screen)
    with (tmp_path / "file").open("w+") as out:
        monkeypatch.setattr(sys, "stdout", out)
        configure_logging("info", "stdout")
        get_logger().warning("lease_lost")
        out.seek(0)
        assert orjson.loads(out.read())["action"] == "lease_lost"
