"""What the schedules of kind event say: checked before they listen, and evaluated for each event. Pure."""

import hashlib
from collections.abc import Mapping
from re import compile as pattern
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from accsd.db.topics import EventToSettle, Subscription
from accsd.errors import ConfigError, InvalidValue, UserError
from accsd.values.units import parse_duration

if TYPE_CHECKING:
    from accsd.expressions import Context, Names

_LONGEST_KEY: Final = 200
_TOPIC: Final = pattern(r"([A-Za-z0-9_-]+\.){0,9}([A-Za-z0-9_-]+|\*\*?)")
_LONGEST_TOPIC: Final = 200
_GATHERS: Final = frozenset({"by", "quiet", "at_most", "size"})


# One event and one schedule


def names() -> "Names":
    """What the expressions of a schedule of kind event may refer to."""
    from accsd.expressions import Names

    return Names(values=("event", "schedule"), moments=("event.at",))


def verdict_of(subscription: Subscription, each: EventToSettle) -> dict[str, Any]:
    """What was found, as accs.settle_events takes it. What is wrong with an expression is said, and no run."""
    found: dict[str, Any] = {
        "schedule_id": str(each.schedule_id),
        "revision": subscription.revision,
        "event_id": each.event_id,
        "verdict": "run",
    }
    if each.topic is None:
        return found  # it is not kept any more: SQL says so
    step = "filter_error"
    try:
        context = _context(subscription, each)
        if subscription.filter is not None and not _passes(subscription.filter, context):
            return found | {"verdict": "filtered"}
        step = "refused"
        if subscription.gather is not None and "by" in subscription.gather:
            found["gathering"] = _gathering(str(subscription.gather["by"]), context)
        return found | {"options": _options(subscription.options, context)}
    except ConfigError:
        raise
    except UserError as error:
        if step == "filter_error" and subscription.filter is None:
            step = "refused"
        return found | {"verdict": step, "message": _told(error)}


def _context(subscription: Subscription, each: EventToSettle) -> "Context":
    from accsd.expressions import Context

    event = {
        "id": each.event_id,
        "topic": each.topic,
        "payload": each.payload,
        "key": each.key,
        "source": each.source,
        "occurred_at": each.occurred_at,
        "at": each.at,
        "job_id": None if each.job_id is None else str(each.job_id),
        "depth": each.depth,
    }
    return Context({"event": event, "schedule": subscription.name}, names())


def _passes(expression: str, context: "Context") -> bool:
    from accsd.expressions import evaluate_condition

    return evaluate_condition(expression, context)


def _gathering(expression: str, context: "Context") -> str:
    """The value of `by` as text: equal values are gathered together."""
    from accsd.expressions import evaluate

    text = orjson.dumps(evaluate(expression, context), option=orjson.OPT_SORT_KEYS).decode()
    return text if len(text) <= _LONGEST_KEY else hashlib.sha256(text.encode()).hexdigest()


def _options(options: Mapping[str, Any], context: "Context") -> Any:
    from accsd.expressions import has_templates, render

    return render(dict(options), context, at=("options",)) if has_templates(dict(options)) else None


def _told(error: UserError) -> str:
    return str(error) if error.hint is None else f"{error} ({error.hint})"


# Before it is written


def check_subscription(
    topic: str, *, condition: str | None = None, gather: Mapping[str, Any] | None = None, options: Mapping[str, Any]
) -> None:
    """Raises UserError where a schedule of kind event can't work: its topic, its expressions, its windows."""
    if len(topic) > _LONGEST_TOPIC or _TOPIC.fullmatch(topic) is None:
        raise InvalidValue(
            f'"{topic}" is no topic to listen to',
            hint="write 1 to 10 segments of letters, digits, _ and -, joined by dots; the last may be * or **",
        )
    if gather is not None:
        _check_gather(gather)
    _check_expressions(condition, gather, options)


def _check_gather(gather: Mapping[str, Any]) -> None:
    if unknown := sorted(set(gather) - _GATHERS):
        raise InvalidValue(f"gather has no {', '.join(unknown)}", hint="it has by, quiet, at_most and size")
    if not {"quiet", "at_most", "size"} & set(gather):
        raise InvalidValue("gather does not say when it ends", hint="add quiet, at_most or size")
    for name in ("quiet", "at_most"):
        if name in gather:
            try:
                parse_duration(gather[name])
            except InvalidValue as error:
                raise InvalidValue(f"gather.{name}: {error.message}") from None
    size = gather.get("size", 1)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise InvalidValue("gather.size is a whole number above 0")
    if not isinstance(gather.get("by", ""), str):
        raise InvalidValue("gather.by is an expression")


def _check_expressions(condition: str | None, gather: Mapping[str, Any] | None, options: Mapping[str, Any]) -> None:
    from accsd.expressions import check_condition, check_document, check_expression, has_templates

    found = [] if condition is None else [check_condition(condition, names(), at=("filter",))]
    if gather is not None and "by" in gather:
        found.append(check_expression(cast("str", gather["by"]), names(), at=("gather", "by")))
    if has_templates(dict(options)):
        found.append(check_document(dict(options), names(), at=("options",)))
    problems = [problem for each in found for problem in each.problems]
    if problems:
        where = ".".join(str(part) for part in problems[0].place)
        raise InvalidValue(f"{where}: {problems[0].what}")
