"""Does what steps ask of the control host itself: tools of kind http, and those that come with accsd.

Their tasks are tasks of the reserved service `accs`. This role claims them like a service in pull mode, as a node of
its own, with lease and fence like everybody's. It begins when the first workflow uses such a tool.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote, urlencode
from uuid import UUID

import anyio
import orjson

from accsd import failpoints
from accsd.db import Database, Submission, emit_event, forget_node, submit_job, workflow_id
from accsd.db.listen import Listener
from accsd.db.tools import find_tools, has_tasks_for_control, job_outcome, silent_control_nodes
from accsd.db.topics import events_of_topic, time_since
from accsd.errors import AttemptFailed, InvalidValue, ServiceBusy, UserError
from accsd.expressions import Budget, Context, Names, evaluate_condition
from accsd.log import redact
from accsd.metrics import Metrics
from accsd.model.outcome import ErrorCode
from accsd.model.tool import HttpRequest, ToolDef
from accsd.model.workflow import LONGEST_DELAY
from accsd.net import AddressRefused, CallFailed, Request, fetch_whole
from accsd.sdk.pull.attempt import Handler
from accsd.sdk.pull.stop import StopRequest
from accsd.sdk.pull.task import PullTask
from accsd.sdk.pull.worker import Worker
from accsd.sdk.wire import Task
from accsd.settings import Settings
from accsd.storage import ObjectStore
from accsd.values.names import KIND_LABEL, TOOL_SERVICE
from accsd.values.units import parse_duration
from accsd.wakeup import Wakeup
from accsd.work.context import AttemptContext
from accsd.work.lease import LeaseKeeper
from accsd.work.reporter import Reporter
from accsd.work.secrets import secret_value

_LARGEST_ANSWER: Final = 256 * 1024
_SHOWN: Final = 300
_FIELD: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET: Final = re.compile(r"""\$\{\s*secret\(\s*['"]([^'"\\]+)['"]\s*\)\s*\}""")
_TRY_AGAIN: Final = frozenset({408, 425, 429})
_STOP_GRACE: Final = timedelta(seconds=5)
_LOOKS: Final = (1.0, 30.0)  # seconds between two looks at what is waited for: a tenth of its age
_LONGEST_WAIT: Final = "1d"  # for an event, unless the step says otherwise
_MATCHING: Final = 2_000_000_000  # nanoseconds that the condition may take for all events of one look
_EVENT: Final = Names(values=("event", "values"), moments=("event.at",))
_DEEPEST: Final = 10  # jobs that submit jobs


class Tools:
    def __init__(
        self,
        db: Database,
        settings: Settings,
        listener: Listener,
        *,
        store: ObjectStore | None,
        metrics: Metrics,
    ) -> None:
        self._db = db
        self._settings = settings
        self._listener = listener
        self._store = store
        self._metrics = metrics
        self._known: dict[str, ToolDef] = {}
        self._heard: Wakeup = Wakeup()

    async def serve(self) -> None:
        self._listener.subscribe(TOOL_SERVICE, lambda _: self._heard.set())
        while not await has_tasks_for_control(self._db):
            await self._heard.wait(self._listener.poll(self._settings))
            self._heard.clear()  # before the table is read: who writes meanwhile is heard
        for name in await silent_control_nodes(self._db, silent=2 * self._settings.lease):
            await forget_node(self._db, name)
        asked = StopRequest()
        name = f"control/{self._settings.node.name}/{secrets.token_hex(3)}"
        working = asyncio.ensure_future(self._worker(name, asked).run(lambda: None))
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            asked.again()
            with anyio.CancelScope(shield=True):
                await working
                await forget_node(self._db, name)
            raise

    def _worker(self, name: str, asked: StopRequest) -> Worker:
        settings = self._settings.model_copy(
            update={
                "node": self._settings.node.model_copy(update={"labels": {KIND_LABEL: "control"}}),
                "drain_sec": min(self._settings.drain_sec, _STOP_GRACE.total_seconds()),
            }
        )
        resumed = Wakeup()
        context = AttemptContext(
            name=name,
            db=self._db,
            store=cast("ObjectStore", self._store),  # what is done here has no files
            leases=LeaseKeeper(
                self._db,
                node=name,
                lease=settings.lease,
                every=settings.heartbeat,
                metrics=self._metrics,
                when_resumed=resumed.set,
            ),
            reporter=Reporter(self._db, owner=name),
            metrics=self._metrics,
            attempts_folder=Path("/nonexistent"),
            patience=settings.storage.patience,
            backoff_base=settings.backoff_base,
            secrets=settings.secrets,
        )
        handler = Handler(TOOL_SERVICE, self._perform, True, lambda params: params, None, _STOP_GRACE)
        return Worker(
            handler, context, self._listener, settings, resumed, concurrency=settings.tools.at_once, asked=asked
        )

    async def _perform(self, task: Task[Any]) -> dict[str, Any]:
        assert isinstance(task, PullTask)
        tool = await self._tool(task.claimed.tool or "")
        result = await self._performed(tool, task)
        failpoints.hit("tool.done")
        return result

    async def _performed(self, tool: ToolDef, task: PullTask) -> dict[str, Any]:
        if tool.request is not None:
            return await self._call(tool, tool.request, task)
        does: dict[str, Callable[[PullTask], Any]] = {
            "accs.emit_event": self._emit,
            "accs.submit": self._submit,
            "accs.wait_event": self._wait_event,
            "accs.assert": self._assert,
            "accs.transform": self._transform,
        }
        return await does[tool.name](task)

    async def _tool(self, reference: str) -> ToolDef:
        """A version never changes: it is read once."""
        if reference not in self._known:
            found = await find_tools(self._db, [reference.partition("@")[0]])
            self._known.update({tool.reference: tool for tool in found})
        if reference not in self._known:
            raise AttemptFailed(ErrorCode.CALL_FAILED, f"there is no tool {reference}", permanent=True)
        return self._known[reference]

    # What comes with accsd

    async def _emit(self, task: PullTask) -> dict[str, Any]:
        given = task.params
        try:
            emitted = await emit_event(
                self._db,
                given["topic"],
                given.get("payload"),
                key=given.get("key") or _once(task),
                source=f"step:{task.claimed.task_key}",
                job_id=task.claimed.job_id,
            )
        except UserError as error:
            raise AttemptFailed(ErrorCode.CALL_FAILED, str(error), permanent=True) from error
        return {"event_id": emitted.event_id}

    async def _submit(self, task: PullTask) -> dict[str, Any]:
        """Submits once, whatever the attempt. A job that is waited for is looked at from time to time: the task is
        given back meanwhile, so that jobs that wait for jobs take no slot from each other."""
        given, claimed = task.params, task.claimed
        depth = (claimed.trigger or {}).get("depth", 0) + 1
        if depth > _DEEPEST:
            said = f"{_DEEPEST} jobs have submitted each other: this one submits no more"
            raise AttemptFailed(ErrorCode.CALL_FAILED, said, permanent=True)
        try:
            made = await submit_job(
                self._db,
                Submission(
                    await workflow_id(self._db, given["workflow"], given.get("version")),
                    given.get("options"),
                    given.get("priority", 0),
                    key=_once(task),
                    trace_id=claimed.trace_id,
                    trigger={"kind": "job", "job_id": str(claimed.job_id), "step": claimed.task_key, "depth": depth},
                ),
                created_by=f"job:{claimed.job_id}",
            )
        except UserError as error:
            raise AttemptFailed(ErrorCode.CALL_FAILED, str(error), permanent=True) from error
        return await self._awaited(made) if given.get("wait") else {"job_id": str(made)}

    async def _awaited(self, made: UUID) -> dict[str, Any]:
        status, age = await job_outcome(self._db, made)
        if status == "done":
            return {"job_id": str(made), "status": status}
        if status in ("error", "cancelled"):
            said = f"job {made} that it waited for has ended: {status}"
            raise AttemptFailed(ErrorCode.CALL_FAILED, said, permanent=True)
        raise ServiceBusy(f"it waits for job {made}", again_in=_next_look(age))

    async def _wait_event(self, task: PullTask) -> dict[str, Any]:
        """Looks from time to time whether the event is there; the task is given back meanwhile, and takes no slot. All
        events since the step was resolved are looked at each time: one that was emitted in a long transaction has an
        earlier id than those that were seen before."""
        topic, since = task.params["topic"], datetime.fromisoformat(task.claimed.resolved_at or "")
        try:
            waits = _as_duration(task.params.get("timeout", _LONGEST_WAIT))
            age = await time_since(self._db, since)  # before the look: what comes in time is found
            found = await self._first_event(topic, since, task.params)
        except UserError as error:
            raise AttemptFailed(ErrorCode.CALL_FAILED, str(error), permanent=True) from error
        if found is not None:
            return {"timed_out": False, "event": found}
        if age >= waits:
            return {"timed_out": True}
        raise ServiceBusy(f"it waits for an event of {topic}", again_in=min(_next_look(age), waits - age))

    async def _first_event(self, topic: str, since: datetime, given: Mapping[str, Any]) -> dict[str, Any] | None:
        budget, after, match = Budget(_MATCHING), 0, given.get("match")
        while page := await events_of_topic(self._db, topic, since, after=after):
            events = [{**row, "job_id": row["job_id"] and str(row["job_id"])} for row in page]
            if match is None:
                return _shown_event(events[0])
            # in a thread: an expression may take a quarter of a second
            found = await asyncio.to_thread(_matching, match, given.get("values", {}), events, budget)
            if found is not None:
                return _shown_event(found)
            after = page[-1]["id"]
        return None

    async def _assert(self, task: PullTask) -> dict[str, Any]:
        if task.params["that"]:
            return {}
        said = task.params.get("message") or "what it asserts does not hold"
        raise AttemptFailed(ErrorCode.CALL_FAILED, said, permanent=True)

    async def _transform(self, task: PullTask) -> dict[str, Any]:
        return task.params

    # Kind http

    async def _call(self, tool: ToolDef, request: HttpRequest, task: PullTask) -> dict[str, Any]:
        target = self._settings.tools.targets.get(request.target)
        if target is None:
            said = f"{tool.reference} calls {request.target}, which is not among [tools.targets] of the control host"
            raise AttemptFailed(ErrorCode.CALL_FAILED, said, permanent=True)
        path, rest = _filled(request.path, task.params)
        has_body = request.method in ("POST", "PUT", "PATCH")
        query = "" if has_body or not rest else f"?{urlencode(rest)}"
        asked = Request(
            request.method,
            f"{target.url.rstrip('/')}{path}{query}",
            await asyncio.to_thread(self._headers, request, task),
            orjson.dumps(task.params) if has_body else b"",
            allow_private=target.allow_private,
            ca_file=target.ca_file,
        )
        try:
            status, body = await fetch_whole(asked, within=target.timeout, most=_LARGEST_ANSWER)
        except AddressRefused as error:
            raise AttemptFailed(ErrorCode.CALL_FAILED, str(error), permanent=True) from error
        except (CallFailed, OSError) as error:  # TimeoutError is an OSError
            raise AttemptFailed(ErrorCode.CALL_FAILED, str(error) or type(error).__name__) from error
        if not 200 <= status < 300:
            is_passing = status >= 500 or status in _TRY_AGAIN
            raise AttemptFailed(ErrorCode.CALL_FAILED, _complaint(status, body), permanent=not is_passing)
        return _result(body)

    def _headers(self, request: HttpRequest, task: PullTask) -> dict[str, str]:
        """The receiver may know a repeated attempt by the key."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": str(task.claimed.task_id)}
        for name, written in request.headers.items():
            secret = _SECRET.fullmatch(written)
            headers[name] = written
            if secret is not None:
                headers[name] = secret_value(secret[1], self._settings.secrets, service=TOOL_SERVICE)
        return headers


