"""`accsd workflows render`: what would become of a step, with results that somebody has made up. Nothing runs."""

import os
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast

import click
import orjson

from accsd.cli import completion, workflow_files
from accsd.cli.output import say, show, styled, to_json
from accsd.cli.session import with_database
from accsd.db.pool import Database
from accsd.db.tools import find_tools
from accsd.db.views import workflows as workflow_views
from accsd.errors import InvalidValue, NotFound, WorkflowInvalid
from accsd.explain.words import duration
from accsd.model import WorkflowDef, WorkflowStep
from accsd.model.outcome import meaning_of
from accsd.model.tool import tool_names
from accsd.model.workflow import StepCache
from accsd.pipeline.flow import Flow
from accsd.pipeline.resolution import Decision, Fail, Finish, Multiply, Run, Skip, decide
from accsd.pipeline.samples import sample_facts
from accsd.values.validation import did_you_mean

_ITEMS_SHOWN: Final = 10
_STEPS_NAMED: Final = 20


@click.command("render")
@click.argument("workflow", metavar="FILE|NAME", shell_complete=completion.workflow_names)
@click.option("--step", required=True, metavar="STEP", help="The step to show.")
@click.option(
    "--with",
    "sample",
    metavar="FILE|JSON",
    help="What its expressions refer to: {params, steps: {NAME: RESULTS}, trigger, now}; - is stdin.",
)
@click.option("--version", type=click.IntRange(min=1), help="Another version than the newest; of a NAME.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(("table", "json")),
    default="table",
    show_default=True,
    help="table for eyes; json for programs, with all items.",
)
@click.pass_context
def render_command(
    ctx: click.Context, workflow: str, step: str, sample: str | None, version: int | None, output: str
) -> None:
    """Show what would be decided of a step, and sent to its service. Nothing runs, and nothing is written.

    A file needs no database; a NAME is what was applied. In a sample, null is a step that was skipped, and the results
    of a step with for_each are a list. Exit code 1 where the step would end in error.

    \b
    Examples:
      accsd workflows render media.yaml --step encode --with sample.json
      accsd workflows render media --step encode --with '{"steps": {"split": {"parts": ["a", "b"]}}}'
    """
    whole = Flow(_from_file(workflow, step)) if _is_file(workflow) else _stored(ctx, workflow, version)
    _require_step(whole.workflow, step)
    flow = whole.step(step)
    decision = decide(flow, sample_facts(flow, _sample(sample)))
    if output == "json":
        show([_document(flow.step, decision)], {}, "jsonl")
    else:
        for line in _lines(flow.step, decision):
            say(line)
    if isinstance(decision, Fail):
        raise SystemExit(1)


# Which workflow, and with what


def _is_file(named: str) -> bool:
    return named == workflow_files.STDIN or os.path.isfile(named) or named.endswith(workflow_files.SUFFIXES)


def _from_file(named: str, step: str) -> WorkflowDef:
    documents = [document for document in workflow_files.read([named]) if document.is_workflow]
    found = [document.checked() for document in documents]
    with_step = [each for each in found if any(one.key == step for one in each.steps)]
    if len(with_step) > 1:
        names = ", ".join(each.name for each in with_step)
        raise WorkflowInvalid(f'{named} has several workflows with a step "{step}": {names}')
    if not found:
        raise NotFound(f"there is no workflow in {named}")
    return (with_step or found)[0]


def _stored(ctx: click.Context, name: str, version: int | None) -> Flow:
    """With its tools: only the database has them, so the inputs of a file's tools are not checked."""

    async def work(db: Database) -> Flow:
        found = (await workflow_views.workflow_named(db, name, version)).definition()
        return Flow(found, tools=await find_tools(db, tool_names(found)))

    return with_database(ctx, work)


def _require_step(workflow: WorkflowDef, key: str) -> None:
    keys = [step.key for step in workflow.steps]
    if key not in keys:
        known = ", ".join(keys[:_STEPS_NAMED]) + (", …" if len(keys) > _STEPS_NAMED else "")
        raise NotFound(
            f'workflow "{workflow.name}" has no step "{key}"{did_you_mean(key, keys)}', hint=f"its steps are {known}"
        )


