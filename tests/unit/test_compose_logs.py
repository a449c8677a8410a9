"""The engine's log of a container gives back what the task wrote, however it was cut."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from accsd.runners.compose.container_log import PART, LogDecoder

# How a line is made, because the line itself would fill the report of a failure: what, how often, what at its end.
OLD_STAMP = b"2020-01-01T00:00:00.000000000Z said the task "
RECIPES = st.tuples(
    st.sampled_from([b"x", OLD_STAMP]),
    st.sampled_from([0, 1, 1000, PART - 1, PART, PART + 1, 3 * PART]),
    st.binary(max_size=40),
)


def line_of(recipe: tuple[bytes, int, bytes]) -> bytes:
    what, length, tail = recipe
    return (what * length)[:length] + tail.replace(b"\n", b" ")


def engine_log(lines: list[bytes], *, keeps_newlines: bool = False, zone: bytes = b"Z") -> bytes:
    """What `docker logs --timestamps` shows with the driver `local` of engine 20.10."""
    log = bytearray()
    for number, line in enumerate(lines):
        stamp = b"2026-11-16T08:25:46.%09d%s " % (number, zone)
        parts = [line[at : at + PART] for at in range(0, len(line), PART)] or [b""]
        if len(line) >= PART and len(parts[-1]) == PART:
            parts.append(b"")
        log += b"".join(stamp + part for part in parts)
        log += b"\n" if keeps_newlines or len(parts) == 1 else b""
    return bytes(log)


def read(log: bytes, size: int) -> bytes:
    unstamped = LogDecoder()
    got = b"".join(unstamped.feed(log[at : at + size]) for at in range(0, len(log), size))
    return got + unstamped.end()


@settings(deadline=None, max_examples=200, derandomize=True)
@example([(OLD_STAMP, 45_000, b"")], 31, False, b"+01:00")
@given(
    recipes=st.lists(RECIPES, max_size=6),
    size=st.sampled_from([1000, 4096, 65536, 16415, 31, 10**6]),
    keeps_newlines=st.booleans(),
    zone=st.sampled_from([b"Z", b"+01:00"]),
)
def test_lines_of_any_length_and_content_come_back(
    recipes: list[tuple[bytes, int, bytes]], size: int, keeps_newlines: bool, zone: bytes
) -> None:
    lines = [line_of(recipe) for recipe in recipes]
    log = engine_log(lines, keeps_newlines=keeps_newlines, zone=zone)
    assert (read(log, size) == b"".join(line + b"\n" for line in lines)) is True


@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_a_last_line_without_a_newline_stays_without(size: int) -> None:
    assert read(engine_log([b"one", b"two"])[:-1], size) == b"one\ntwo"


def test_a_short_line_is_given_back_at_once() -> None:
    unstamped = LogDecoder()
    assert unstamped.feed(engine_log([b"progress"])) == b"progress\n"


def test_bytes_are_never_lost_where_there_is_no_stamp() -> None:
    log = b"no stamp here, " * 5000 + b"\n"
    assert re.sub(rb"\s", b"", read(log, 4096)) == re.sub(rb"\s", b"", log)
