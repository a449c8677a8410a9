"""Workflows with expressions, tools and schemas: each is refused in words, or every step of it is decided. Nothing
crashes, nothing hangs, no file is opened and nobody is called.

The bound on a hang is in CPU time of the thread that works, and what exceeds it is measured again: a busy machine is no
finding. What the libraries do behind Python's back shows too: the file is a pipe that nobody writes to, so that who
opens it never comes back, and the host is a port on which a connection would be seen.
"""

import os
import socket
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import orjson
import pytest
from pydantic import ValidationError

from accsd.builder.resolver import Resolver
from accsd.cli.workflow_files import Document, canonical_yaml
from accsd.db import (
    Database,
    Done,
    Submission,
    apply_workflow,
    claim_tasks,
    finish_tasks,
    start_tasks,
    submit_job,
    upsert_heartbeat,
)
from accsd.db.tools import put_tool
from accsd.errors import Place, UserError, WorkflowInvalid
from accsd.expressions.effort import AFFORDABLE
from accsd.expressions.program import compile_expression
from accsd.model import WorkflowDef
from accsd.model.tool import ToolDef, bound
from accsd.pipeline.document import as_workflow
from accsd.pipeline.flow import Flow, check_workflow
from accsd.pipeline.resolution import _MOST_ITEM_EFFORT, Facts, Fail, Multiply, Result, decide
from accsd.pipeline.resolution import Run as RunStep
from accsd.values.json import sanitise
from accsd.values.schemas import _kept
from accsd.values.validation import problems
from tests.fuzz.cases import SEED, Run, contained
from tests.fuzz.pipelines import FILE, HOST, KEYS, NOW, REAL, Made, made
from tests.fuzz.values import in_words
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import LEASE, NODE, SERVICE
from tests.support.library import opened

T = TypeVar("T")

BUILTINS = [
    ToolDef(name="accs.transform", version=1, kind="builtin", input_schema={"additionalProperties": True}),
    ToolDef(
        name="accs.assert",
        version=1,
        kind="builtin",
        input_schema={"required": ["that"], "properties": {"that": {"type": "boolean"}, "message": {"type": "string"}}},
    ),
]

# Seconds of CPU, for one document or one step: four times what an expression may take, and what the items of a step may
# take together. To check a document, and to find lines in it, takes so much more for each of its bytes.
HANG = 4 * AFFORDABLE / 1e9
HANG_OF_ITEMS = HANG + 2 * _MOST_ITEM_EFFORT / 1e9
BYTE = 20e-6
TRIES = 2
_MENDINGS = 6
_OPENING = ("open", "socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.fork", "urllib.", "import")


class _Watch:
    """What Python itself opens, starts or calls while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_on and event.startswith(_OPENING):
            self.seen.append(f"{event} {arguments[:1]}")

    @contextmanager
    def on(self) -> Generator[None]:
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False
        assert not self.seen, f"it reached out: {self.seen[:3]}"


@cache
def _watch() -> _Watch:
    """In the process of the cases: a hook can't be taken away again."""
    attempt_without_watching(_PLAIN)  # what is imported on first use is imported
    return _Watch()


_PLAIN = Made(
    {
        "name": "w",
        "options_schema": {"type": "object", "properties": {"n": {"type": "integer", "format": "uri"}}},
        "steps": [
            {"key": "a", "uses": "t.one", "with": {"text": "n=${params.n}, ${now}"}, "delay": "10m", "if": "1 > 2"},
            {"key": "b", "service": "s", "for_each": "[1]", "with": {"n": "${item}"}, "if": "x"},
        ],
    },
    [{"name": "t.one", "version": 1, "service": "s", "input_schema": {"properties": {"n": {"pattern": "^a$"}}}}],
    {},
    {},
    {},
)