def _sample(written: str | None) -> dict[str, Any]:
    if written is None:
        return {}
    try:
        is_json = written.lstrip().startswith("{")
        text = (
            written.encode() if is_json else sys.stdin.buffer.read() if written == "-" else Path(written).read_bytes()
        )
        found = orjson.loads(text)
    except OSError as error:
        raise InvalidValue(f"{written} can't be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise InvalidValue(f"the sample is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidValue("the sample must be a JSON object", hint="""such as {"params": {}, "steps": {}}""")
    return cast("dict[str, Any]", found)


# What becomes of the step


def _params(step: WorkflowStep, given: dict[str, Any]) -> dict[str, Any]:
    """What its service is sent. A `with` without expressions is worked out when the workflow is written."""
    return step.default_params | given.get("with", step.with_)


def _lines(step: WorkflowStep, decision: Decision) -> Iterator[str]:
    key = step.key
    match decision:
        case Run(given, delay):
            yield f"{key}: runs{_later(delay)} with {to_json(_params(step, given))}{_unless_cached(step)}"
        case Finish(results):
            yield f"{key}: is done without a node, with {to_json(results)}"
        case Skip(reason, message):
            yield f"{key}: is skipped, because {message or meaning_of(reason).sentence} ({reason})"
        case Fail(code, message):
            yield f"{key}: {styled('error')}, {code}: {message}"
        case Multiply():
            yield f"{key}: {len(decision.given)} tasks{_bounds(decision)}{_unless_cached(step, 'each')}"
            for number, task in enumerate(_tasks(step, decision)[:_ITEMS_SHOWN]):
                what = "is skipped, because if_item does not hold"
                if task["decision"] == "run":
                    what = f"runs{_later(task['delay'])} with {to_json(task['params'])}"
                yield f"  {key}[{number}]: {what}"
            if len(decision.given) > _ITEMS_SHOWN:
                yield f"  (and {len(decision.given) - _ITEMS_SHOWN} more; -o json has all)"


def _unless_cached(step: WorkflowStep, which: str = "") -> str:
    """The key is not said: it depends on files and results that a sample does not have."""
    if step.cache is None:
        return ""
    return f",{which and ' ' + which} unless the same input had a result in the last {_cached_for(step.cache)}"


def _cached_for(cache: StepCache) -> str:
    return duration(timedelta(seconds=cache.for_))


def _later(delay: float) -> str:
    return f" {duration(timedelta(seconds=delay))} later" if delay else ""


def _bounds(decision: Multiply) -> str:
    parallel = "" if decision.parallel is None else f", {decision.parallel} at once"
    return parallel + (f", {decision.tolerate} may fail" if decision.tolerate else "")


def _document(step: WorkflowStep, decision: Decision) -> dict[str, Any]:
    match decision:
        case Run(given, delay):
            said = {"step": step.key, "decision": "run", "params": _params(step, given), "delay": delay}
            return said | _cache_document(step)
        case Finish(results):
            return {"step": step.key, "decision": "done", "results": results}
        case Skip(reason, message):
            said = message or meaning_of(reason).sentence
            return {"step": step.key, "decision": "skip", "reason": reason, "message": said}
        case Fail(code, message):
            return {"step": step.key, "decision": "error", "reason": code, "message": message}
        case Multiply():
            return {
                "step": step.key,
                "decision": "fan_out",
                "count": len(decision.given),
                "max_parallel": decision.parallel,
                "tolerate": decision.tolerate,
                "tasks": _tasks(step, decision),
                **_cache_document(step),
            }


def _cache_document(step: WorkflowStep) -> dict[str, Any]:
    return {} if step.cache is None else {"cache": step.cache.model_dump(mode="json")}


def _tasks(step: WorkflowStep, decision: Multiply) -> Sequence[dict[str, Any]]:
    return [
        {"decision": "skip", "reason": "condition_false"}
        if given is None
        else {"decision": "run", "params": _params(step, given), "delay": delay}
        for given, delay in zip(decision.given, decision.delays, strict=True)
    ]
