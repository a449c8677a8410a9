"""What a share link shows of its job, and what not: other jobs, log lines, more than was shared."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from accsd.db.access import create_share
from tests.support.cluster import Connection
from tests.support.factory import OWNER, finish, node, started, step, submit_to, workflow
from tests.support.gateway import Gateway, serving
from tests.support.resolving import resolve
from tests.support.topics import settle_plain

SECRET = "salaries-of-all"
HOUR = 3600.0
ONE = {"with": {"n": 1}, "now": "2026-11-18T09:00:00Z"}


@dataclass
class Shared:
    """A job that another workflow's event has started, with the result and the file of an earlier one; a link to it,
    and one with its files. `hidden`: what names those other jobs."""

    gateway: Gateway
    job: UUID
    plain: str
    wide: str
    borrowed: int
    hidden: list[str]


@pytest.fixture
async def shared(gateway: Gateway, conn: Connection) -> Shared:
    await node(conn)
    cached = await workflow(conn, step("probe", cache=HOUR), name="media-cut")
    source = await submit_to(conn, cached)
    await resolve(conn, source, "probe", given=ONE, cache_for=HOUR)
    (probing,) = await started(conn)
    await conn.execute(
        "SELECT accs.record_artifact($1, 1, $2, 'output', 'b', $3, 1, NULL, $4)",
        probing["task_id"],
        OWNER,
        f"outputs/{source}/probe/1/frames/1.png",
        "0" * 64,
    )
    await finish(conn, probing, results=[{"size": 7}])

    body = {"name": "after-pay", "workflow": "media-cut", "event": "accs.job.done"}
    assert (await gateway.post("/schedules", body, scope="operate")).status_code == 201
    await conn.execute("SELECT accs.choose_outcomes()")
    paid = await submit_to(conn, await workflow(conn, step("pay"), name="payroll"))
    await finish(conn, *await started(conn), results=[{SECRET: 9}])
    await settle_plain(conn)
    job = await conn.fetchval("SELECT id FROM jobs WHERE trigger -> 'event' ->> 'job_id' = $1", str(paid))
    await resolve(conn, job, "probe", given=ONE, cache_for=HOUR)
    verbs = gateway.context.verbs
    plain, wide = [
        (await create_share(verbs, job, lives=timedelta(days=1), artifacts=each, by="ada")).token
        for each in (False, True)
    ]
    borrowed = await conn.fetchval("SELECT artifact_id FROM accs.borrowed_files WHERE job_id = $1", job)
    return Shared(gateway, job, plain, wide, borrowed, [SECRET, str(paid), str(source), "after-pay", "outputs/"])


def texts(row: Shared, *routes: str) -> Iterator[str]:
    return (f"/jobs/{row.job}{route}" for route in routes)


async def test_a_share_names_no_other_job_whatever_started_its_own_and_whosever_result_it_has(shared: Shared):
    routes = ("", "/tasks", "/events", "/artifacts", "/attempts", "/explain", "/fold", "/history")
    everything = ""
    for path in texts(shared, *routes):
        full = await shared.gateway.get(path, scope="read")
        answer = await shared.gateway.get(path, token=shared.wide)
        assert answer.status_code == full.status_code == 200, path
        assert not [each for each in shared.hidden if each in answer.text], f"{path}: {answer.text}"
        everything += full.text
    assert not [each for each in shared.hidden if each not in everything], "nothing was to be hidden"

    shown = (await shared.gateway.get(f"/jobs/{shared.job}", token=shared.plain)).json()
    assert shown["trigger"] == {"cause": "event"}
    (task,) = shown["tasks"]["items"]
    assert (task["status"], task["results"]) == ("done", {"size": 7})
    events = (await shared.gateway.get(f"/jobs/{shared.job}/events", token=shared.plain)).json()["items"]
    assert [each["message"] for each in events if each["type"] == "cache"] == [None]
    assert {"from": "running", "to": "done"} in [each["data"] for each in events]


async def test_the_stream_of_a_share_names_no_other_job_either(shared: Shared, conn: Connection):
    said = {"job_id": shared.hidden[1], "to": "done"}
    insert = """INSERT INTO task_events (job_id, source, level, type, message, data)
                VALUES ($1, 'resolver', 'info', $2, $3, $4)"""
    headers = {"Authorization": f"Bearer {shared.plain}", "Accept": "application/x-ndjson"}
    told: list[dict[str, Any]] = []
    path = f"/api/v1/jobs/{shared.job}/stream"
    async with shared.gateway.client.stream("GET", path, headers=headers) as answer:
        lines = answer.aiter_lines()
        told.append(json.loads(await anext(lines)))
        assert set(told[0]["data"]["hearing"]) == {"state"}, "why it does not hear may name the database"
        await conn.execute(insert, shared.job, "cache", f"done with the result of job {shared.hidden[1]}", said)
        await conn.execute(insert, shared.job, "status", "running → done", said)
        async for line in lines:
            if line:
                told.append(json.loads(line))
            if told[-1]["event"] == "job":
                break
    text = json.dumps(told)
    assert not [each for each in shared.hidden if each in text], text
    events = [each["data"] for each in told if each["event"] == "event"]
    assert [(each["type"], each["message"], each["data"]) for each in events] == [
        ("cache", None, None),
        ("status", "running → done", {"to": "done"}),
    ]


async def test_a_limited_token_reads_nothing_of_the_job_elsewhere_that_started_its_own(shared: Shared):
    token = await shared.gateway.token("operate", actor="studio", limits={"workflows": ["media-*"]})
    for path in (f"/jobs/{shared.job}", "/jobs"):
        answer = await shared.gateway.get(path, token=token)
        assert answer.status_code == 200
        assert not [each for each in shared.hidden[:2] if each in answer.text], path
    trigger = (await shared.gateway.get(f"/jobs/{shared.job}", token=token)).json()["trigger"]
    assert (trigger["cause"], trigger["schedule"], trigger["event"]) == ("event", "after-pay", None)


async def test_a_share_shows_no_line_of_a_log(shared: Shared, conn: Connection):
    """Neither among the events nor as a part of a log that was stored."""
    which = await conn.fetchval("SELECT id FROM job_tasks WHERE job_id = $1", shared.job)
    part = await conn.fetchval(
        """INSERT INTO task_artifacts (job_id, job_task_id, attempt_id, kind, bucket, key)
           VALUES ($1, $2, 1, 'log', 'b', $3) RETURNING id""",
        shared.job,
        which,
        f"logs/{shared.job}/probe/1/000001.jsonl",
    )
    for path in (
        f"/jobs/{shared.job}/events?chatter=true",
        f"/jobs/{shared.job}/artifacts?logs=true",
        f"/artifacts/{part}",
        f"/artifacts/{part}/content",
    ):
        assert (await shared.gateway.get(path, token=shared.wide)).status_code == 403, path
    assert (await shared.gateway.get(f"/jobs/{shared.job}/artifacts?logs=true", scope="read")).status_code == 200


async def test_a_share_with_files_has_those_of_a_cached_result(shared: Shared):
    (listed,) = (await shared.gateway.get(f"/jobs/{shared.job}/artifacts", token=shared.wide)).json()["items"]
    assert (listed["id"], listed["name"], listed["job_id"]) == (shared.borrowed, "frames/1.png", str(shared.job))
    path = f"/artifacts/{shared.borrowed}"
    assert (await shared.gateway.get(path, token=shared.wide)).json() == listed
    content = await shared.gateway.get(f"{path}/content", token=shared.wide)
    assert (content.status_code, content.json()["code"]) == (409, "stored_elsewhere")
    assert not [each for each in shared.hidden if each in content.text]
    assert (await shared.gateway.get(path, token=shared.plain)).status_code == 403


async def test_shares_that_are_switched_off_let_nobody_in_who_had_a_link(
    gateway: Gateway, db_url: str, conn: Connection
):
    job = await submit_to(conn, await workflow(conn, step("a")))
    share = await gateway.share(job)
    page = {"X-Accsd": "1", "Sec-Fetch-Site": "same-origin"}
    opened = await gateway.ask("POST", "/session", json={"share": share}, headers=page)
    assert (opened.status_code, opened.json()["subject"]) == (201, f"job:{job}")
    cookie = {"Cookie": f"accsd_session={opened.cookies['accsd_session']}"}
    gateway.client.cookies.clear()
    async with serving(db_url) as off:
        for given in ({"token": share}, {"headers": cookie}):
            refused = await off.get(f"/jobs/{job}", **given)
            assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")
        assert (await off.get("/session", headers=cookie)).json() == {"actor": None}
        for body in ({"share": share}, {"token": share}):
            assert (await off.ask("POST", "/session", json=body, headers=page)).status_code == 401
        assert await conn.fetchval("SELECT count(*) FROM accs.sessions") == 1
        (known,) = (await off.get(f"/jobs/{job}/shares", scope="operate")).json()["items"]
        revoked = await off.ask("DELETE", f"/jobs/{job}/shares/{known['id']}", json={}, scope="operate")
        assert revoked.status_code == 200


async def test_a_link_logs_in_as_nothing_but_a_share(gateway: Gateway):
    """Whoever sends a link with a token of his own would have others work in his name."""
    refused = await gateway.post("/session", {"share": await gateway.token("submit")})
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")
    assert "set-cookie" not in refused.headers


async def test_whoever_comes_by_a_link_logs_out_and_is_told_no_reason_of_the_gateway(
    gateway: Gateway, conn: Connection
):
    share = await gateway.share(await submit_to(conn, await workflow(conn, step("a"))))
    page = {"X-Accsd": "1", "Sec-Fetch-Site": "same-origin"}
    await gateway.ask("POST", "/session", json={"share": share}, headers=page)
    assert set((await gateway.get("/session")).json()["hearing"]) == {"state"}
    assert (await gateway.ask("DELETE", "/session", headers=page)).status_code == 204
    assert await conn.fetchval("SELECT count(*) FROM accs.sessions") == 0


async def test_a_link_may_be_used_less_often_than_a_token(db_url: str, conn: Connection):
    limits = {"reads_per_second": 10, "writes_per_second": 100, "logins_per_minute": 100}
    async with serving(db_url, gateway={"shares": True, "limits": limits}) as gateway:
        job = await submit_to(conn, await workflow(conn, step("a")))
        counted: dict[str, int] = {}
        for who, token in (("share", await gateway.share(job)), ("reader", await gateway.token("read"))):
            answers = [(await gateway.get(f"/jobs/{job}/history", token=token)).status_code for _ in range(15)]
            counted[who] = answers.count(200)
    assert counted["reader"] == 15
    assert 5 <= counted["share"] < 10