def quickly(what: Callable[[], T], within: float = HANG) -> T:
    """What it answers or raises. AssertionError where it takes too much CPU, and does so again from the start."""
    took = 0.0
    for _ in range(TRIES):
        for kept in (_kept, compile_expression):
            kept.cache_clear()
        answer, refusal, began = None, None, time.thread_time()
        try:
            answer = what()
        except UserError as error:
            refusal = error
        if (took := time.thread_time() - began) < within:
            if refusal is not None:
                raise refusal
            return cast("T", answer)
    raise AssertionError(f"it takes {took:.1f} s of CPU")


def attempt(case: Made) -> None:
    with _watch().on():
        attempt_without_watching(case)


def attempt_without_watching(case: Made) -> None:
    """As it is, and if it is refused once more without what was found wrong with it."""
    for each in (lambda: case, lambda: mended(case)):
        tried = each()
        try:
            workflow, tools = quickly(
                lambda tried=tried: _written(tried), within=HANG + BYTE * len(_as_json(tried.document))
            )
        except UserError as error:
            in_words(error)
        else:
            _decide_all(tried, workflow, tools)
            return


def mended(case: Made) -> Made:
    """Without the fields that are complained about: most of what is made has some, and would never be evaluated."""
    document: Any = case.document
    for _ in range(_MENDINGS):
        try:
            document = as_workflow(document)
            workflow = WorkflowDef.model_validate(document)
            check_workflow(workflow)
            bound(workflow, [*_tools(case), *BUILTINS])
            break
        except WorkflowInvalid as error:
            if not isinstance(document, dict) or not error.complaints:
                break
            document = _without(document, [place for place, _ in error.complaints])
    return replace(case, document=document)


def _without(document: Any, places: Sequence[Place]) -> Any:
    steps = document.get("steps")
    kept = [step for step in steps if isinstance(step, dict) and "key" in step] if isinstance(steps, list) else []
    if kept != steps:
        return {**document, "steps": kept}
    copy = {**document, "steps": [dict(step) for step in kept]}
    for place in places:
        match place:
            case ("steps", int() as number, str() as field, *_):
                copy["steps"][number].pop(field, None)
                copy["steps"][number].setdefault("service", "render")
            case (str() as field, *_) if field != "steps":
                copy.pop(field, None)
            case _:
                pass
    return copy


def _decide_all(case: Made, workflow: WorkflowDef, tools: list[ToolDef]) -> None:
    flow = Flow(workflow, tools=tools)
    for step in workflow.steps[:20]:
        found = flow.step(step.key)
        facts = Facts(
            params=case.options,
            job={"id": "0", "workflow": "w", "version": 1, "created_at": NOW},
            trigger=case.trigger,
            now=NOW,
            results={key: _as_result(value) for key, value in case.results.items()},
        )
        limit = HANG if step.for_each is None else HANG_OF_ITEMS
        decision = quickly(lambda found=found, facts=facts: decide(found, facts), within=limit)
        match decision:
            case Fail(message=message):
                assert message.strip()
                assert len(message) < 20_000
            case RunStep(given=given):
                orjson.dumps(given)
            case Multiply(given=given):
                orjson.dumps(given)
            case _:
                pass


def _written(case: Made) -> tuple[WorkflowDef, list[ToolDef]]:
    """As `workflows check` and `apply` do, without the file."""
    text = _as_json(case.document)
    workflow = Document("w.json", case.document, (), text).checked()
    tools = _tools(case)
    workflow = bound(workflow, [*tools, *BUILTINS])
    orjson.dumps(workflow.steps_document())
    canonical_yaml(workflow)
    return workflow, [*tools, *BUILTINS]


def _tools(case: Made) -> list[ToolDef]:
    """Those that are sound."""
    tools: list[ToolDef] = []
    for each in case.tools:
        try:
            tools.append(ToolDef.model_validate(each))
        except ValidationError as error:
            if not problems(error, ToolDef):
                raise
    return tools


def _as_json(document: Any) -> bytes:
    """Lines are only found in what is JSON."""
    try:
        return orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_INDENT_2)
    except TypeError:
        return b""


