"""What becomes of a step when everything that it depends on is there: it runs with what was worked out, is skipped,
becomes a task for each item, or is in error. The same facts give the same decision, so two resolvers agree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from typing import Any, Final, cast

from accsd.errors import ConfigError, ExpressionInvalid, ExpressionTooExpensive, InvalidValue, Place, UserError
from accsd.expressions import Budget, Context, evaluate, evaluate_condition, has_templates, render
from accsd.expressions.results import written_moment
from accsd.model import WorkflowStep
from accsd.model.outcome import DatabaseCode
from accsd.model.workflow import LONGEST_DELAY, StepCache
from accsd.pipeline.flow import DEFAULT_MAX_ITEMS, STEP, StepFlow, expression_of
from accsd.values.schemas import sentences
from accsd.values.units import parse_duration

_MOST_RESULTS: Final = 3 * 1024 * 1024  # of what expressions may use, the rest is for params, job and trigger
_MOST_ITEM_BYTES: Final = 16 * 1024 * 1024  # what is laid before the expressions of all items together
_MOST_ITEM_EFFORT: Final = 2_000_000_000  # nanoseconds that the expressions of all items may take together


@dataclass(frozen=True, slots=True)
class Result:
    """What an earlier step has left. `value` is an object, or the list of them where the step was multiplied; None
    where it was skipped, or where it is too large to be read."""

    is_done: bool
    value: Any
    size: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the expressions of a step may refer to. `results` are by key of the step."""

    params: Mapping[str, Any]
    job: Mapping[str, Any]
    trigger: Mapping[str, Any]
    now: datetime
    results: Mapping[str, Result]


@dataclass(frozen=True, slots=True)
class Run:
    """`cache`: unless there is a result of the same input, which SQL knows."""

    given: dict[str, Any]
    delay: float = 0
    cache: StepCache | None = None


@dataclass(frozen=True, slots=True)
class Multiply:
    """`given` is what the task of each item is given; None: that item is skipped."""

    given: list[dict[str, Any] | None]
    delays: list[float]
    parallel: int | None
    tolerate: int
    cache: StepCache | None = None


@dataclass(frozen=True, slots=True)
class Skip:
    reason: DatabaseCode
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    code: DatabaseCode
    message: str


@dataclass(frozen=True, slots=True)
class Finish:
    """It is done, and no node was needed."""

    results: dict[str, Any]


Decision = Run | Multiply | Skip | Fail | Finish


def decide(flow: StepFlow, facts: Facts) -> Decision:
    """Raises ConfigError where the CEL library is missing; everything else that is wrong is a Fail."""
    if not flow.step.depends_on and (wrong := _wrong_options(flow, facts)):
        return Fail(DatabaseCode.OPTIONS_INVALID, wrong)
    values, left_out, skipped = _values(flow, facts)
    code = DatabaseCode.CONDITION_ERROR
    try:
        context = Context(values, STEP, left_out=left_out)
        if not _holds(flow.step.if_, context, "if"):
            return Skip(DatabaseCode.CONDITION_FALSE)
        code = DatabaseCode.TEMPLATE_ERROR
        if flow.step.for_each is None:
            return _begun(flow, _given(flow, context, facts), _delay(flow.step, context))
        return _multiply(flow, values, left_out, context, facts)
    except ConfigError:
        raise
    except _TooLarge as error:
        return Fail(DatabaseCode.FAN_OUT_TOO_LARGE, f'step "{flow.step.key}": {error}')
    except ExpressionInvalid as error:
        if error.missing[:1] == ("steps",) and error.missing[1:2] and error.missing[1] in skipped:
            return Skip(DatabaseCode.INPUT_SKIPPED, f"it refers to steps.{error.missing[1]}, which was skipped")
        return Fail(code, _told(flow.step, error))
    except _InputInvalid as error:
        return Fail(DatabaseCode.INPUT_INVALID, f'step "{flow.step.key}": {error}')
    except UserError as error:
        return Fail(code, _told(flow.step, error))


def _begun(flow: StepFlow, given: dict[str, Any], delay: float) -> Run | Finish | Fail:
    """Tools that only compute need nobody else, unless the step is to wait."""
    value = _input(flow, given)
    match flow.tool.name if flow.tool is not None and delay == 0 else None:
        case "accs.transform":
            return Finish(value)
        case "accs.assert":
            said = value.get("message") or "what it asserts does not hold"
            return Finish({}) if value["that"] else Fail(DatabaseCode.ASSERTION_FAILED, said)
        case _:
            return Run(given, delay, flow.step.cache)


