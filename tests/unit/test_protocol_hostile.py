"""Whatever a task writes, a line becomes one message that jsonb can hold, and nothing raises."""

import json
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accsd.log import register_secret
from accsd.model.state import Level
from accsd.runners.base import Stream
from accsd.work.protocol import (
    MAX_RESULT_BYTES,
    Expected,
    LogLine,
    Message,
    ProgressLine,
    ProtocolViolation,
    Result,
    ResultTooLarge,
    TaskAnswer,
    parse_line,
)
from accsd.work.protocol.framing import LINE_LIMIT, OBJECT_LIMIT, LineSplitter
from tests.unit.test_jsonsafe import assert_acceptable

JOB = UUID("0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b")
EXPECTED = Expected(JOB, 7)

words = st.sampled_from(
    "type progress log artifact heartbeat result results message level data path kind content_type required output "
    f"schema_version verdict job_id attempt_id time_ms sandbox_error OK SE {JOB} \x00 \ud800".split(" ")
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), words, st.text(st.characters()), st.just(10**400)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=8,
)
types = st.sampled_from(["progress", "log", "artifact", "heartbeat", "result", "other", 7, None])
objects = st.builds(lambda kind, rest: {"type": kind, **rest}, types, st.dictionaries(words, values, max_size=6))
judged = st.builds(lambda rest: {"schema_version": 1, "verdict": "OK", **rest}, st.dictionaries(words, values))
nearly_json = st.builds(
    lambda text, at, noise: text[: at % (len(text) + 1)] + noise + text[at % (len(text) + 1) :],
    (objects | judged).map(lambda value: json.dumps(value).encode()),
    st.integers(0, 1000),
    st.binary(max_size=3),
)


def heard(data: bytes, stream: Stream = Stream.STDOUT) -> Message:
    (line,) = LineSplitter().feed(data.replace(b"\n", b" ") + b"\n")
    return parse_line(line, stream, EXPECTED)


def results(data: bytes) -> Any:
    message = heard(b'{"type": "result", "results": {"x": ' + data + b"}}")
    assert isinstance(message, Result), message
    assert_acceptable(message.results)
    return message.results["x"]


@given(st.binary() | nearly_json, st.sampled_from(Stream))
def test_a_line_of_any_bytes_is_a_message_that_can_be_stored(data: bytes, stream: Stream) -> None:
    message = heard(data, stream)
    answer = TaskAnswer()
    answer.note(message)
    assert_acceptable(orjson.loads(orjson.dumps(answer.as_json())))
    if isinstance(message, LogLine):
        assert_acceptable([message.message, message.data])
    if isinstance(message, ProgressLine):
        assert 0 <= message.progress <= 1


@given(objects | judged)
def test_an_object_of_any_fields_is_a_message(fields: dict[str, Any]) -> None:
    heard(json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (b"NaN", "NaN"),
        (b"-Infinity", "-Infinity"),
        (b"1e400", "Infinity"),
        (rb'"a\u0000b"', "a\ufffdb"),
        (rb'"\ud800"', "\ufffd"),
        (rb'"\ud83d\ude00"', "😀"),
        (b'"\xff"', "\ufffd"),
        (b'{"a": 1, "a": 2}', {"a": 2}),
    ],
)
def test_values_that_jsonb_refuses_are_replaced_in_a_result(written: bytes, kept: Any) -> None:
    assert results(written) == kept


@pytest.mark.parametrize(
    "value", [b"[" * 100_000 + b"]" * 100_000, b"[" * 100_000, b"9" * 5000, b'{"a":' * 50_000], ids=lambda v: v[:6]
)
def test_a_result_that_cannot_be_read_is_a_log_line_and_a_problem(value: bytes) -> None:
    message = heard(b'{"type": "result", "results": {"x": ' + value + b"}}")
    assert isinstance(message, LogLine)
    assert message.level is Level.WARN
    assert message.problem
    assert message.message.startswith('{"type": "result"')
    assert len(message.message) <= LINE_LIMIT


