"""The jobs of a rehearsal, and traces of them: JSON lines or CSV, one job a line; in JSON lines also schedules, whose
due times become jobs.

Times are seconds from the beginning, or durations such as 1h30m. `due` is for a job that was submitted ahead.
"""

import csv
import io
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from accsd.errors import InvalidValue, NotFound, UserError
from accsd.model.schedule import ScheduleDef
from accsd.planning.recurrence import next_occurrences
from accsd.simulation.fleet import Label
from accsd.values.units import parse_duration
from accsd.values.validation import did_you_mean, problems

_COLUMNS: Final = ("submitted", "due", "service", "requires", "duration")

MONDAY: Final = datetime(2026, 1, 5, tzinfo=UTC)
_WEEK: Final = timedelta(days=7)
_PAGE: Final = 1000
_MOST: Final = 1_000_000  # jobs of one schedule

Lane = tuple[str, tuple[tuple[str, Label], ...], str | None]


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """One due time of a schedule, which all steps of its job share. Unless it overlaps, it is skipped while an earlier
    run of the schedule is open."""

    schedule: str
    nth: int
    overlaps: bool = False


@dataclass(frozen=True, slots=True)
class TraceJob:
    """`number` is its place in the global order. Nobody but the machine knows `duration` before it is over. `after` are
    the numbers of the steps that must end first; such a step is submitted when they have ended. Of a `key` only so many
    run at once as the world says. `on` is the machine that it runs on already when the rehearsal begins."""

    number: int
    service: str
    submitted: float
    duration: float
    due: float | None = None
    requires: dict[str, Label] = field(default_factory=dict[str, Label])
    run: ScheduledRun | None = None
    after: tuple[int, ...] = ()
    key: str | None = None
    on: str | None = None
    delay: float = 0.0  # of such a step, when those before it have ended

    @property
    def wanted_at(self) -> float:
        return self.submitted if self.due is None else max(self.submitted, self.due)

    @property
    def lane(self) -> Lane:
        """Jobs of one lane want the same kind of machine, and wait for the same key."""
        return self.service, tuple(sorted(self.requires.items())), self.key


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


class _Step(BaseModel):
    model_config = ConfigDict(extra="forbid")

    key: str = Field(default="", max_length=100)
    service: str = Field(min_length=1)
    duration: _Seconds
    requires: dict[str, Label] = Field(default_factory=dict)
    depends_on: list[str] = Field(default_factory=list)


class _Steps(BaseModel):
    steps: list[_Step] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class TraceSchedule:
    """A schedule, and the steps of the workflow that it starts, each after those that it depends on."""

    definition: ScheduleDef
    steps: tuple[_Step, ...]

    def dues(self, begin: datetime, span: timedelta) -> list[float]:
        """When it is due after `begin`, in seconds from there; by the planner's own rules."""
        timing = self.definition.timing(id=self.definition.name, created_at=begin, anchor=None, calendars={})
        rule, after, found = timing.rule(), begin, list[float]()
        while True:
            page, exhausted = next_occurrences(rule, after, _PAGE)
            ahead = [each for each in page if each.due_at < begin + span]
            found += [(each.due_at - begin).total_seconds() for each in ahead if each.fires]
            if len(found) * len(self.steps) > _MOST:
                raise InvalidValue(f"is due more than {_MOST // len(self.steps)} times", hint="rehearse fewer days")
            if exhausted or len(ahead) < len(page) or not page:
                return found[: self.definition.max_runs]
            after = page[-1].due_at

    def jobs(self, begin: datetime, span: timedelta, first: int) -> Iterator[TraceJob]:
        """Numbered from `first`. Of a schedule the agenda has one row, its next due time: so each run is known from the
        moment at which the one before it was due."""
        known_at = 0.0
        for nth, due in enumerate(self.dues(begin, span)):
            run = ScheduledRun(self.definition.name, nth, self.definition.overlap != "skip")
            number = {step.key: first + nth * len(self.steps) + i for i, step in enumerate(self.steps)}
            for step in self.steps:
                after = tuple(number[key] for key in step.depends_on)
                submitted, due_at = (due, None) if after else (known_at, due)
                yield TraceJob(
                    number[step.key], step.service, submitted, step.duration, due_at, step.requires, run, after
                )
            known_at = due