def _next_look(age: timedelta) -> timedelta:
    return timedelta(seconds=min(max(age.total_seconds() / 10, _LOOKS[0]), _LOOKS[1]))


def _as_duration(written: Any) -> timedelta:
    seconds = parse_duration(written).total_seconds() if isinstance(written, str) else float(written)
    if not 0 <= seconds <= LONGEST_DELAY:
        raise InvalidValue("timeout must be between 0 and a year")
    return timedelta(seconds=seconds)


def _matching(
    match: str, values: dict[str, Any], events: Sequence[dict[str, Any]], budget: Budget
) -> dict[str, Any] | None:
    """The first for which the condition holds. What the step knows is among the values, and never part of the text:
    nobody's data is evaluated."""
    for event in events:
        if evaluate_condition(match, Context({"event": event, "values": values}, _EVENT, budget=budget)):
            return event
    return None


def _shown_event(event: dict[str, Any]) -> dict[str, Any]:
    shown = {name: event[name] for name in ("id", "topic", "payload", "key", "source")}
    return shown | {"at": event["at"].isoformat()}


def _once(task: PullTask) -> str:
    """The same for every attempt at a task, and another one when the task is resolved anew."""
    return f"tool/{task.claimed.task_id}/{task.claimed.resolved_at}"


def _filled(path: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The path with fields of the input in it, and the other fields. No field leads out of the path."""
    named = set[str]()

    def value(found: re.Match[str]) -> str:
        field = given.get(found[1])
        text = str(field).lower() if isinstance(field, bool) else str(field)
        if not isinstance(field, str | int | float) or text in ("", ".", ".."):
            what = f"with.{found[1]} can't stand in the path {path}"
            raise AttemptFailed(ErrorCode.CALL_FAILED, what, permanent=True)
        named.add(found[1])
        return quote(text, safe="")

    filled = _FIELD.sub(value, path)
    return filled, {name: each for name, each in given.items() if name not in named}


def _complaint(status: int, body: bytes) -> str:
    if 300 <= status < 400:
        return f"it was answered with a redirect ({status}), which is not followed"
    said = " ".join(redact(body.decode(errors="replace")).split())[:_SHOWN]
    return f"it was answered {status}" + (f": {said}" if said else "")


def _result(body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise AttemptFailed(ErrorCode.OUTPUT_INVALID, "the answer is no JSON") from None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {"value": found}
