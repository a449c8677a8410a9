"""One line of the doctor: it is well, or what to do."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import StrEnum

from accsd.settings import Settings


class Verdict(StrEnum):
    OK = "OK"
    WARN = "WARN"  # it works, but not as well or as safely as it could
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    verdict: Verdict
    text: str
    do: str | None = None


Check = Callable[[Settings], AsyncIterator[Finding]]


def ok(check: str, text: str) -> Finding:
    return Finding(check, Verdict.OK, text)


def warn(check: str, text: str, do: str) -> Finding:
    return Finding(check, Verdict.WARN, text, do)


def fail(check: str, text: str, do: str) -> Finding:
    return Finding(check, Verdict.FAIL, text, do)