def _as_result(value: Any) -> Result:
    return Result(value is not None, value, len(_as_json(value)))


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(Run(SEED, 400), id="a_few"),
        pytest.param(Run(SEED + 1, 5_000), id="5000", marks=[pytest.mark.soak, pytest.mark.timeout(1_800)]),
    ],
)
def test_a_pipeline_is_refused_in_words_or_each_of_its_steps_is_decided(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    os.mkfifo(tmp_path / "pipe")
    with socket.create_server(("127.0.0.1", 0)) as never_called:
        monkeypatch.setitem(REAL, FILE, str(tmp_path / "pipe"))
        monkeypatch.setitem(REAL, HOST, f"127.0.0.1:{never_called.getsockname()[1]}")
        contained(run, made, attempt, within=30)
        never_called.setblocking(False)
        with pytest.raises(BlockingIOError):
            never_called.accept()


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(Run(SEED, 25), id="a_few"),
        pytest.param(Run(SEED + 1, 500), id="500", marks=[pytest.mark.soak, pytest.mark.timeout(1_800)]),
    ],
)
async def test_a_pipeline_is_refused_or_runs_through_the_database(run: Run, db_url: str, conn: Connection):
    async with opened(db_url) as db:
        await upsert_heartbeat(db, NODE)
        resolver = Resolver(db)
        with run.judged() as findings:
            for case in run.cases():
                made_up = mended(made(case.random))
                with findings.about(case, made_up):
                    if await _submitted(db, made_up, f"w{case.number}"):
                        await _run_through(db, resolver, made_up)
    bugs = "SELECT task_key, error_message FROM job_tasks WHERE error_message LIKE '%the resolver failed%'"
    assert await conn.fetch(bugs) == []
    assert await conn.fetchval("SELECT count(*) FROM job_tasks WHERE status = 'done'") > run.count, (
        "too much is refused"
    )
    assert await conn.fetch("SELECT what, id, found::text FROM accs.damage") == []
    await check(conn)


async def _submitted(db: Database, case: Made, name: str) -> bool:
    try:
        for tool in _tools(case):
            await put_tool(db, tool)
        document = {**case.document, "name": name} if isinstance(case.document, dict) else case.document
        workflow = WorkflowDef.model_validate(as_workflow(document))
        check_workflow(workflow)
        which = await apply_workflow(db, workflow)
        await submit_job(db, Submission(which, sanitise(case.options), trigger=sanitise(case.trigger)))
    except UserError as error:
        in_words(error)
        return False
    return True


async def _run_through(db: Database, resolver: Resolver, case: Made) -> None:
    """Resolves and carries out what is there until nothing is."""
    for _ in range(len(KEYS)):
        while (await resolver.run_once()).more:
            pass
        tasks = await claim_tasks(db, SERVICE, owner=NODE, node=NODE, limit=1000, lease=LEASE)
        if tasks:
            await start_tasks(db, [task.fence for task in tasks], owner=NODE)
            results = {key: sanitise(value) for key, value in case.results.items() if isinstance(value, dict)}
            ends = [Done(task.fence, results.get(task.task_key.partition("[")[0], {"n": 1})) for task in tasks]
            await finish_tasks(db, ends, owner=NODE)


def _a_tenth_of_a_second() -> None:
    until = time.thread_time() + 0.1
    while time.thread_time() < until:
        pass


def test_who_opens_a_file_or_takes_long_would_be_noticed(tmp_path: Path):
    (tmp_path / "canary").touch()

    def careless(number: int) -> None:
        with _watch().on():
            (tmp_path / "canary").read_text() if number else quickly(_a_tenth_of_a_second, within=0.05)

    numbers = iter((0, 1, 0, 1))
    with pytest.raises(AssertionError, match="2 kinds of findings") as found:
        contained(Run(SEED, 2), lambda _: next(numbers), careless)
    assert "it reached out" in str(found.value)
