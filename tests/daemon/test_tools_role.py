"""The role `tools`: what the control host does for steps, with lease and fence like everybody's (TL6, TL7), against a
real server; and secrets, which only the machine knows (PL5)."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from accsd.builder.resolver import Resolver
from accsd.builder.tools import Tools
from accsd.db import Database, Submission, apply_workflow, emit_event, submit_job
from accsd.db.listen import Listener
from accsd.db.tools import put_tool
from accsd.metrics import Metrics
from accsd.model import WorkflowDef
from accsd.model.tool import ToolDef
from accsd.settings import Settings
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import job, task
from tests.support.library import opened

_CANARY = "canary-5f2c9d71e0"


class Receiver:
    """Answers each request with the next of `answers`: (status, body), or None to say nothing."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes] | None] = []
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        self.port: int = 0

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *fields = head.strip().splitlines()
            headers = dict(field.split(": ", 1) for field in fields)
            body = await reader.readexactly(int(headers.get("Content-Length", 0)))
            self.asked.append((line.removesuffix(" HTTP/1.1"), headers, body))
            answer = self.answers.pop(0) if self.answers else (200, b"{}")
            if answer is None:
                await reader.read()  # until the other side gives up
            else:
                status, text = answer
                writer.write(b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n%s" % (status, len(text), text))
                await writer.drain()
        writer.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    server = await asyncio.start_server(made.take, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as database:
        yield database


@asynccontextmanager
async def control_host(db_url: str, db: Database, **sections: Any) -> AsyncGenerator[None]:
    """A resolver and the role, in this loop."""
    settings = Settings.model_validate({"database": {"url": db_url}, "poll_sec": 0.5, **sections})
    listener = Listener(settings.database, settings.notify_channel_prefix, behind_pooler=False, db=db)
    role = Tools(db, settings, listener, store=None, metrics=Metrics())

    async def resolve() -> None:
        while True:
            await Resolver(db).run_once()
            await asyncio.sleep(0.02)

    working = [asyncio.create_task(each) for each in (listener.serve(), role.serve(), resolve())]
    try:
        yield
    finally:
        for each in working[1:]:
            each.cancel()
        await asyncio.wait(working[1:])
        working[0].cancel()
        await asyncio.wait(working)


def target(receiver: Receiver, **fields: Any) -> dict[str, Any]:
    return {"targets": {"api": {"url": f"http://127.0.0.1:{receiver.port}/v1", "allow_private": True, **fields}}}


async def http_tool(db: Database, *, path: str = "/send", **fields: Any) -> None:
    request = {"target": "api", "path": path, **fields.pop("request", {})}
    document = {"name": "chat.send", "kind": "http", "request": request, **fields}
    document.setdefault("input_schema", {"additionalProperties": True})
    await put_tool(db, ToolDef.model_validate(document))


async def started(db: Database, *steps: dict[str, Any], name: str = "w", **options: Any) -> UUID:
    workflow = WorkflowDef.model_validate({"name": name, "steps": list(steps)})
    return await submit_job(db, Submission(await apply_workflow(db, workflow), options))


async def ended(conn: Connection, made: UUID, status: str) -> None:
    async def is_so() -> bool:
        return (await job(conn, made))["status"] == status

    await eventually(is_so)


def a_step(given: dict[str, Any], uses: str = "chat.send", **fields: Any) -> dict[str, Any]:
    return {"key": "a", "uses": uses, "with": given, "backoff": [0], **fields}


async def test_an_http_tool_sends_the_input_and_its_answer_is_the_result(
    db_url: str, db: Database, conn: Connection, receiver: Receiver
):
    await http_tool(db, path="/rooms/{room}/send", output_schema={"required": ["id"]})
    receiver.answers = [(500, b"down"), (200, b'{"id": 7}')]
    async with control_host(db_url, db, tools=target(receiver)):
        made = await started(db, a_step({"room": "a/../b", "text": "${params.text}"}), text="hi")
        await ended(conn, made, "done")

    found = await task(conn, made)
    assert (found["results"], found["attempt"]) == ({"id": 7}, 1), "one attempt was spent"
    assert [asked[0] for asked in receiver.asked] == ["POST /v1/rooms/a%2F..%2Fb/send"] * 2
    assert json.loads(receiver.asked[1][2]) == {"room": "a/../b", "text": "hi"}
    assert {asked[1]["Idempotency-Key"] for asked in receiver.asked} == {str(found["id"])}
    assert found["claimed_by"].startswith("control/")
    assert await conn.fetchval("SELECT count(*) FROM nodes") == 0, "it forgets its node when it leaves"
    await check(conn)


@pytest.mark.parametrize(
    ("answers", "said", "attempts"),
    [
        ([(404, b"no such room")], "it was answered 404: no such room", 1),
        ([(302, b"")], "redirect", 1),
        ([(503, b""), (429, b"")], "it was answered 429", 2),
        ([None, None], "did not answer within 0.2 s", 2),
        ([(200, b"<html>")] * 2, "the answer is no JSON", 2),
        ([(200, b'{"id": "x"}')] * 2, "chat.send@1: results.id must be a whole number", 2),
        ([(200, b'"' + b"x" * 300_000 + b'"')] * 2, "longer than", 2),
    ],
)
async def test_what_an_http_tool_can_not_do_is_tried_again_only_where_that_may_help(
    db_url: str, db: Database, conn: Connection, receiver: Receiver, answers: list[Any], said: str, attempts: int
):
    await http_tool(db, output_schema={"properties": {"id": {"type": "integer"}}})
    receiver.answers = list(answers)
    async with control_host(db_url, db, tools=target(receiver, timeout="0.2s")):
        made = await started(db, a_step({}, max_attempts=2))
        await ended(conn, made, "error")

    found = await task(conn, made)
    assert said in found["error_message"]
    assert (found["attempt"], len(receiver.asked)) == (attempts, attempts)
    assert found["error_code"] == ("output_invalid" if said[:4] in ("the ", "chat") else "call_failed")


async def test_addresses_that_are_not_allowed_are_not_called(
    db_url: str, db: Database, conn: Connection, receiver: Receiver
):
    await http_tool(db)
    private = {"targets": {"api": {"url": f"https://127.0.0.1:{receiver.port}/"}}}
    async with control_host(db_url, db, tools=private):
        made = await started(db, a_step({}))
        await ended(conn, made, "error")
    assert "which is a private address" in (await task(conn, made))["error_message"]

    async with control_host(db_url, db):
        made = await started(db, a_step({}))
        await ended(conn, made, "error")
    assert "not among [tools.targets]" in (await task(conn, made))["error_message"]
    assert receiver.asked == []


async def test_an_event_is_emitted_once_and_a_job_submitted_and_waited_for(db_url: str, db: Database, conn: Connection):
    transform = {"key": "x", "uses": "accs.transform", "with": {"n": "${params.n}"}}
    await apply_workflow(db, WorkflowDef.model_validate({"name": "below", "steps": [transform]}))
    steps = [
        a_step({"topic": "shop.sold", "payload": {"n": "${params.n}"}}, "accs.emit_event"),
        {
            "key": "b",
            "uses": "accs.submit",
            "with": {"workflow": "below", "options": {"n": 4}, "wait": True},
            "depends_on": ["a"],
        },
    ]
    async with control_host(db_url, db):
        made = await started(db, *steps, n=3)
        await ended(conn, made, "done")

    event = await conn.fetchrow("SELECT * FROM events WHERE topic = 'shop.sold'")
    assert event is not None
    assert (event["payload"], event["job_id"]) == ({"n": 3}, made)
    result = (await task(conn, made, "b"))["results"]
    assert result["status"] == "done"
    below = await job(conn, UUID(result["job_id"]))
    assert (below["trigger"]["job_id"], below["trigger"]["depth"]) == (str(made), 1)
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 2
    await check(conn)


async def test_a_step_waits_for_an_event_that_matches_and_takes_no_slot(
    db_url: str, db: Database, conn: Connection, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("accsd.builder.tools._LOOKS", (0.05, 0.1))
    waits = {
        "topic": "shop.paid",
        "match": "event.payload.order == values.order",
        "values": {"order": "${params.order}"},
    }
    steps = [
        a_step(waits, "accs.wait_event"),
        {"key": "b", "uses": "accs.wait_event", "with": {"topic": "shop.lost", "timeout": 0}},
        {"key": "c", "uses": "accs.wait_event", "with": {"topic": "shop.lost", "match": "event.payload +"}},
    ]
    await emit_event(db, "shop.paid", {"order": 7})  # before the step could begin
    async with control_host(db_url, db, tools={"at_once": 1}):
        made = await started(db, *steps, order=7)

        async def row(key: str, status: str) -> bool:
            return (await task(conn, made, key))["status"] == status

        await eventually(lambda: row("b", "done"))  # though there is one slot, and the first step waits
        await emit_event(db, "shop.lost")
        await eventually(lambda: row("c", "error"))
        await emit_event(db, "shop.paid", {"order": 8})
        sold = await emit_event(db, "shop.paid", {"order": 7})
        await eventually(lambda: row("a", "done"))

    assert (await task(conn, made, "b"))["results"] == {"timed_out": True}
    found = await task(conn, made, "a")
    assert (found["results"]["event"]["id"], found["results"]["timed_out"]) == (sold.event_id, False)
    assert (found["attempt"], found["lost"]) == (0, 0)
    wrong = await task(conn, made, "c")
    assert (wrong["error_code"], "event.payload +" in wrong["error_message"]) == ("call_failed", True)
    await check(conn)


async def test_a_workflow_that_submits_itself_ends(db_url: str, db: Database, conn: Connection):
    async with control_host(db_url, db):
        await started(db, a_step({"workflow": "w"}, "accs.submit", max_attempts=1))

        async def has_ended() -> bool:
            return await conn.fetchval("SELECT count(*) FROM jobs WHERE status = 'error'") == 1

        await eventually(has_ended)
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 11


async def everything_kept(conn: Connection) -> str:
    """All rows of all tables, as one text."""
    names = await conn.fetch(
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname IN ('public', 'accs')"
    )
    rows = [await conn.fetch(f"SELECT t::text FROM {name[0]} t") for name in names]
    return "\n".join(row[0] or "" for table in rows for row in table)


async def test_a_secret_is_sent_and_appears_in_no_table_and_no_log(
    db_url: str,
    db: Database,
    conn: Connection,
    receiver: Receiver,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    kept = tmp_path / "token"
    kept.write_text(f"{_CANARY}-file\n")
    monkeypatch.setenv("CHAT_KEY", f"{_CANARY}-env")
    await http_tool(db, request={"headers": {"Authorization": "${secret('chat')}"}})
    echo = json.dumps({"you": f"said {_CANARY}-file and {_CANARY}-env"}).encode()
    receiver.answers = [(500, echo), (200, echo)]
    secrets = {"chat": {"file": str(kept)}, "key": {"env": "CHAT_KEY"}}
    async with control_host(db_url, db, tools=target(receiver), secrets=secrets):
        made = await started(db, a_step({"deep": [{"key": "${secret('key')}"}]}))
        await ended(conn, made, "done")

    assert receiver.asked[0][1]["Authorization"] == f"{_CANARY}-file"
    assert json.loads(receiver.asked[0][2]) == {"deep": [{"key": f"{_CANARY}-env"}]}
    assert (await task(conn, made))["results"] == {"you": "said *** and ***"}
    assert "***" in (everything := await everything_kept(conn))
    assert _CANARY not in everything
    assert _CANARY not in "".join(capfd.readouterr())


async def test_a_secret_that_is_missing_spends_no_attempt(
    db_url: str, db: Database, conn: Connection, receiver: Receiver
):
    await http_tool(db)
    async with control_host(db_url, db, tools=target(receiver), secrets={"other": {"env": "X", "services": ["web"]}}):
        made = await started(db, a_step({"key": "${secret('other')}"}))

        async def is_told() -> bool:
            return (await task(conn, made))["error_code"] == "secret_missing"

        await eventually(is_told)
    found = await task(conn, made)
    assert found["attempt"] == 0 or found["status"] == "error"
    assert 'gives the secret "other" to other services than accs' in found["error_message"]
    assert receiver.asked == []
