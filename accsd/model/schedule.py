"""Schedules as users write them, in a file or as options of a command, and what their times are made from.

Whatever is wrong with one is said as ScheduleInvalid, before anything is written. What only the database knows (that
the workflow is there, that a calendar is) the caller checks.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Annotated, Any, Final, Literal, Self, cast

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
from accsd.planning.conditions import parse_condition
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
from accsd.planning.subscriptions import check_gather, check_topic
from accsd.values.json import MAX_DEPTH, is_too_deep, sanitise
from accsd.values.units import parse_duration
from accsd.values.validation import problems

TIMES: Final = {"cron": "cron", "rrule": "rrule", "at": "once", "every": "interval"}
KINDS: Final = {**TIMES, "event": "event", "condition": "condition"}  # field → kind
# Fields that mean something to some kinds only
ONLY_FOR: Final[Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(("missed", "grace", "spread", "exclude", "only_on", "anchor"), tuple(TIMES.values())),
    **dict.fromkeys(("filter", "gather", "cooldown_trailing", "reenter"), ("event",)),
    "cooldown": ("event", "condition"),
}
MAX_OPTIONS_BYTES: Final = 256 * 1024
_LARGEST: Final = 2**31 - 1
_LONGEST_NAME: Final = 200
_ID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SENTENCES: Final = ("event", "gather", "condition")  # their checks speak in whole sentences


def is_for(field: str, kind: str) -> bool:
    """Whether a field means something to schedules of a kind."""
    return kind in ONLY_FOR.get(field, (kind,))


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


def _topic(topic: str | None) -> str | None:
    if topic is not None:
        check_topic(topic)
    return topic


def _gather(gather: dict[str, Any] | None) -> dict[str, Any] | None:
    if gather is not None:
        check_gather(_storable(gather))
    return gather


def _condition(document: dict[str, Any] | None) -> dict[str, Any] | None:
    """Its `name` stands beside the members that the judgement has."""
    if document is not None:
        name = document.get("name")
        if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_NAME:
            raise InvalidValue(f"its name is a text of 1 to {_LONGEST_NAME} characters")
        parse_condition(_judged(_storable(document)))
    return document


def _judged(document: Mapping[str, Any]) -> dict[str, Any]:
    return {member: value for member, value in document.items() if member != "name"}


def _run_key(key: str | None) -> str | None:
    if key is not None and key.startswith("schedule:"):
        raise InvalidValue('begins with "schedule:", as the keys that schedules have by themselves')
    return key


def _no_id(name: str) -> str:
    if _ID.fullmatch(name):
        raise InvalidValue("looks like the id of a schedule: give it a name that is no UUID")
    return name


Name = Annotated[str, Field(min_length=1, max_length=_LONGEST_NAME)]
Expression = Annotated[Annotated[str, Field(min_length=1, max_length=20_000)] | None, BeforeValidator(_as_text)]
Duration = Annotated[timedelta | None, BeforeValidator(_duration)]
Spread = Annotated[Annotated[timedelta, Field(le=timedelta(days=366))] | None, BeforeValidator(_duration)]
Span = Annotated[Annotated[timedelta, Field(gt=timedelta(0))] | None, BeforeValidator(_duration)]
Moment = Annotated[datetime | None, BeforeValidator(_moment)]
Calendars = Annotated[list[Name], BeforeValidator(_listed)]


class ScheduleDef(BaseModel):
    """One schedule: when (one of cron, rrule, every, at, event, condition), which workflow, and what happens otherwise.
    Times without an offset are local to its zone. `condition` is its document with a `name`, which is the schedule's
    where none is given."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[Name, AfterValidator(_no_id)]
    title: str | None = None
    description: str | None = None
    workflow: Name
    version: int | None = Field(default=None, ge=1, le=_LARGEST)
    cron: Expression = None
    rrule: Expression = None
    at: Expression = None
    every: Annotated[Expression, BeforeValidator(_interval)] = None
    event: Annotated[Expression, AfterValidator(_topic)] = None
    condition: Annotated[dict[str, Any] | None, AfterValidator(_condition)] = None
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
    filter: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    gather: Annotated[dict[str, Any] | None, AfterValidator(_gather)] = None
    cooldown: Span = None
    cooldown_trailing: bool = False
    reenter: bool = False

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        given = [field for field in KINDS if getattr(self, field) is not None]
        if len(given) != 1:
            raise InvalidValue(f"says when by one of {', '.join(KINDS)}" + (f", not {len(given)}" if given else ""))
        self._check_fields_of_kind()
        if self.overlap == "allow" and self.run_key is not None:
            raise InvalidValue("has a run_key, which limits how many run at once, and overlap allow, which does not")
        if self.pause_for is not None and self.pause_after is None:
            raise InvalidValue("has pause_for but no pause_after that would pause it")
        return self

    def _check_fields_of_kind(self) -> None:
        for field in self.model_dump(exclude_defaults=True):
            if not is_for(field, self.kind):
                kinds = ONLY_FOR[field]
                of = "times" if "cron" in kinds else " and ".join(f"{kind}s" for kind in kinds)
                raise InvalidValue(f"has {field}, which is for schedules of {of}; its kind is {self.kind}")
        if self.cooldown_trailing and self.cooldown is None:
            raise InvalidValue("has cooldown_trailing but no cooldown")

    @model_validator(mode="wrap")
    @classmethod
    def _sound_or_refused(cls, document: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(_with_defaults_of_kind(document))
        except ValidationError as error:
            found = problems(error, cls)
            complaints = [(problem.place, _told(problem.what, problem.place)) for problem in found]
            said = "; ".join(sentence for _, sentence in complaints)
            raise ScheduleInvalid(f"{_title(document)}: {said}", hint=_hint(error), complaints=complaints) from None

    @property
    def kind(self) -> str:
        return next(kind for field, kind in KINDS.items() if getattr(self, field) is not None)

    @property
    def has_times(self) -> bool:
        """Events and conditions have none."""
        return self.kind in TIMES.values()

    @property
    def expr(self) -> str:
        if self.condition is not None:
            return self.condition["name"]
        return next(expr for field in KINDS if (expr := getattr(self, field)) is not None)

    def columns(self) -> dict[str, Any]:
        """The definition under the names of its columns. The anchor is among them only where one was written: the
        planner sets it otherwise."""
        plain = self.model_dump(exclude={*KINDS, *(() if "anchor" in self.model_fields_set else ("anchor",))})
        zone = zone_rules().zone(self.timezone)
        times = {field: _instant(getattr(self, field), zone) for field in ("start_at", "end_at")}
        condition = None if self.condition is None else _judged(self.condition)
        return plain | times | {"schedule_kind": self.kind, "schedule_expr": self.expr, "condition": condition}

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


def _with_defaults_of_kind(document: Any) -> Any:
    """Each event has its run unless somebody says otherwise; a condition has the name of its schedule."""
    if not isinstance(document, dict):
        return document
    given = cast("dict[str, Any]", document)
    if given.get("event") is not None and given.get("overlap") is None:
        given = given | {"overlap": "allow" if given.get("run_key") is None else "queue_all"}
    if isinstance(condition := given.get("condition"), dict):
        given = given | {"condition": {"name": given.get("name"), **cast("dict[str, Any]", condition)}}
    return given


def _title(document: Any) -> str:
    name: Any = document.get("name") if isinstance(document, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return f'schedule "{name[:200]}"' if isinstance(name, str) and name else "schedule"


def _told(what: str, place: Place) -> str:
    where = ".".join(str(part) for part in place)
    if not where or what.startswith(f"{where} "):
        return what
    return f"{where}: {what}" if place[0] in _SENTENCES else f"{where} {what}"


def _hint(error: ValidationError) -> str | None:
    """The first that one of our own checks gave."""
    causes = (each.get("ctx", {}).get("error") for each in error.errors(include_url=False, include_input=False))
    return next((cause.hint for cause in causes if isinstance(cause, InvalidValue) and cause.hint), None)
