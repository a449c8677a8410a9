"""Facts that a person has made up, to see what would become of a step: `{params, steps, trigger, now}`. `steps` has
results by the names that expressions use, or by key; null is a step that was skipped."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

import orjson

from accsd.errors import InvalidValue
from accsd.pipeline.flow import Flow, StepFlow
from accsd.pipeline.resolution import Facts, Result
from accsd.values.validation import did_you_mean

_PARTS: Final = ("params", "steps", "trigger", "now")
_NOBODY: Final = "00000000-0000-0000-0000-000000000000"


def sample_facts(step: StepFlow, sample: Mapping[str, Any]) -> Facts:
    """What the step would be resolved with. Raises InvalidValue where the sample lacks what the step reads, or has
    what the workflow has not."""
    if unknown := next((name for name in sample if name not in _PARTS), None):
        raise InvalidValue(
            f'the sample has an unknown part "{unknown}"{did_you_mean(unknown, _PARTS)}',
            hint=f"it may have {', '.join(_PARTS)}",
        )
    results = _results(step.flow, _object(sample, "steps"))
    _require(step, results)
    now = _moment(sample.get("now"))
    workflow = step.flow.workflow
    return Facts(
        params=_object(sample, "params"),
        job={"id": _NOBODY, "workflow": workflow.name, "version": workflow.version, "created_at": now},
        trigger=_object(sample, "trigger"),
        now=now,
        results=results,
    )


def _object(sample: Mapping[str, Any], part: str) -> dict[str, Any]:
    found = sample.get(part, {})
    if not isinstance(found, dict):
        raise InvalidValue(f"{part} of the sample must be an object")
    return cast("dict[str, Any]", found)


def _moment(written: Any) -> datetime:
    if written is None:
        return datetime.now(UTC)
    try:
        found = datetime.fromisoformat(written)
    except (TypeError, ValueError):
        found = None
    if found is None or found.tzinfo is None:
        raise InvalidValue("now of the sample must be a moment such as 2026-11-18T09:00:00Z")
    return found


def _results(flow: Flow, sample: Mapping[str, Any]) -> dict[str, Result]:
    """By key. A name that several steps share is what each of them left; a key says it of one of them."""
    by_key = {step.key: step for step in flow.workflow.steps}
    results: dict[str, Result] = {}
    for name, value in sorted(sample.items(), key=lambda each: not flow.named(each[0])):
        keys = flow.named(name) or ((name,) if name in by_key else ())
        if not keys:
            known = [*flow.names, *by_key]
            raise InvalidValue(f"the sample has steps.{name}, but there is no such step{did_you_mean(name, known)}")
        for key in keys:
            is_fan = by_key[key].for_each is not None
            if value is not None and not isinstance(value, list if is_fan else dict):
                wanted = "a list: the results of its items" if is_fan else "an object"
                raise InvalidValue(f"steps.{name} of the sample must be {wanted}, or null where it was skipped")
            size = len(orjson.dumps(value))
            results[key] = Result(value is not None, value, size)
    return results


def _require(step: StepFlow, results: Mapping[str, Result]) -> None:
    lacking = [name for name, keys in step.reads.items() if not any(key in results for key in keys)]
    if not lacking:
        return
    multiplied = {each.key for each in step.flow.workflow.steps if each.for_each is not None}
    empty: dict[str, Any] = {name: [] if multiplied & set(step.reads[name]) else {} for name in lacking}
    example = orjson.dumps({"steps": empty}).decode()
    raise InvalidValue(
        f'step "{step.step.key}" refers to steps.{", steps.".join(lacking)}, of which the sample says nothing',
        hint=f"a sample is JSON such as {example}; null is a step that was skipped",
    )
