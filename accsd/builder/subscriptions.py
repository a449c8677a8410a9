"""What the schedules of kind event say, evaluated for each event. Pure."""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson

from accsd.db.topics import EventToSettle, TopicSubscription
from accsd.errors import ConfigError, UserError

if TYPE_CHECKING:
    from accsd.expressions import Context

_LONGEST_KEY: Final = 200


def verdict_of(subscription: TopicSubscription, each: EventToSettle) -> dict[str, Any]:
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


def _context(subscription: TopicSubscription, each: EventToSettle) -> "Context":
    from accsd.expressions import Context
    from accsd.expressions.schedules import EVENT

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
    return Context({"event": event, "schedule": subscription.name}, EVENT)


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
