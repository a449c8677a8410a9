"""The jobs of a rehearsal, and traces of them: JSON lines or CSV, one job a line.

Times are seconds from the beginning, or durations such as 1h30m. `due` is for a job that was submitted ahead.
"""

import csv
import io
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from accsd.errors import InvalidValue, NotFound
from accsd.simulation.fleet import Label
from accsd.values.units import parse_duration
from accsd.values.validation import did_you_mean, problems

_COLUMNS: Final = ("submitted", "due", "service", "requires", "duration")

Lane = tuple[str, tuple[tuple[str, Label], ...]]


@dataclass(frozen=True, slots=True)
class TraceJob:
    """`number` is its place in the global order. Nobody but the machine knows `duration` before it is over."""

    number: int
    service: str
    submitted: float
    duration: float
    due: float | None = None
    requires: dict[str, Label] = field(default_factory=dict[str, Label])

    @property
    def wanted_at(self) -> float:
        return self.submitted if self.due is None else max(self.submitted, self.due)

    @property
    def lane(self) -> Lane:
        """Jobs of one lane want the same kind of machine."""
        return self.service, tuple(sorted(self.requires.items()))


def _seconds(written: object) -> float:
    return parse_duration(written).total_seconds()


def _requires(written: object) -> object:
    """In CSV: gpu=true;zone=eu."""
    if not isinstance(written, str):
        return {} if written is None else written
    pairs = [part.partition("=") for part in written.split(";") if part.strip()]
    return {name.strip(): _plain(value.strip()) for name, _, value in pairs}


def _plain(text: str) -> Label:
    if text in ("true", "false"):
        return text == "true"
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number):
        return text
    return int(number) if number.is_integer() else number


_Seconds = Annotated[float, BeforeValidator(_seconds)]
_MaybeSeconds = Annotated[
    float | None, BeforeValidator(lambda written: None if written in (None, "") else _seconds(written))
]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid")

    submitted: _Seconds
    service: str = Field(min_length=1)
    duration: _Seconds
    due: _MaybeSeconds = None
    requires: Annotated[dict[str, Label], BeforeValidator(_requires)] = Field(default_factory=dict)


def read_trace(path: Path) -> list[TraceJob]:
    """In the order of submission. A wrong line is refused with its number and what is wrong with it."""
    if not path.is_file():
        raise NotFound(
            f"there is no file {path}", hint="`accsd simulate FLEET --write-trace FILE` writes one to look at"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(f"{path} can't be read: {error}") from error
    rows = _csv(path, text) if path.suffix == ".csv" else _json_lines(path, text)
    lines = sorted((_checked(path, number, row) for number, row in rows), key=lambda line: line.submitted)
    if not lines:
        raise InvalidValue(f"{path} has no jobs", hint="one job a line; docs/simulation.md says how")
    return [
        TraceJob(number, line.service, line.submitted, line.duration, line.due, line.requires)
        for number, line in enumerate(lines)
    ]


def write_trace(path: Path, jobs: Iterable[TraceJob]) -> None:
    try:
        with path.open("wb") as file:
            file.writelines(orjson.dumps(_document(job)) + b"\n" for job in jobs)
    except OSError as error:
        raise InvalidValue(f"{path} can't be written: {error.strerror}") from error


def _document(job: TraceJob) -> dict[str, Any]:
    document = {"submitted": job.submitted, "service": job.service, "duration": job.duration}
    due = {} if job.due is None else {"due": job.due}
    return document | due | ({"requires": job.requires} if job.requires else {})


def _json_lines(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield number, orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise InvalidValue(f"{path}:{number}: not JSON: {error.msg}") from None


def _csv(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    rows = csv.reader(io.StringIO(text))
    header = [name.strip() for name in next(rows, list[str]())]
    for name in header:
        if name not in _COLUMNS:
            raise InvalidValue(f'{path}:1: the column "{name}" is unknown{did_you_mean(name, _COLUMNS)}')
    for row in rows:
        if len(row) not in (0, len(header)):
            raise InvalidValue(f"{path}:{rows.line_num}: {len(row)} fields, and the first line names {len(header)}")
        if row:
            yield rows.line_num, dict(zip(header, row, strict=True))


def _checked(path: Path, number: int, row: Any) -> _Line:
    try:
        return _Line.model_validate(row)
    except ValidationError as error:
        found = "; ".join(str(problem) for problem in problems(error, _Line))
        raise InvalidValue(f"{path}:{number}: {found}") from None
