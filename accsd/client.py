"""The HTTP API from Python, with the names of the library: needs httpx (`pip install 'accsd[client]'`).

    async with Client("http://127.0.0.1:8460", token=os.environ["ACCSD_TOKEN"]) as accsd:
        job = await accsd.submit_job("media", {"source": "s3://in/1.mov"}, key="order-4711")
        done = await accsd.wait_for_job(job["id"])
        async for message in accsd.stream("job:" + job["id"]): ...

Answers are the documents of the API (docs/http-api.md). What the gateway refuses is a `Problem`; a request that it asks
to repeat later (429, 503) is sent again as long as that does no harm: reads, and whatever has a key.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self, cast
from uuid import uuid4

import httpx

from accsd.errors import AccsdError, InvalidValue

Document = dict[str, Any]
_LATER: Final = (429, 503)
_TRIES: Final = 5
_LONGEST_WAIT_SEC: Final = 60
_GONE: Final = (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError)


class Problem(AccsdError):
    """What the gateway answered instead: `code` decides, `document` has the rest."""

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        super().__init__(str(document.get("detail", "the gateway refused")), hint=document.get("hint"))
        self.status = status
        self.code = str(document.get("code", "unknown"))
        self.document: Document = dict(document)


class Client:
    """One gateway, one token. It may be used by many tasks at once."""

    def __init__(self, url: str, *, token: str, timeout: timedelta = timedelta(seconds=30)) -> None:
        self._http: httpx.AsyncClient = httpx.AsyncClient(
            base_url=f"{url.rstrip('/')}/api/v1",
            headers={"Authorization": f"Bearer {token}"},
            timeout=timeout.total_seconds(),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    # Jobs

    async def submit_job(
        self,
        workflow: str,
        options: Mapping[str, Any] | None = None,
        *,
        version: int | None = None,
        priority: int = 0,
        scheduled_at: datetime | None = None,
        key: str | None = None,
    ) -> Document:
        """Submits a job. Without a key of the caller's, it has one of its own, so that a lost answer makes no second
        job."""
        body = {"workflow": workflow, "options": dict(options or {}), "version": version, "priority": priority}
        return await self.call(
            "POST", "/jobs", {**body, "scheduled_at": _written(scheduled_at)}, key=key or f"client-{uuid4()}"
        )

    async def job(self, job_id: str) -> Document:
        return await self.call("GET", f"/jobs/{job_id}")

    async def wait_for_job(self, job_id: str, *, within: timedelta | None = None) -> Document:
        """The job when it has ended. TimeoutError after `within`."""
        ends = None if within is None else time.monotonic() + within.total_seconds()
        while True:
            left = _LONGEST_WAIT_SEC if ends is None else min(_LONGEST_WAIT_SEC, ends - time.monotonic())
            if left <= 0:
                raise TimeoutError(f"job {job_id} has not ended within {within}")
            job = await self.call("GET", f"/jobs/{job_id}", wait=max(1, round(left)))
            if job["status"] not in ("queued", "running"):
                return job

    async def jobs(self, q: str | None = None, *, limit: int = 50, **filters: str) -> AsyncGenerator[Document]:
        """All jobs that pass, page by page, the newest first."""
        cursor: str | None = None
        while True:
            page = await self.call("GET", "/jobs", params={**filters, "q": q, "limit": limit, "cursor": cursor})
            for job in page["items"]:
                yield job
            cursor = page["next"]
            if cursor is None:
                return

    async def cancel_job(self, job_id: str, *, reason: str | None = None, dry_run: bool = False) -> Document:
        return await self.call("POST", f"/jobs/{job_id}/cancel", {"reason": reason}, params={"dry_run": dry_run})

    async def retry_job(
        self, job_id: str, *, from_step: str | None = None, reason: str | None = None, dry_run: bool = False
    ) -> Document:
        body = {"from_step": from_step, "reason": reason}
        return await self.call("POST", f"/jobs/{job_id}/retry", body, params={"dry_run": dry_run})

    async def why(self, job_id: str) -> list[Document]:
        return (await self.call("GET", f"/jobs/{job_id}/why"))["items"]

    async def log(self, task_id: str, attempt_id: int, *, tail: int = 500) -> Document:
        return await self.call("GET", f"/tasks/{task_id}/attempts/{attempt_id}/log", params={"tail": tail})

    @asynccontextmanager
    async def artifact(self, artifact_id: int) -> AsyncGenerator[httpx.Response]:
        """The bytes of an artifact, as they come: `async for part in answer.aiter_bytes()`."""
        async with self._http.stream("GET", f"/artifacts/{artifact_id}/content") as answer:
            if answer.is_error:
                await answer.aread()
                raise _problem(answer)
            yield answer

    # Workflows, schedules, events

    async def apply_workflow(self, workflow: Mapping[str, Any], *, dry_run: bool = False) -> Document:
        return await self.call("PUT", f"/workflows/{workflow['name']}", workflow, params={"dry_run": dry_run})

    async def put_schedule(self, schedule: Mapping[str, Any], *, dry_run: bool = False) -> Document:
        return await self.call("POST", "/schedules", schedule, params={"dry_run": dry_run})

    async def run_now(
        self, schedule: str, options: Mapping[str, Any] | None = None, *, key: str | None = None
    ) -> Document:
        body = {"options": None if options is None else dict(options)}
        return await self.call("POST", f"/schedules/{schedule}/run_now", body, key=key or f"client-{uuid4()}")

    async def start_backfill(
        self,
        schedule: str,
        begin: datetime,
        end: datetime | None = None,
        *,
        key: str | None = None,
        dry_run: bool = False,
        **how: Any,
    ) -> Document:
        """Runs a schedule for times that lie behind. `how`: order, parallel, existing, options, priority, force, token,
        reason."""
        body = {"schedule": schedule, "from": _written(begin), "to": _written(end), **how}
        return await self.call(
            "POST", "/backfills", body, params={"dry_run": dry_run}, key=None if dry_run else key or f"client-{uuid4()}"
        )

    async def emit_event(
        self, topic: str, payload: Mapping[str, Any] | None = None, *, key: str | None = None
    ) -> Document:
        body = {"topic": topic, "payload": dict(payload or {})}
        return await self.call("POST", "/events", body, key=key or f"client-{uuid4()}")

    async def report_sample(
        self, condition: str, value: float | bool | None, *, key: str | None = None
    ) -> list[Document]:
        made = await self.call("POST", f"/conditions/{condition}", {"value": value}, key=key or f"client-{uuid4()}")
        return made["items"]

    async def rehearse(self, workflow: str, count: int = 1, *, due_at: datetime | None = None, **how: Any) -> Document:
        """What so many more jobs would do to the fleet; nothing is submitted. `how`: version, priority, durations."""
        body = {"workflow": workflow, "count": count, "due_at": _written(due_at), **how}
        return await self.call("POST", "/fleet/rehearsal", body)

    # Live

    async def stream(self, *topics: str, after: str | None = None) -> AsyncGenerator[Document]:
        """Messages {id, event, data} of these topics, for ever: a connection that breaks is taken up where it was. An
        `event` of "reset" says that something was missed, and what to read again."""
        if not topics:
            raise InvalidValue("a stream needs a topic: overview, jobs, job:ID, node:NAME, log:TASK:ATTEMPT")
        pause = 0.5
        while True:
            params = {"topics": ",".join(topics)} | ({} if after is None else {"after": after})
            accept = {"Accept": "application/x-ndjson"}
            try:
                async with self._http.stream("GET", "/stream", params=params, headers=accept, timeout=60) as answer:
                    if answer.is_error:
                        await answer.aread()
                        raise _problem(answer)
                    pause = 0.5
                    async for line in answer.aiter_lines():
                        if line.strip():
                            message = cast("Document", httpx.Response(200, content=line).json())
                            after = message.get("id") or after
                            yield message
            except (*_GONE, httpx.ReadTimeout):
                pass
            except Problem as problem:
                if problem.status not in _LATER:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, 10.0)

    # Anything

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        key: str | None = None,
        wait: int | None = None,
    ) -> Document:
        """Any route: `await accsd.call("GET", "/fleet/energy")`. Raises Problem."""
        headers = {} if key is None else {"Idempotency-Key": key}
        headers |= {} if wait is None else {"Prefer": f"wait={wait}"}
        given = {name: _written(value) for name, value in (params or {}).items() if value is not None}
        timeout = self._http.timeout if wait is None else httpx.Timeout(wait + 30)
        attempt = 0
        while True:
            is_last = attempt == _TRIES - 1 or (method != "GET" and key is None)
            attempt += 1
            try:
                answer = await self._http.request(
                    method, path, json=body if method != "GET" else None, params=given, headers=headers, timeout=timeout
                )
            except _GONE as error:
                if is_last:
                    raise Problem(
                        0, {"detail": f"the gateway does not answer: {error}", "code": "unreachable"}
                    ) from error
                await asyncio.sleep(0.1 * 2**attempt)
                continue
            if answer.status_code not in _LATER or is_last:
                break
            await asyncio.sleep(min(float(answer.headers.get("retry-after", 1)), 30.0))
        if answer.is_error:
            raise _problem(answer)
        return cast("Document", answer.json() if answer.content else {})


def _problem(answer: httpx.Response) -> Problem:
    try:
        return Problem(answer.status_code, answer.json())
    except ValueError:
        return Problem(answer.status_code, {"detail": answer.text[:500] or answer.reason_phrase})


def _written(value: Any) -> Any:
    match value:
        case bool():
            return "true" if value else "false"
        case datetime():
            return value.isoformat()
        case _:
            return value
