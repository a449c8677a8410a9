"""One line of the doctor: it is well, or what to do."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import StrEnum

from accsd.settings import Settings


class Grade(StrEnum):
    OK = "OK"
    WARN = "WARN"  # it works, but not as well or as safely as it could
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    verdict: Grade
    text: str
    do: str | None = None


Check = Callable[[Settings], AsyncIterator[Finding]]


def ok(check: str, text: str) -> Finding:
    return Finding(check, Grade.OK, text)


def warn(check: str, text: str, do: str) -> Finding:
    return Finding(check, Grade.WARN, text, do)


def fail(check: str, text: str, do: str) -> Finding:
    return Finding(check, Grade.FAIL, text, do)
