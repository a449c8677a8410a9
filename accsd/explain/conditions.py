"""Conditions in words: what one means, how it stands, and what a sample led to."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from accsd.db.conditions import ConditionRow, SampleAnswer, SampleRow
from accsd.errors import UserError
from accsd.explain.words import duration, short
from accsd.planning.conditions import Condition, ConditionJudgement, SampleSource, parse_condition

_REASONS: Final[Mapping[str, str]] = {
    "older": "there is a younger sample already: it was recorded, and ignored",
    "has_a_probe": "it is measured by a probe of its own",
    "in_the_future": "its time has not come yet: is a clock wrong?",
    "not_a_value": "a value is a number, true or false",
    "not_a_number": "this condition is of numbers",
    "too_long": "a value has at most 100 characters",
    "over_limit": "1,000 samples wait for the end of the hold already",
    "ended": "its schedule has ended",
    "broken": "its schedule is broken",
    "held": "all schedules are held: it is judged when the hold is lifted",
}


def meaning(document: Mapping[str, Any]) -> str:
    """What a condition's document means, in one line; for one that means nothing, why."""
    try:
        condition = parse_condition(document)
    except UserError as error:
        return error.message
    return f"{_judgement(condition.judgement)}; {_source(condition)}"


def threshold(document: Mapping[str, Any]) -> str:
    """`above 90`; nothing for a document that means nothing."""
    try:
        return _raised(parse_condition(document).judgement)
    except UserError:
        return ""


def _raised(how: ConditionJudgement) -> str:
    if how.above is not None:
        return f"above {value(how.above)}"
    return f"at {value(how.equals)}" if how.below is None else f"below {value(how.below)}"


def _judgement(how: ConditionJudgement) -> str:
    cleared = None
    if how.clears is not None:
        cleared = f"{'below' if how.above is not None else 'above'} {value(how.clears)}"
    parts = [f"raised {_raised(how)}"]
    if how.samples > 1:
        parts.append(f"for {how.samples} samples")
    if how.lasts > timedelta(0):
        parts.append(f"for {duration(how.lasts)}")
    said = " ".join(parts)
    if cleared is not None or how.clear_samples > 1:
        said += f", clear {cleared or 'otherwise'}"
        said += f" for {how.clear_samples} samples" if how.clear_samples > 1 else ""
    if how.repeat is not None:
        said += f", again every {duration(how.repeat)}"
    if how.stale is not None:
        unknown = {"keep": "unknown", "raise": "raised", "clear": "clear"}[how.on_unknown]
        said += f", {unknown} without a value for {duration(how.stale)}"
    return said


def _source(condition: Condition) -> str:
    every = "" if condition.every is None else f" every {duration(condition.every)}"
    return f"{_asked(condition.source)}{every}"


def _asked(source: SampleSource) -> str:
    match source.kind:
        case "sql":
            return "a statement is run"
        case "http":
            return f"{source.about} is asked"
        case "builtin":
            return f"accsd looks at {source.measure}" + (f" of {source.about}" if source.about else "")
        case "silence":
            return f"the silence of {source.about} is measured"
        case _:
            return "samples are reported"


def value(found: float | bool | None) -> str:
    if found is None:
        return ""
    return str(found).lower() if isinstance(found, bool) else f"{found:.12g}"


def stands(row: ConditionRow) -> str:
    """The state, with what a person should know beside it."""
    said = row.state
    if row.state in ("rising", "falling"):
        said += f" ({row.streak} in a row)"
    elif row.state == "unknown" and row.level is not None:
        said += f" (was {row.level})"
    return said if row.schedule_state == "active" else f"{said}, {row.schedule_state}"


def told(answer: SampleAnswer) -> str:
    """What became of a reported sample."""
    said = f"{answer.schedule}: {answer.state}"
    if answer.reason is not None:
        said += f" ({_REASONS.get(answer.reason, answer.reason)})"
    elif answer.outcome is not None:
        said += f", {_led_to(answer.outcome, answer.because, answer.job_id)}"
    return said


def led_to(row: SampleRow) -> str:
    """What a sample of the list was taken for."""
    if row.outcome is not None:
        return _led_to(row.outcome, row.because, row.job_id)
    return row.error or ("" if row.verdict == "judged" else row.verdict)


def _led_to(outcome: str, because: str | None, job: object) -> str:
    said = f"{outcome} ({because})"
    return said if job is None else f"{said}: job {short(str(job))}"
