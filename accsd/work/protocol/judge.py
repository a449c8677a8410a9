"""A sandbox's line: one JSON object with schema_version, the ids, a verdict and what the run used."""

from collections.abc import Mapping
from typing import Any, Final, cast
from uuid import UUID

from accsd.log import redact
from accsd.values.json import sanitise
from accsd.work.protocol.wire import SCHEMA_VERSION, JudgeLine, JudgeVerdict

Fields = Mapping[str, Any]

ADDRESS: Final = frozenset({"schema_version", "job_id", "attempt_id"})
_JUDGEMENT: Final = ("verdict", "time_ms", "mem_kb", "exit_signal", "sandbox_error")
_SHOWN_BYTES: Final = 200
_MOST: Final = 2**53  # up to which a JSON number is exact everywhere


class Violated(Exception):
    """The line is not what a sandbox says; the text says why."""


def check_version(fields: Fields) -> None:
    version = fields["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        raise Violated(f"schema_version is {_brief(version)}, not {SCHEMA_VERSION}")


def check_ids(fields: Fields, job_id: UUID, attempt_id: int, *, required: bool) -> None:
    """Raises Violated if the line is not an answer of this attempt: a task may have kept or guessed one."""
    for name, mine in (("job_id", str(job_id)), ("attempt_id", str(attempt_id))):
        if name not in fields:
            if required:
                raise Violated(f"the line has no {name}")
        elif _written(fields[name]) != mine:
            raise Violated(f"the line is of {name} {_brief(fields[name])}, this attempt is of {mine}")


def read(fields: Fields) -> JudgeLine:
    try:
        verdict = JudgeVerdict(fields["verdict"])
    except ValueError:
        raise Violated(f"verdict is {_brief(fields['verdict'])}, not one of {', '.join(JudgeVerdict)}") from None
    error = fields.get("sandbox_error")
    if error is not None and not isinstance(error, str):
        raise Violated("sandbox_error is not a text")
    signal = _amount(fields, "exit_signal")
    return JudgeLine(
        verdict,
        _amount(fields, "time_ms"),
        _amount(fields, "mem_kb"),
        None if signal is None else int(signal),
        sanitise(error, scrub=redact) or None,
    )


def shown(fields: Fields) -> dict[str, Any]:
    """The judgement's part of a result."""
    return {name: fields[name] for name in _JUDGEMENT if name in fields}


def _amount(fields: Fields, name: str) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MOST:
        raise Violated(f"{name} is not a number from 0 up")
    return cast("float", value)


def _written(value: object) -> str | None:
    """A number as text: a shell knows only text, so "7" is as good as 7."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    return value.lower() if isinstance(value, str) else str(value)


def _brief(value: object) -> str:
    return str(sanitise(value, max_bytes=_SHOWN_BYTES, scrub=redact))
