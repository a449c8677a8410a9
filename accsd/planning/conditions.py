"""What a condition's document means, and how its samples are judged. Pure: the planner checks documents with it; SQL
judges (schema/conditions.sql), and the tests hold it against `judge`.

    {"source": {"sql": "SELECT count(*) FROM orders"}, "every": "30s", "above": 100, "clear_below": 80, "for": "5m"}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, cast
from urllib.parse import urlsplit

from accsd.errors import InvalidValue
from accsd.planning.subscriptions import check_topic
from accsd.values.units import parse_duration
from accsd.values.validation import did_you_mean

Value = float | bool
Level = Literal["clear", "raised"]
State = Literal["clear", "rising", "raised", "falling", "unknown"]

LEAST_EVERY: Final = timedelta(seconds=5)
BUILTINS: Final = ("waiting", "oldest_wait", "dead_letters", "node_away")
MEMBERS: Final = (
    *("source", "every", "expr", "above", "below", "is", "samples", "for", "clear_above", "clear_below"),
    *("clear_samples", "repeat", "stale", "on_unknown", "fire_initially"),
)
_LONGEST_TEXT: Final = 20_000
_MOST_SAMPLES: Final = 100


@dataclass(frozen=True, slots=True)
class SampleSource:
    """Where values come from. `outside`: somebody reports them. `about` is the statement, the address, the service,
    the node or the topic; `path` leads to the value in an answer of JSON."""

    kind: str = "outside"
    about: str | None = None
    path: tuple[str, ...] = ()
    measure: str | None = None  # of kind builtin: one of BUILTINS


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    source: SampleSource
    every: timedelta | None
    expr: str | None
    judgement: "ConditionJudgement"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionJudgement:
    """Raised above, below or at a value; clear on the other side, or beyond `clears`."""

    above: float | None = None
    below: float | None = None
    equals: Value | None = None
    clears: float | None = None
    samples: int = 1
    lasts: timedelta = timedelta(0)
    clear_samples: int = 1
    repeat: timedelta | None = None
    stale: timedelta | None = None
    on_unknown: str = "keep"
    fire_initially: bool = False

    def raises(self, value: Value) -> bool:
        if self.above is not None:
            return value > self.above
        if self.below is not None:
            return value < self.below
        return value == self.equals and isinstance(value, bool) == isinstance(self.equals, bool)

    def clears_at(self, value: Value) -> bool:
        if self.raises(value):
            return False
        if self.clears is None:
            return True
        return value < self.clears if self.above is not None else value > self.clears


def parse_condition(document: Mapping[str, Any] | None) -> Condition:
    """The condition that a document means; InvalidValue says what is wrong with it."""
    given = {name: value for name, value in (document or {}).items() if value is not None}
    for name in given:
        if name not in MEMBERS:
            raise InvalidValue(f'a condition has no "{name}"{did_you_mean(name, MEMBERS)}')
    source = _source(given.get("source", "outside"))
    every = _duration(given, "every")
    if source.kind != "outside":
        if every is None:
            raise InvalidValue("a condition with a probe says how often it is measured", hint='"every": "30s"')
        if every < LEAST_EVERY:
            raise InvalidValue(f"a condition is measured every {LEAST_EVERY.total_seconds():g} s at most")
    expr = _text(given["expr"], "expr") if "expr" in given else None
    if expr is not None and source.kind == "outside":
        raise InvalidValue("a sample from outside is its value: expr is for probes")
    return Condition(source=source, every=every, expr=expr, judgement=_judgement(given, every))


def _source(given: object) -> SampleSource:
    if given == "outside":
        return SampleSource()
    kinds = ("sql", "http", "builtin", "silence")
    if not isinstance(given, Mapping) or len(cast("Mapping[str, Any]", given)) != 1:
        raise InvalidValue(f'a source is "outside", or an object with one of {", ".join(kinds)}')
    ((kind, about),) = cast("Mapping[str, Any]", given).items()
    match kind:
        case "sql":
            return SampleSource(kind, _text(about, kind))
        case "silence":
            check_topic(_text(about, kind))
            return SampleSource(kind, about)
        case "http":
            return _http(about)
        case "builtin":
            return _builtin(about)
        case _:
            raise InvalidValue(f'there is no source "{kind}"{did_you_mean(kind, kinds)}')


def _http(given: object) -> SampleSource:
    about = {"url": given} if isinstance(given, str) else given
    if not isinstance(about, Mapping) or not {"url"} <= set(cast("Mapping[str, Any]", about)) <= {"url", "path"}:
        raise InvalidValue('a source of http has a "url", and a "path" to the value in its answer')
    known = cast("Mapping[str, Any]", about)
    url = _text(known["url"], "url")
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise InvalidValue(f'"{url}" is no address of http or https')
    path = tuple(_text(known["path"], "path").split(".")) if "path" in known else ()
    return SampleSource("http", url, path)


def _builtin(given: object) -> SampleSource:
    about = {given: None} if isinstance(given, str) else given
    if not isinstance(about, Mapping) or len(cast("Mapping[str, Any]", about)) != 1:
        raise InvalidValue(f"a builtin source is one of {', '.join(BUILTINS)}, with what it is about")
    ((measure, of),) = cast("Mapping[str, Any]", about).items()
    if measure == "disk":
        raise InvalidValue(
            "accsd does not know the disks of its nodes: let a probe of sql or http say it, or report it"
        )
    if measure not in BUILTINS:
        raise InvalidValue(f'accsd does not measure "{measure}"{did_you_mean(measure, BUILTINS)}')
    if of is None and measure != "dead_letters":
        raise InvalidValue(f"{measure} is of a {'node' if measure == 'node_away' else 'service'}: name it")
    return SampleSource("builtin", None if of is None else _text(of, measure), measure=measure)


def _judgement(given: Mapping[str, Any], every: timedelta | None) -> ConditionJudgement:
    thresholds = [name for name in ("above", "below", "is") if name in given]
    if len(thresholds) != 1:
        raise InvalidValue("a condition says when it is raised: above, below or is, and one of them")
    clears = {"above": "clear_below", "below": "clear_above"}.get(thresholds[0])
    if wrong := [name for name in ("clear_above", "clear_below") if name in given and name != clears]:
        raise InvalidValue(f"{wrong[0]} does not go with {thresholds[0]}" + (f": {clears} does" if clears else ""))
    judgement = ConditionJudgement(
        above=_number(given, "above"),
        below=_number(given, "below"),
        equals=_value(given.get("is")),
        clears=None if clears is None else _number(given, clears),
        samples=_count(given, "samples"),
        lasts=_duration(given, "for") or timedelta(0),
        clear_samples=_count(given, "clear_samples"),
        repeat=_duration(given, "repeat"),
        stale=_duration(given, "stale") or (None if every is None else 3 * every),
        on_unknown=given.get("on_unknown", "keep"),
        fire_initially=given.get("fire_initially", False),
    )
    if judgement.clears is not None and judgement.raises(judgement.clears):
        raise InvalidValue(f"{clears} lies beyond {thresholds[0]}: it would be raised and clear at once")
    if judgement.on_unknown not in ("keep", "raise", "clear"):
        raise InvalidValue("on_unknown is keep, raise or clear")
    if not isinstance(cast("object", judgement.fire_initially), bool):
        raise InvalidValue("fire_initially is true or false")
    if judgement.on_unknown != "keep" and judgement.stale is None:
        raise InvalidValue("on_unknown needs to know when a sample is missing: say every, or stale")
    if judgement.stale is not None and every is not None and judgement.stale < every:
        raise InvalidValue("stale is shorter than every: it would be unknown between two samples")
    return judgement


def _number(given: Mapping[str, Any], name: str) -> float | None:
    found = given.get(name)
    if found is not None and (isinstance(found, bool) or not isinstance(found, int | float)):
        raise InvalidValue(f"{name} is a number")
    return found


def _value(found: object) -> Value | None:
    if found is not None and not isinstance(found, bool | int | float):
        raise InvalidValue("is is a number, true or false")
    return found


def _count(given: Mapping[str, Any], name: str) -> int:
    found = given.get(name, 1)
    if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= _MOST_SAMPLES:
        raise InvalidValue(f"{name} is a number from 1 to {_MOST_SAMPLES}")
    return found


def _duration(given: Mapping[str, Any], name: str) -> timedelta | None:
    if name not in given:
        return None
    try:
        return parse_duration(given[name])
    except InvalidValue as error:
        raise InvalidValue(f"{name}: {error.message}") from None


def _text(found: object, name: str) -> str:
    if not isinstance(found, str) or not 1 <= len(found) <= _LONGEST_TEXT:
        raise InvalidValue(f"{name} is a text of 1 to {_LONGEST_TEXT} characters")
    return found


# The judgement of one sample after the other, as SQL makes it


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a condition. `crossed`: the last step would fire."""

    began: datetime
    state: State = "unknown"
    level: Level | None = None
    streak: int = 0
    streak_since: datetime | None = None
    last_at: datetime | None = None
    raised_at: datetime | None = None
    crossed: bool = field(default=False)


