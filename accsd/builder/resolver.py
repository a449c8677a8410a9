"""Resolves steps with expressions: works out their conditions, inputs, delays and lists when everything that they
depend on is there, and lets SQL carry out what follows (accs.resolve_tasks, accs.fan_out).

Several may run at once, and none leads: they come to the same decision, and one of them says it first. Killed at any
point, a resolver has changed nothing, or all that it decided of a batch.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, Final
from uuid import UUID

from accsd import failpoints
from accsd.db import Database, Verdict
from accsd.db.resolve import StepResult, TaskToResolve, fan_out, resolve_tasks, step_results, tasks_to_resolve
from accsd.db.tools import find_tools, refused_tools
from accsd.db.workflows import workflows_by_id
from accsd.errors import ConfigError, UserError
from accsd.log import get_logger
from accsd.model.outcome import DatabaseCode
from accsd.model.tool import tool_names
from accsd.pipeline.flow import Flow
from accsd.pipeline.resolution import Decision, Facts, Fail, Finish, Multiply, Result, Run, Skip, decide
from accsd.supervisor import Pass

_BATCH: Final = 100
_FLOWS_KEPT: Final = 200
_LONGEST_THOUGHT: Final = 0.25  # seconds, before what was decided is said
_SETTLED_BY_ANOTHER: Final = timedelta(milliseconds=50)
_log = get_logger(role="resolver")

Asked = tuple[TaskToResolve, Decision]


class Resolver:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._flows: dict[UUID, tuple[datetime, Flow | Fail]] = {}

    async def run_once(self) -> Pass:
        asked = await tasks_to_resolve(self._db, limit=_BATCH)
        if not asked:
            return Pass()
        try:
            decided = await self._decide(asked)
        except ConfigError as error:  # the CEL library is missing
            return Pass(obstacle=str(error))
        failpoints.hit("resolve.evaluated")
        accepted = await self._carry_out(decided)
        failpoints.hit("resolve.committed")
        if not accepted:
            return Pass(next_due=_SETTLED_BY_ANOTHER)
        return Pass(did=_sentence(accepted), more=True)

    async def _decide(self, asked: Sequence[TaskToResolve]) -> list[Asked]:
        flows = await self._flows_of(asked)
        results = await self._results(asked, flows)
        refused = await self._refused(asked, flows)
        # In a thread: expressions over long lists may take milliseconds, and the loop has other roles to serve.
        return await asyncio.to_thread(_decided_for_a_while, asked, flows, results, refused)

    async def _flows_of(self, asked: Sequence[TaskToResolve]) -> dict[UUID, Flow | Fail]:
        """The flows of their workflows, read once for each version of a workflow."""
        wanted = {each.workflow_id: each.workflow_changed_at for each in asked}
        stale = [which for which, changed in wanted.items() if self._flows.get(which, (None,))[0] != changed]
        if stale:
            for found in await workflows_by_id(self._db, stale):
                try:
                    definition = found.definition()
                    definition.schema_of_options()
                    names = tool_names(definition)
                    flow = Flow(definition, tools=await find_tools(self._db, names) if names else ())
                except UserError as error:
                    flow = Fail(DatabaseCode.WORKFLOW_INVALID, str(error))
                self._flows[found.id] = (found.updated_at, flow)
        while len(self._flows) > _FLOWS_KEPT:
            self._flows.pop(next(which for which in self._flows if which not in wanted))
        return {which: self._flows[which][1] for which in wanted if which in self._flows}

    async def _results(
        self, asked: Iterable[TaskToResolve], flows: Mapping[UUID, Flow | Fail]
    ) -> dict[tuple[UUID, str], StepResult]:
        wanted = dict.fromkeys((each.job_id, key) for each in asked for key in _keys_read(each, flows))
        if not wanted:
            return {}
        return {(found.job_id, found.task_key): found for found in await step_results(self._db, list(wanted))}

    async def _refused(
        self, asked: Iterable[TaskToResolve], flows: Mapping[UUID, Flow | Fail]
    ) -> dict[tuple[UUID, str], str]:
        """The tools that somebody may not use any more, by job: who wrote a workflow may have lost the right since."""
        used = {(each.job_id, name) for each in asked if (name := _tool_of(each, flows))}
        return await refused_tools(self._db, used) if used else {}

    async def _carry_out(self, decided: Sequence[Asked]) -> Counter[str]:
        """How many of each kind were accepted."""
        plain = [(each, decision) for each, decision in decided if not isinstance(decision, Multiply)]
        accepted = Counter[str]()
        if plain:
            answers = await resolve_tasks(self._db, [_verdict(each, decision) for each, decision in plain])
            for each, decision in plain:
                if answers[each.task_id].verdict is Verdict.ACCEPTED:
                    accepted[_word(decision, answers[each.task_id].held.status)] += 1
                    _tell(each, decision)
        for each, decision in decided:
            if isinstance(decision, Multiply):
                accepted += await self._multiply(each, decision)
        return accepted

    async def _multiply(self, each: TaskToResolve, decision: Multiply) -> Counter[str]:
        answer = await fan_out(
            self._db,
            each.task_id,
            each.generation,
            decision.given,
            delays=decision.delays,
            parallel=decision.parallel,
            tolerate=decision.tolerate,
            cache_for=None if decision.cache is None else decision.cache.for_,
            salt=None if decision.cache is None else decision.cache.salt,
        )
        if answer.reason == "too_many_tasks":
            what = f"{len(decision.given)} items would make the job larger than 100,000 tasks"
            return await self._carry_out([(each, Fail(DatabaseCode.FAN_OUT_TOO_LARGE, what))])
        return Counter({"multiplied": 1}) if answer.verdict is Verdict.ACCEPTED else Counter()


def _keys_read(each: TaskToResolve, flows: Mapping[UUID, Flow | Fail]) -> list[str]:
    flow = flows.get(each.workflow_id)
    if not isinstance(flow, Flow):
        return []
    try:
        return [key for keys in flow.step(each.task_key).reads.values() for key in keys]
    except ConfigError:
        raise
    except UserError:
        return []  # said again, and told, when the step is decided


def _tool_of(each: TaskToResolve, flows: Mapping[UUID, Flow | Fail]) -> str | None:
    """The tool that the step uses, without its version."""
    flow = flows.get(each.workflow_id)
    return flow.tool_of(each.task_key) if isinstance(flow, Flow) else None


def _decided_for_a_while(
    asked: Sequence[TaskToResolve],
    flows: Mapping[UUID, Flow | Fail],
    results: Mapping[tuple[UUID, str], StepResult],
    refused: Mapping[tuple[UUID, str], str],
) -> list[Asked]:
    """The first of them, at least one: what was decided is said before long, though somebody's steps take seconds."""
    decided: list[Asked] = []
    until = monotonic() + _LONGEST_THOUGHT
    for each in asked:
        tool = _tool_of(each, flows) or ""
        if actor := refused.get((each.job_id, tool)):
            said = f'step "{each.task_key}": {actor} may not use the tool {tool}'
            decided.append((each, Fail(DatabaseCode.TOOL_REFUSED, said)))
        else:
            decided.append((each, _decided(each, flows, results)))
        if monotonic() > until:
            break
    return decided