def read_trace(path: Path, begin: datetime = MONDAY, span: timedelta | None = None) -> list[TraceJob]:
    """In the order of submission. Second 0 is `begin`; schedules go on for `span`, by default until the last job of the
    trace is wanted, or for a week where it has schedules only. A wrong line is refused with its number and what is
    wrong with it."""
    if not path.is_file():
        raise NotFound(
            f"there is no file {path}", hint="`accsd simulate FLEET --write-trace FILE` writes one to look at"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(f"{path} can't be read: {error}") from error
    rows = _csv(path, text) if path.suffix == ".csv" else _json_lines(path, text)
    lines, schedules = list[_Line](), dict[int, TraceSchedule]()
    for number, row in rows:
        if isinstance(row, dict) and "schedule" in row:
            schedules[number] = _checked_schedule(path, number, row)  # pyright: ignore[reportUnknownArgumentType]
        else:
            lines.append(_checked(path, number, row))
    lines.sort(key=lambda line: line.submitted)
    jobs = [
        TraceJob(number, line.service, line.submitted, line.duration, line.due, line.requires)
        for number, line in enumerate(lines)
    ]
    if span is None:
        span = timedelta(seconds=max(job.wanted_at for job in jobs)) if jobs else _WEEK
    for number, schedule in schedules.items():
        try:
            jobs += schedule.jobs(begin, span, len(jobs))
        except UserError as error:
            raise InvalidValue(f"{path}:{number}: {error}", hint=error.hint) from None
    if not jobs:
        raise InvalidValue(f"{path} has no jobs", hint="one job a line; docs/simulation.md says how")
    return _in_order(jobs) if schedules else jobs


def _in_order(jobs: list[TraceJob]) -> list[TraceJob]:
    """The job of a schedule is made when it is due: that is its place in the global order."""
    ordered = sorted(jobs, key=lambda job: job.submitted if job.run is None else job.wanted_at)
    place = {job.number: number for number, job in enumerate(ordered)}
    return [
        replace(job, number=place[job.number], after=tuple(place[number] for number in job.after)) for job in ordered
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


def _checked_schedule(path: Path, number: int, row: dict[str, Any]) -> TraceSchedule:
    """The line has the fields of a schedule in a file, and `steps`, or service, duration and requires for one step."""
    own = {name: row[name] for name in ("service", "duration", "requires") if name in row}
    timed = {name: value for name, value in row.items() if name not in (*own, "schedule", "steps")}
    if own and "steps" in row:
        raise InvalidValue(f"{path}:{number}: a schedule has steps, or a service and a duration for its only one")
    try:
        steps = _Steps.model_validate({"steps": row.get("steps", [own])}).steps
        definition = ScheduleDef.model_validate({"name": row["schedule"], "workflow": "rehearsed", **timed})
        if calendars := [*definition.exclude, *definition.only_on]:
            raise InvalidValue(f'names the calendar "{calendars[0]}", and a rehearsal has none')
        return TraceSchedule(definition, tuple(_sorted_steps(steps)))
    except ValidationError as error:
        found = "; ".join(str(problem) for problem in problems(error, _Steps))
        raise InvalidValue(f"{path}:{number}: {found}") from None
    except UserError as error:
        raise InvalidValue(f"{path}:{number}: {error}", hint=error.hint) from None


def _sorted_steps(steps: list[_Step]) -> Iterator[_Step]:
    """Each after those that it depends on."""
    try:
        ordered = list(TopologicalSorter({step.key: step.depends_on for step in steps}).static_order())
    except CycleError as error:
        raise InvalidValue(f"has steps that wait for each other: {', '.join(error.args[1])}") from None
    by_key = {step.key: step for step in steps}
    if len(by_key) < len(steps):
        raise InvalidValue("has two steps with the same key")
    if unknown := [key for key in ordered if key not in by_key]:
        raise InvalidValue(f'has no step "{unknown[0]}"{did_you_mean(unknown[0], by_key)}')
    return (by_key[key] for key in ordered)