def judge(was: Standing, how: ConditionJudgement, value: Value, at: datetime) -> Standing:
    """One sample with a value."""
    late = was.last_at is not None and how.stale is not None and at - was.last_at > how.stale
    now = replace(was, streak=0 if late else was.streak, streak_since=None if late else was.streak_since)
    now = replace(now, last_at=at, crossed=False)
    if was.level is None and not how.fire_initially:
        level: Level = "raised" if how.raises(value) else "clear"
        return _settled(now, level, raised_at=at if level == "raised" else was.raised_at)
    level = was.level or "clear"
    speaks = how.raises(value) if level == "clear" else how.clears_at(value)
    if not speaks:
        again = level == "raised" and how.repeat is not None and was.raised_at is not None
        if again and at - cast("datetime", was.raised_at) >= cast("timedelta", how.repeat):
            return _settled(now, level, raised_at=at, crossed=True)
        return _settled(now, level, raised_at=was.raised_at)
    now = replace(now, level=level, streak=now.streak + 1, streak_since=now.streak_since or at)
    since = cast("datetime", now.streak_since)
    if level == "clear" and now.streak >= how.samples and at - since >= how.lasts:
        return _settled(now, "raised", raised_at=at, crossed=True)
    if level == "raised" and now.streak >= how.clear_samples:
        return _settled(now, "clear", raised_at=was.raised_at)
    return replace(now, state="rising" if level == "clear" else "falling")


def miss(was: Standing, how: ConditionJudgement, now: datetime) -> Standing:
    """Time has passed. Without a value for too long the condition is unknown."""
    was = replace(was, crossed=False)
    if how.stale is None or now < (at := (was.last_at or was.began) + how.stale):
        return was
    if how.on_unknown == "keep":
        return replace(was, state="unknown", streak=0, streak_since=None)
    if how.on_unknown == "clear":
        return _settled(was, "clear", raised_at=was.raised_at)
    crossed = was.level != "raised"
    return _settled(was, "raised", raised_at=at if crossed else was.raised_at, crossed=crossed)


def _settled(now: Standing, level: Level, *, raised_at: datetime | None, crossed: bool = False) -> Standing:
    return replace(
        now, state=level, level=level, streak=0, streak_since=None, raised_at=raised_at, crossed=crossed
    )  # fmt: skip