def test_a_deep_result_that_can_be_read_is_cut_at_its_depth() -> None:
    assert "<too deep>" in json.dumps(results(b"[" * 500 + b"]" * 500))


def result_of(size: int) -> bytes:
    """Whose results have exactly so many bytes of JSON."""
    return b'{"type": "result", "results": {"x":"' + b"y" * (size - len('{"x":""}')) + b'"}}'


def test_a_result_of_256_kib_is_a_result_and_one_byte_more_is_not() -> None:
    assert isinstance(heard(result_of(MAX_RESULT_BYTES)), Result)
    assert heard(result_of(MAX_RESULT_BYTES + 1)) == ResultTooLarge(MAX_RESULT_BYTES + 1)


@pytest.mark.parametrize("size", [OBJECT_LIMIT, 2 * OBJECT_LIMIT])
def test_a_result_too_long_to_be_read_is_still_known_as_one(size: int) -> None:
    assert isinstance(heard(result_of(size)), ResultTooLarge)
    sorted_keys = b'{"results": {"x": "' + b"y" * size + b'"}, "type": "result"}'
    assert isinstance(heard(sorted_keys), ResultTooLarge)


def test_another_object_that_is_too_long_is_a_cut_log_line() -> None:
    message = heard(b'{"results": ["' + b"y" * OBJECT_LIMIT + b'"]}')
    assert isinstance(message, LogLine)
    assert message.truncated
    assert message.problem is None
    assert len(message.message) <= LINE_LIMIT


@pytest.mark.parametrize("begin", [b"", b"{"])
def test_a_plain_line_is_cut_at_64_kib(begin: bytes) -> None:
    message = heard(begin + b"x" * LINE_LIMIT * 2)
    assert isinstance(message, LogLine)
    assert message.truncated
    assert LINE_LIMIT * 0.9 < len(message.message) <= LINE_LIMIT


def test_bytes_that_are_no_text_are_shown_as_replacements() -> None:
    assert heard(b"caf\xe9 \x00 \x1b[31m") == LogLine(Level.INFO, "caf\ufffd \ufffd \x1b[31m")


@pytest.mark.parametrize("before", range(LINE_LIMIT - 12, LINE_LIMIT + 2))
def test_no_half_of_a_secret_stands_at_a_cut(before: int) -> None:
    register_secret("Xq-canary-9")
    message = heard(b"." * before + b"Xq-canary-9" + b"." * LINE_LIMIT)
    assert isinstance(message, LogLine)
    assert set(message.message) <= set(".*")


def test_secrets_are_struck_out_of_messages_but_not_of_results() -> None:
    register_secret("Xq-canary-9")
    log = heard(b'{"type": "log", "message": "at Xq-canary-9", "data": {"k": "Xq-canary-9"}}')
    assert log == LogLine(Level.INFO, "at ***", {"k": "***"})
    assert heard(b'{"type": "progress", "progress": 0, "message": "Xq-canary-9"}') == ProgressLine(0.0, "***")
    for stream in Stream:
        assert heard(b"at Xq-canary-9", stream) == LogLine(
            Level.INFO if stream is Stream.STDOUT else Level.WARN, "at ***"
        )
    foreign = heard(b'{"type": "result", "job_id": "Xq-canary-9"}')
    assert isinstance(foreign, ProtocolViolation)
    assert "canary" not in foreign.reason
    assert results(b'"Xq-canary-9"') == "Xq-canary-9"


def test_long_texts_of_messages_are_bounded() -> None:
    long = "y" * (OBJECT_LIMIT - 100)
    log = heard(json.dumps({"type": "log", "message": long}).encode())
    assert isinstance(log, LogLine)
    assert len(log.message) <= LINE_LIMIT
    progress = heard(json.dumps({"type": "progress", "progress": 0.1, "message": long}).encode())
    assert isinstance(progress, ProgressLine)
    assert len(progress.message or "") <= LINE_LIMIT