def _decided(
    each: TaskToResolve, flows: Mapping[UUID, Flow | Fail], results: Mapping[tuple[UUID, str], StepResult]
) -> Decision:
    flow = flows.get(each.workflow_id)
    if flow is None or isinstance(flow, Fail):
        return flow or Fail(DatabaseCode.TEMPLATE_ERROR, "the workflow is not there any more")
    try:
        step = flow.step(each.task_key)
        keys = [key for found in step.reads.values() for key in found]
        facts = Facts(
            params=each.options or {},
            job={
                "id": str(each.job_id),
                "workflow": flow.workflow.name,
                "version": flow.workflow.version,
                "created_at": each.job_created_at,
            },
            trigger=each.trigger or {},
            now=each.now,
            results={key: _result(results[each.job_id, key]) for key in keys if (each.job_id, key) in results},
        )
        return decide(step, facts)
    except ConfigError:
        raise
    except UserError as error:
        return Fail(DatabaseCode.TEMPLATE_ERROR, str(error))
    except Exception as error:  # noqa: BLE001
        # One bad row must not stop the others. It is a bug, and is told as one.
        _log.error("resolver_bug", task_id=str(each.task_id), task_key=each.task_key, exc_info=error)
        return Fail(DatabaseCode.TEMPLATE_ERROR, f"the resolver failed: {type(error).__name__}; see its log")


def _result(found: StepResult) -> Result:
    return Result(found.status == "done", found.results, found.size or 0)


def _verdict(each: TaskToResolve, decision: Decision) -> dict[str, Any]:
    said: dict[str, Any] = {"task_id": str(each.task_id), "generation": each.generation}
    match decision:
        case Run(given, delay, cache):
            said |= {"verdict": "run", "given": given, "delay": delay}
            return said if cache is None else said | {"cache_for": cache.for_, "salt": cache.salt}
        case Skip(reason, message):
            return said | {"verdict": "skip", "reason": reason, "message": message}
        case Fail(code, message):
            return said | {"verdict": "error", "reason": code, "message": message}
        case Finish(results):
            return said | {"verdict": "done", "results": results}
        case Multiply():
            raise AssertionError("a fan-out is a verb of its own")


def _word(decision: Decision, status: str | None) -> str:
    match decision:
        case Run() if status == "done":
            return "done from the cache"
        case Run():
            return "resolved"
        case Finish():
            return "done"
        case Skip():
            return "skipped"
        case Fail():
            return "in error"
        case Multiply():
            return "multiplied"


def _tell(each: TaskToResolve, decision: Decision) -> None:
    if isinstance(decision, Fail):
        _log.warning(
            "step_not_resolved",
            job_id=str(each.job_id),
            task_id=str(each.task_id),
            task_key=each.task_key,
            code=decision.code,
            error=decision.message,
        )


def _sentence(accepted: Counter[str]) -> str:
    return ", ".join(f"{n} {word}" for word, n in sorted(accepted.items()))
