"""The lines of the task protocol: a task may write anything; nothing raises, and jsonb holds what is made of it."""

import json
from dataclasses import asdict
from random import Random
from typing import Any
from uuid import UUID

import orjson

from accsd.runners.base import Stream
from accsd.work.protocol import Expected, TaskAnswer, parse_line
from accsd.work.protocol.framing import LineSplitter
from tests.fuzz.cases import Run, at_length
from tests.fuzz.values import json_text, number, text, value
from tests.support.cluster import Connection

EXPECTED = Expected(UUID(int=7), 3)
TYPES = ("progress", "log", "artifact", "heartbeat", "result", "Result", "", 7, None)
FIELDS = (
    *("type", "progress", "message", "level", "data", "path", "kind", "content_type", "required", "results"),
    *("schema_version", "job_id", "attempt_id", "verdict", "time_ms", "mem_kb", "exit_signal", "sandbox_error"),
)
FITTING: dict[str, tuple[Any, ...]] = {
    "progress": (0.5, 1, 1.0005, -0.0005, 50, True),
    "level": ("info", "warn", "error", "fatal", "INFO"),
    "kind": ("input", "output", "log", "else"),
    "job_id": (str(EXPECTED.job_id), str(EXPECTED.job_id).upper(), "0" * 32),
    "attempt_id": (3, "3", 3.0, 2**70),
    "schema_version": (1, 1.0, "1", True),
    "verdict": ("OK", "TLE", "SE", "ok"),
    "results": ({}, {"a": 1}, []),
}


def made(random: Random) -> list[bytes]:
    """The bytes of a few lines, in the pieces in which they arrive."""
    lines = b"\n".join(_line(random) for _ in range(random.choice((1, 1, 1, 3))))
    cuts = sorted(random.randrange(len(lines) + 1) for _ in range(random.choice((0, 0, 1, 5))))
    return [lines[start:end] for start, end in zip([0, *cuts], [*cuts, len(lines)], strict=True)]


def _line(random: Random) -> bytes:
    chance = random.random()
    if chance < 0.1:
        return random.randbytes(random.choice((1, 10, 1_000)))
    if chance < 0.2:
        return text(random, with_nul=True).encode("utf-8", "surrogatepass")
    if chance < 0.35:
        return json_text(random).encode("utf-8", "surrogatepass")
    return _damaged(random, _message(random))


def _message(random: Random) -> bytes:
    fields: dict[str, Any] = (
        {"type": random.choice(TYPES)} if random.random() < 0.7 else {"schema_version": 1, "verdict": "OK"}
    )
    for name in random.sample(FIELDS[1:], random.randrange(7)):
        fields[name] = random.choice(FITTING[name]) if name in FITTING and random.random() < 0.5 else value(random)
    written = json.dumps(fields, ensure_ascii=random.random() < 0.5)
    for name in ("results", "data", "progress", "attempt_id"):
        if random.random() < 0.15:  # what no writer of ours would write
            odd = random.choice((json_text(random), number(random), '"\\ud800"', '"\\u0000"', '{"\\u0000": 1}'))
            written = f'{written[:-1]}, "{name}": {odd}}}'
    return written.encode("utf-8", "surrogatepass")


def _damaged(random: Random, line: bytes) -> bytes:
    chance = random.random()
    if chance < 0.7:
        return line
    at = random.randrange(len(line) + 1)
    if chance < 0.8:
        return line[:at]
    if chance < 0.9:
        return (
            line[:at] + random.choice((b"\xff", b"\xc3", b"\x00", b"\xed\xa0\x80", b"\r", b" " * 600_000)) + line[at:]
        )
    return b" \t" + line + b"\r"


def read(chunks: list[bytes], stream: Stream) -> list[str]:
    """As the agent does it; every value that it would store, as JSON."""
    splitter, answer, kept = LineSplitter(), TaskAnswer(), list[Any]()
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    if (last := splitter.close()) is not None:
        lines.append(last)
    for line in lines:
        message = parse_line(line, stream, EXPECTED)
        answer.note(message)
        kept.append(asdict(message))
    saved = orjson.dumps(answer.as_json())
    again = TaskAnswer.from_json(orjson.loads(saved))
    assert orjson.dumps(again.as_json()) == saved, "what was said is not the same after a restart of the agent"
    return [orjson.dumps(each).decode() for each in [*kept, answer.as_json()]]


@at_length(cases=1_600)
async def test_whatever_a_task_writes_becomes_messages_that_jsonb_holds(run: Run, conn: Connection):
    with run.judged() as findings:
        for case in run.cases():
            chunks = made(case.random)
            with findings.about(case, chunks):
                stored = read(chunks, Stream.STDERR if case.number % 20 == 0 else Stream.STDOUT)
                await conn.execute("SELECT unnest($1::text[])::jsonb", stored)