def _input(flow: StepFlow, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a task is given as its params."""
    return {**flow.step.default_params, **given.get("with", flow.step.with_)}


def _wrong_options(flow: StepFlow, facts: Facts) -> str:
    """Said by the first steps of a job, so that wrong options end it before any node has work."""
    schema = flow.flow.workflow.schema_of_options()
    return "" if schema is None else sentences(schema.problems(dict(facts.params)), "options")


class _InputInvalid(UserError):
    """What was worked out is not what the tool takes."""


class _TooLarge(Exception):
    pass


def _told(step: WorkflowStep, error: UserError) -> str:
    hint = "" if error.hint is None else f" ({error.hint})"
    return f'step "{step.key}": {error}{hint}'


# What expressions refer to


def _values(flow: StepFlow, facts: Facts) -> tuple[dict[str, Any], list[Place], set[str]]:
    """The values by name, the paths of what is too large to be among them, and the names of steps that were skipped."""
    steps: dict[str, Any] = {}
    left_out: list[Place] = []
    skipped: set[str] = set()
    found = {name: _last(keys, facts.results) for name, keys in flow.reads.items()}
    room = _MOST_RESULTS
    for name, result in sorted(found.items(), key=lambda each: each[1].size if each[1] else 0):
        if result is None:
            skipped.add(name)
        elif result.value is None or result.size > room:
            left_out.append(("steps", name))
        else:
            steps[name] = result.value
            room -= result.size
    values = {
        "params": {**flow.flow.workflow.params, **facts.params},
        "steps": steps,
        "job": facts.job,
        "trigger": facts.trigger,
        "now": facts.now,
    }
    return values, left_out, skipped


def _last(keys: Sequence[str], results: Mapping[str, Result]) -> Result | None:
    """PL3: of several steps of one name the last one that is done; None: all were skipped."""
    done = [results[key] for key in keys if key in results and results[key].is_done]
    return done[-1] if done else None


# The parts of a step


def _holds(written: str | bool | None, context: Context, field: str) -> bool:
    if not isinstance(written, str):
        return written is not False
    try:
        return evaluate_condition(expression_of(written), context)
    except ExpressionInvalid as error:
        raise error.at((field,)) from None


def _given(flow: StepFlow, context: Context, facts: Facts) -> dict[str, Any]:
    """Raises _InputInvalid with every path."""
    given: dict[str, Any] = {"now": written_moment(facts.now)}
    if has_templates(flow.step.with_):
        given["with"] = render(flow.input, context, at=("with",))
    if flow.secrets:
        given["secrets"] = [{"at": list(place), "name": name} for place, name in flow.secrets.items()]
    if flow.step.uses is None or flow.flow.tools is None:
        return given
    if flow.tool is None:
        raise _InputInvalid(f"the tool {flow.step.uses} is not there any more")
    if wrong := flow.tool.input.problems(_input(flow, given), unknown=flow.secrets):
        raise _InputInvalid(sentences(wrong, "with"))
    return given | {"tool": flow.step.uses}


def _delay(step: WorkflowStep, context: Context) -> float:
    delay = render(step.delay, context, at=("delay",)) if isinstance(step.delay, str) else step.delay
    if isinstance(delay, str):
        delay = parse_duration(delay).total_seconds()
    if delay is None:
        return 0
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not isfinite(delay):
        raise InvalidValue("delay is neither a number of seconds nor a text such as 10m")
    if not 0 <= delay <= LONGEST_DELAY:
        raise InvalidValue(f"delay is {delay} seconds; it must be between 0 and a year")
    return float(delay)


def _multiply(
    flow: StepFlow, values: dict[str, Any], left_out: Sequence[Place], context: Context, facts: Facts
) -> Multiply:
    step = flow.step
    items = _items(step, context)
    most = step.max_items or DEFAULT_MAX_ITEMS
    if len(items) > most:
        raise _TooLarge(f"for_each has {len(items)} items; max_items is {most}")
    narrow = _narrowed(values, flow.of_items.references)
    given: list[dict[str, Any] | None] = []
    delays: list[float] = []
    budget = Budget(_MOST_ITEM_EFFORT)
    for index, item in enumerate(items):
        each = Context(narrow | {"item": item, "index": index}, flow.item_names, left_out=left_out, budget=budget)
        if each.size * len(items) > _MOST_ITEM_BYTES:
            raise ExpressionTooExpensive(
                f"its expressions refer to {each.size} bytes for each of {len(items)} items",
                expression=str(step.for_each),
                hint="let for_each give the items what they need, and refer to item",
            )
        one = _given_item(flow, each, facts, index) if _holds(step.if_item, each, "if_item") else None
        given.append(one)
        delays.append(_delay(step, each) if one is not None else 0)
    return Multiply(given, delays, step.max_parallel, _tolerated(step.tolerate, len(items)), step.cache)


def _given_item(flow: StepFlow, context: Context, facts: Facts, index: int) -> dict[str, Any]:
    try:
        return _given(flow, context, facts)
    except _InputInvalid as error:
        raise _InputInvalid(f"item {index}: {error}") from None


def _items(step: WorkflowStep, context: Context) -> list[Any]:
    match step.for_each:
        case str() as written:
            try:
                found = evaluate(expression_of(written), context)
            except ExpressionInvalid as error:
                raise error.at(("for_each",)) from None
        case list() | dict() as written:
            found = render(written, context, at=("for_each",))
        case written:
            found = written
    match found:
        case list():
            return cast("list[Any]", found)
        case dict():
            pairs = sorted(cast("dict[str, Any]", found).items())
            return [{"key": key, "value": value} for key, value in pairs]
        case bool():
            pass
        case int() if found >= 0:
            if found > (step.max_items or DEFAULT_MAX_ITEMS):
                raise _TooLarge(f"for_each has {found} items; max_items is {step.max_items or DEFAULT_MAX_ITEMS}")
            return list(range(found))
        case _:
            pass
    raise InvalidValue("for_each gives neither a list, nor an object, nor a whole number of items")


def _narrowed(values: Mapping[str, Any], references: Sequence[Place]) -> dict[str, Any]:
    """Only what is referred to: the values are laid before the expressions of each item anew."""
    narrow = dict(values)
    if not any(path[0] == "trigger" for path in references):
        narrow["trigger"] = {}
    for root in ("params", "steps"):
        if (root,) in references:
            continue
        named = {path[1] for path in references if path[0] == root}
        narrow[root] = {name: value for name, value in values[root].items() if name in named}
    return narrow


def _tolerated(tolerate: int | str | None, items: int) -> int:
    if isinstance(tolerate, str):
        return items * int(tolerate.removesuffix("%")) // 100
    return min(tolerate or 0, items)
