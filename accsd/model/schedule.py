"""Schedules as users write them, in a file or as options of a command, and what their times are made from.

Whatever is wrong with one is said as ScheduleInvalid, before anything is written. What only the database knows (that
the workflow is there, that a calendar is) the caller checks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Annotated, Any, Final, Literal, Self

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from accsd.errors import InvalidValue, Place, ScheduleInvalid
from accsd.planning.recurrence import (
    Calendar,
    Rule,
    Zone,
    calendar_from_list,
    instant_of,
    parse_rule,
    parse_time,
    zone_rules,
)
from accsd.values.json import MAX_DEPTH, is_too_deep, sanitise
from accsd.values.units import parse_duration
from accsd.values.validation import problems

KINDS: Final = {"cron": "cron", "rrule": "rrule", "at": "once", "every": "interval"}  # field → kind
MAX_OPTIONS_BYTES: Final = 256 * 1024
_LARGEST: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ScheduleTiming:
    """What the times of a schedule are made from; `calendars` holds the entries and zones of
    those that it names."""

    id: str
    kind: str
    expr: str
    timezone: str
    created_at: datetime
    anchor: datetime | None = None
    start_at: datetime | None = None
    end_at: datetime | None = None
    spread: timedelta | None = None
    exclude: Sequence[str] = ()
    only_on: Sequence[str] = ()
    calendars: Mapping[str, Mapping[str, Any]] | None = None

    def rule(self, spread: timedelta = timedelta(0)) -> Rule:
        """`spread` is for schedules that say nothing of it. UserError says what is wrong."""
        return parse_rule(
            self.kind,
            self.expr,
            self.timezone,
            schedule_id=self.id,
            created_at=self.created_at,
            anchor=self.anchor,
            start_at=self.start_at,
            end_at=self.end_at,
            spread=spread if self.spread is None else self.spread,
            exclude=self._calendars(self.exclude),
            only_on=self._calendars(self.only_on),
        )

    def _calendars(self, names: Sequence[str]) -> list[Calendar]:
        known = self.calendars or {}
        return [
            calendar_from_list(
                name, known[name]["entries"], zone_rules().zone(zone) if (zone := known[name]["timezone"]) else None
            )
            for name in names
            if name in known
        ]


def _as_text(written: Any) -> Any:
    """YAML reads times by itself."""
    return written.isoformat() if isinstance(written, date) else written


def _interval(written: Any) -> Any:
    is_number = isinstance(written, int | float) and not isinstance(written, bool)
    return f"{written:g}s" if is_number else written


def _duration(written: Any) -> Any:
    return None if written is None else parse_duration(written)


def _moment(written: Any) -> Any:
    return parse_time(written) if isinstance(written, str) else written


def _listed(written: Any) -> Any:
    return [written] if isinstance(written, str) else written


def _storable(options: dict[str, Any]) -> dict[str, Any]:
    if is_too_deep(options):
        raise InvalidValue(f"is nested deeper than {MAX_DEPTH} levels")
    if sanitise(options, max_bytes=16 * MAX_OPTIONS_BYTES) != options:
        raise InvalidValue("holds a value that PostgreSQL cannot keep as JSON, such as NaN, a date or \\u0000")
    if len(orjson.dumps(options)) > MAX_OPTIONS_BYTES:
        raise InvalidValue(f"is larger than {MAX_OPTIONS_BYTES // 1024} KiB")
    return options


def _run_key(key: str | None) -> str | None:
    if key is not None and key.startswith("schedule:"):
        raise InvalidValue('begins with "schedule:", as the keys that schedules have by themselves')
    return key


Name = Annotated[str, Field(min_length=1, max_length=200)]
Expression = Annotated[Annotated[str, Field(min_length=1, max_length=20_000)] | None, BeforeValidator(_as_text)]
Duration = Annotated[timedelta | None, BeforeValidator(_duration)]
Spread = Annotated[Annotated[timedelta, Field(le=timedelta(days=366))] | None, BeforeValidator(_duration)]
Span = Annotated[Annotated[timedelta, Field(gt=timedelta(0))] | None, BeforeValidator(_duration)]
Moment = Annotated[datetime | None, BeforeValidator(_moment)]
Calendars = Annotated[list[Name], BeforeValidator(_listed)]


class ScheduleDef(BaseModel):
    """One schedule: when (one of cron, rrule, every, at), which workflow, and what happens otherwise. Times without an
    offset are local to its zone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    title: str | None = None
    description: str | None = None
    workflow: Name
    version: int | None = Field(default=None, ge=1, le=_LARGEST)
    cron: Expression = None
    rrule: Expression = None
    at: Expression = None
    every: Annotated[Expression, BeforeValidator(_interval)] = None
    timezone: Annotated[str, Field(min_length=1, max_length=100)] = "UTC"
    options: Annotated[dict[str, Any], AfterValidator(_storable)] = Field(default_factory=dict)
    priority: int = Field(default=0, ge=-_LARGEST - 1, le=_LARGEST)
    missed: Literal["skip", "one", "all"] = "one"
    grace: Annotated[timedelta, BeforeValidator(_duration), Field(le=timedelta(days=366))] = timedelta(seconds=60)
    catch_up: Duration = None
    catch_up_max: int = Field(default=100, ge=1, le=1000)
    overlap: Literal["allow", "skip", "queue", "queue_all", "cancel"] = "skip"
    run_key: Annotated[Name | None, AfterValidator(_run_key)] = None
    spread: Spread = None
    exclude: Calendars = Field(default_factory=list)
    only_on: Calendars = Field(default_factory=list)
    start_at: Moment = None
    end_at: Moment = None
    max_runs: int | None = Field(default=None, ge=1, le=_LARGEST)
    pause_after: int | None = Field(default=None, ge=1, le=100)
    pause_for: Span = None
    anchor: Moment = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        given = [field for field in KINDS if getattr(self, field) is not None]
        if len(given) != 1:
            raise InvalidValue(f"says when by one of {', '.join(KINDS)}" + (f", not {len(given)}" if given else ""))
        if self.overlap == "allow" and self.run_key is not None:
            raise InvalidValue("has a run_key, which limits how many run at once, and overlap allow, which does not")
        if self.pause_for is not None and self.pause_after is None:
            raise InvalidValue("has pause_for but no pause_after that would pause it")
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _sound_or_refused(cls, document: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(document)
        except ValidationError as error:
            found = problems(error, cls)
            complaints = [(problem.place, _told(document, problem.what, problem.place)) for problem in found]
            said = "; ".join(sentence for _, sentence in complaints)
            raise ScheduleInvalid(f"{_title(document)}: {said}", complaints=complaints) from None

    @property
    def kind(self) -> str:
        return next(kind for field, kind in KINDS.items() if getattr(self, field) is not None)

    @property
    def expr(self) -> str:
        return next(expr for field in KINDS if (expr := getattr(self, field)) is not None)

    def columns(self) -> dict[str, Any]:
        """The definition under the names of its columns. The anchor is among them only where one was written: the
        planner sets it otherwise."""
        plain = self.model_dump(exclude={*KINDS, *(() if "anchor" in self.model_fields_set else ("anchor",))})
        zone = zone_rules().zone(self.timezone)
        times = {field: _instant(getattr(self, field), zone) for field in ("start_at", "end_at")}
        return plain | times | {"schedule_kind": self.kind, "schedule_expr": self.expr}

    def timing(
        self,
        *,
        id: str,  # noqa: A002 - as everywhere
        created_at: datetime,
        anchor: datetime | None,
        calendars: Mapping[str, Mapping[str, Any]],
    ) -> ScheduleTiming:
        """For a schedule with this id, made then. An anchor that the definition names goes before the given one."""
        columns = self.columns()
        return ScheduleTiming(
            id=id,
            kind=self.kind,
            expr=self.expr,
            timezone=self.timezone,
            created_at=created_at,
            anchor=self.anchor or anchor,
            start_at=columns["start_at"],
            end_at=columns["end_at"],
            spread=self.spread,
            exclude=self.exclude,
            only_on=self.only_on,
            calendars=calendars,
        )


def for_the_database(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns as accs.put_schedule takes them."""
    return {name: _encoded(value) for name, value in columns.items()}


def _encoded(value: Any) -> Any:
    match value:
        case timedelta():
            return f"{value.total_seconds():.6f} seconds"
        case datetime():
            return value.isoformat()
        case _:
            return value


def _instant(written: datetime | None, zone: Zone) -> datetime | None:
    if written is None or written.tzinfo is not None:
        return written
    return instant_of(written, zone)


def _title(document: Any) -> str:
    name: Any = document.get("name") if isinstance(document, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return f'schedule "{name[:200]}"' if isinstance(name, str) and name else "schedule"


def _told(document: Any, what: str, place: Place) -> str:
    where = ".".join(str(part) for part in place)
    return f"{where} {what}" if where else what
