"""The expressions of schedules: what each may refer to, and what is wrong with one before there are values.

A schedule by time has them in its options, over the occurrence; one of kind event in its filter, its options and what
it gathers by, over the event; one of kind condition in `expr`, over the answer of its probe.
"""

from collections.abc import Mapping
from typing import Any, Final

from accsd.expressions.checks import Findings, check_condition, check_document, check_expression
from accsd.expressions.program import Names
from accsd.expressions.templates import has_templates
from accsd.values.validation import Problem

OCCURRENCE: Final = Names(values=("schedule", "nominal", "timezone"), moments=("due_at",))
EVENT: Final = Names(values=("event", "schedule"), moments=("event.at",))
SAMPLE: Final = Names(values=("value",))


def schedule_problems(
    kind: str,
    *,
    options: Mapping[str, Any],
    filter: str | None = None,  # noqa: A002 - as its column
    gather: Mapping[str, Any] | None = None,
    condition: Mapping[str, Any] | None = None,
) -> list[Problem]:
    """What is wrong with the expressions of a schedule, each with its place. Documents are taken for sound ones."""
    found: list[Findings] = []
    if filter is not None:
        found.append(check_condition(filter, EVENT, at=("filter",)))
    if gather is not None and "by" in gather:
        found.append(check_expression(gather["by"], EVENT, at=("gather", "by")))
    if condition is not None and "expr" in condition:
        found.append(check_expression(condition["expr"], SAMPLE, at=("condition", "expr")))
    if has_templates(dict(options)):
        found.append(_options(kind, dict(options)))
    return [problem for each in found for problem in each.problems]


def _options(kind: str, options: dict[str, Any]) -> Findings:
    if kind == "condition":
        said = "there is ${…} in them, but those of a condition are taken as they are; trigger.sample has its value"
        return Findings((Problem(("options",), said),))
    return check_document(options, EVENT if kind == "event" else OCCURRENCE, at=("options",))
