"""Hostile values, each from a Random: texts, numbers, times, JSON, and files with bytes that no editor writes."""

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

from accsd.errors import AccsdError

_FRAGMENTS: Final = (
    *(
        "",
        " ",
        "a",
        "render",
        "\t",
        "\n",
        "\r\n",
        "\x07",
        "\x08",
        "\x7f",
        "\x1b[31m",
        "\x1b[2J\x1b[H",
        "\x1b]0;owned\x07",
    ),
    *("\x9b2J", "\x85", "\u202e", "\u2028", "\ufeff", "\ufffd", "\U0001f600", "ñ", "e\u0301", "'", '"', "\\", "`", "@"),
    *("; DROP TABLE jobs; --", "$(id)", "%s%n%d", "{}", "{ref}", "[]", "null", "true", "NaN", "-1", "0", "1e400", "*"),
    *("../../etc/passwd", "/dev/zero", "-", "--help", "-o", "%", "_", "x" * 41, "x" * 64, "y" * 201, "é" * 40),
)
_INTEGERS: Final = (
    *(0, 0, 1, 1, 2, 3, 7, 100, 1_000, -1, -2, -1_000, 65_535, 65_536, 10**6),
    *(2**31 - 1, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**30, 10**400),
)
_FLOATS: Final = ("0", "0.5", "1", "-0.0", "1.0000001", "1e308", "-1e308", "5e-324", "0.1", "50", "1e-400")
_NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")
_MOMENTS: Final = (
    *("now", "yesterday", "tomorrow", "epoch", "infinity", "-infinity", "2024-02-29 12:00+14", "0001-01-01"),
    *("9999-12-31 23:59:59+00", "12000-01-01", "294276-12-31", "4713-01-01 BC", "2024-03-31 02:30 Europe/Berlin"),
)
_LENGTHS: Final = (
    *("0", "1 us", "1 s", "10 s", "1 min", "1 day", "-1 s", "-1 day", "1 mon", "1000 years", "178000000 years"),
    *("-178000000 years", "1 mon -30 days", "P1Y2M3DT4H5M6S", "00:00:00.000001"),
)


def text(random: Random, *, with_nul: bool = False, longest: int = 1_000_000) -> str:
    """Now and then of about `longest` characters. `with_nul`: also what no UTF-8 and no text of PostgreSQL's is."""
    chance = random.random()
    if chance < 0.01:
        return "".join(random.choice(_FRAGMENTS) or "z" for _ in range(8)) * (longest // 200)
    if chance < 0.03 and with_nul:
        return random.choice(("a\x00b", "\ud800", "a\udfffb"))
    return "".join(random.choice(_FRAGMENTS) for _ in range(random.choice((1, 1, 1, 2, 3))))


def integer(random: Random) -> int:
    return random.choice(_INTEGERS) if random.random() < 0.8 else random.randint(-(2**40), 2**40)


def number(random: Random) -> str:
    """As SQL, JSON's writers and environments spell it."""
    return random.choice((*_FLOATS, *_NO_NUMBERS, str(integer(random))))


def moment(random: Random) -> str:
    return random.choice(_MOMENTS)


def length(random: Random) -> str:
    return random.choice(_LENGTHS)


def value(random: Random, depth: int = 3) -> Any:
    """A tree such as a parser of JSON, TOML or YAML makes of a document."""
    match random.randrange(9 if depth > 0 else 6):
        case 0:
            return None
        case 1:
            return random.random() < 0.5
        case 2:
            return integer(random)
        case 3:
            return random.choice((0.5, -0.0, 1e308, float("nan"), float("inf"), float("-inf")))
        case 4 | 5:
            return text(random, longest=20_000)
        case 6:
            return [value(random, depth - 1) for _ in range(random.randrange(4))]
        case _:
            return {text(random, longest=2_000): value(random, depth - 1) for _ in range(random.randrange(4))}


def nested(random: Random) -> str:
    """JSON of 3 to 3,000 levels; the levels around the limits of parsers more often."""
    levels = random.choice((3, 60, 64, 65, 200, 254, 255, 300, 1_000, 1_023, 1_025, 3_000))
    opening, closing = random.choice((("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")))
    return opening * levels + "1" + closing * levels


def json_text(random: Random) -> str:
    """A document, mostly of JSON; now and then not quite."""
    chance = random.random()
    if chance < 0.15:
        return nested(random)
    if chance < 0.2:
        return random.choice(("", "{", "nul", "[1,", '{"a":1,"a":2}', '"\\u0000"', '"\\ud800"', "1" * 5_000, "1e400"))
    return json.dumps(value(random), ensure_ascii=random.random() < 0.5)


Files = Mapping[str, bytes]  # by name
_ODD_BYTES = (
    *(
        b"\x00",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xfe\xff\x00a",
        b"\xed\xa0\x80",
        b"\x80",
        b"\x1b[31m",
        b"\x7f",
        b"\xc2\x85",
    ),
)


def in_a_folder(files: Files, use: Callable[[Path], object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
        use(Path(folder))


def with_odd_bytes(random: Random, content: bytes) -> bytes:
    """At the beginning, or anywhere."""
    at = 0 if random.random() < 0.3 else random.randrange(len(content) + 1)
    return content[:at] + random.choice(_ODD_BYTES) + content[at:]


def in_words(error: AccsdError) -> None:
    assert error.message.strip(), f"{type(error).__name__} says nothing"
    assert "Traceback" not in error.message
