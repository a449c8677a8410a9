"""Evaluates an expression. The library answers errors as values, which a naive test would take for true; here they are
raised.
"""

from typing import Any, cast

from accsd.errors import ExpressionInvalid, InvalidValue, Place
from accsd.expressions.complaints import failure, kind_of, missing_field, reads_no_object, shown_path
from accsd.expressions.context import Context
from accsd.expressions.effort import afford
from accsd.expressions.program import Program, compile_expression
from accsd.expressions.results import plain
from accsd.values.validation import did_you_mean


def evaluate(expression: str, context: Context) -> Any:
    """The JSON value of an expression. Raises ExpressionInvalid."""
    program = compile_expression(expression, context.names)
    afford(program, context)
    return run(program, context)


def evaluate_condition(expression: str, context: Context) -> bool:
    """Raises ExpressionInvalid, also for every value that is neither true nor false."""
    answer = evaluate(expression, context)
    if not isinstance(answer, bool):
        raise ExpressionInvalid("a condition must give true or false", expression=expression)
    return answer


def run(program: Program, context: Context) -> Any:
    """The JSON value of a program that was found to be affordable."""
    try:
        outcome = program.compiled.eval(context.activation)
    except RuntimeError as error:
        raise failure(program.expression, str(error)) from None
    try:
        value = outcome.plain_value()
    except (TypeError, SystemError):
        # The library has no Python value for an optional, and calls it an error.
        what = "the result is optional: add .orValue(…) with what it is where nothing is there"
        raise ExpressionInvalid(what, expression=program.expression) from None
    if outcome.type().name() == "ERROR":
        raise _failed(program, context, str(value))
    try:
        return plain(value)
    except InvalidValue as error:
        raise ExpressionInvalid(f"the result {error.message}", expression=program.expression) from None


def _failed(program: Program, context: Context, message: str) -> ExpressionInvalid:
    for reference in program.references:
        length, held = context.reach(reference.path)
        if length == len(reference.path):
            continue
        missing: Place = ()
        if isinstance(held, dict) and missing_field(message) == reference.path[length]:
            missing = reference.path[: length + 1]
            what = _missing(context, missing, list(cast("dict[str, Any]", held)))
        elif reads_no_object(message) and not isinstance(held, dict):
            what = f"{shown_path(reference.path[:length])} is {kind_of(held)}, which has no fields"
        else:
            continue
        hint = "where it may be missing, write .? before the field and .orValue(…) at the end"
        return ExpressionInvalid(
            what,
            expression=program.expression,
            position=reference.positions[length],
            hint=hint,
            missing=missing,
        )
    return failure(program.expression, message)


def _missing(context: Context, path: Place, siblings: list[str]) -> str:
    if any(path == left[: len(path)] or left == path[: len(left)] for left in context.left_out):
        return f"{shown_path(path)} was left out, because it is larger than what expressions may use"
    return f"there is no {shown_path(path)}{did_you_mean(str(path[-1]), siblings)}"
