"""Whether a result is what the tool of its step gives: checked where the attempt ends, before anything is written."""

from collections.abc import Mapping
from typing import Any

from accsd.db import ClaimedTask
from accsd.errors import SchemaInvalid
from accsd.values.schemas import schema_of, sentences


def output_problem(task: ClaimedTask, results: Mapping[str, Any] | None) -> str | None:
    """Every path that is wrong, in a sentence; None: nothing, or its tool has no output_schema."""
    if task.output_schema is None:
        return None
    try:
        problems = schema_of(task.output_schema).problems(dict(results or {}))
    except SchemaInvalid as error:
        return f"the output_schema of {task.tool} can't be used: {error}"
    return f"{task.tool}: {sentences(problems, 'results')}" if problems else None
