"""Jobs over HTTP: submitted once, found, waited for, changed, and what would happen told before it does."""

import asyncio
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from accsd.db.statistics import count_events
from tests.support.cluster import Connection
from tests.support.factory import chain, claim, finish, node, started, step, submit
from tests.support.gateway import Gateway, serving


@pytest.fixture
async def media(conn: Connection) -> str:
    await conn.execute("INSERT INTO workflows (name, steps) VALUES ('media', $1)", chain("cut", "encode"))
    return "media"


async def submitted(gateway: Gateway, **body: Any) -> dict[str, Any]:
    answer = await gateway.post("/jobs", {"workflow": "media", **body}, scope="submit")
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_a_submission_answers_with_the_job_and_where_it_is(gateway: Gateway, media: str):
    """G-9: times have an offset and keep their microseconds."""
    answer = await gateway.post("/jobs", {"workflow": media, "options": {"a": 1}, "priority": 3}, scope="submit")
    assert answer.status_code == 201
    job = answer.json()
    assert (job["workflow"], job["options"], job["priority"], job["created_by"]) == ("media", {"a": 1}, 3, "submit")
    created = datetime.fromisoformat(job["created_at"])
    assert (created.utcoffset(), created.isoformat()) == (timedelta(0), job["created_at"].replace("Z", "+00:00"))
    found = await gateway.client.get(
        answer.headers["location"], headers={"Authorization": f"Bearer {await gateway.token('read')}"}
    )
    assert [task["task_key"] for task in found.json()["tasks"]["items"]] == ["cut", "encode"]


async def test_the_same_key_is_the_same_job_and_another_body_is_a_mistake(gateway: Gateway, media: str):
    headers = {"Idempotency-Key": "order-1"}
    first = await gateway.post("/jobs", {"workflow": media, "options": {"a": 1}}, scope="submit", headers=headers)
    again = await gateway.post("/jobs", {"workflow": media, "options": {"a": 1}}, scope="submit", headers=headers)
    other = await gateway.post("/jobs", {"workflow": media, "options": {"a": 2}}, scope="submit", headers=headers)
    somebody = await gateway.post("/jobs", {"workflow": media}, scope="operate", headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json()["id"] == first.json()["id"]
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    assert somebody.status_code == 201, "a key is its actor's own"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"workflow": "medio"}, 404, "not_found"),
        ({"workflow": "media", "option": {}}, 422, "invalid"),
        ({"workflow": "media", "priority": 2**31}, 422, "invalid"),
        ({"workflow": "media", "version": 9}, 404, "not_found"),
        ([], 422, "invalid"),
    ],
)
async def test_a_wrong_submission_is_a_problem_that_says_what_to_do(
    gateway: Gateway, media: str, body: Any, status: int, code: str
):
    answer = await gateway.post("/jobs", body, scope="submit")
    said = answer.json()
    assert (answer.status_code, said["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "detail", "instance"} <= said.keys()
    assert said["instance"] == answer.headers["x-request-id"]
    if body == {"workflow": "medio"}:
        assert "media" in said["detail"]


async def test_a_dry_run_checks_options_and_submits_nothing(gateway: Gateway, conn: Connection, media: str):
    await conn.execute(
        """UPDATE workflows SET options_schema = '{"type": "object", "required": ["crf"],
                                                   "properties": {"crf": {"type": "integer"}}}'"""
    )
    wrong = await gateway.post("/jobs?dry_run=true", {"workflow": media, "options": {"crf": "x"}}, scope="submit")
    right = await gateway.post("/jobs?dry_run=true", {"workflow": media, "options": {"crf": 1}}, scope="submit")
    assert wrong.status_code == 422
    assert wrong.json()["errors"][0]["pointer"] == "/crf"
    assert [each["key"] for each in right.json()["steps"]] == ["cut", "encode"]
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 0


async def test_a_batch_answers_for_each_and_can_be_sent_again(gateway: Gateway, conn: Connection, media: str):
    body = {"jobs": [{"workflow": media, "options": {"n": n}} for n in range(3)]}
    headers = {"Idempotency-Key": "batch"}
    first = (await gateway.post("/jobs/batch", body, scope="submit", headers=headers)).json()["items"]
    again = (await gateway.post("/jobs/batch", body, scope="submit", headers=headers)).json()["items"]
    assert [each["status"] for each in first] == [201] * 3
    assert [each["status"] for each in again] == [200] * 3
    assert [each["id"] for each in first] == [each["id"] for each in again]
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 3


async def test_more_pending_jobs_than_the_backlog_put_submissions_off(db_url: str, conn: Connection, media: str):
    async with serving(db_url, gateway={"backlog": 2}) as gateway:
        later = {"workflow": media, "scheduled_at": "2099-01-01T00:00:00Z"}
        answers = [await gateway.post("/jobs", later, scope="submit") for _ in range(4)]
    assert [each.status_code for each in answers] == [201, 201, 201, 429]
    assert answers[-1].json()["code"] == "backlog_full"
    assert int(answers[-1].headers["retry-after"]) > 0


# Versions and waits


async def test_a_change_needs_the_version_that_was_read(gateway: Gateway, media: str):
    job = (await submitted(gateway, scheduled_at="2099-01-01T00:00:00Z"))["id"]
    read = await gateway.get(f"/jobs/{job}", scope="read")
    change = {"priority": 7}
    without = await gateway.ask("PATCH", f"/jobs/{job}", scope="submit", json=change)
    made = await gateway.ask(
        "PATCH", f"/jobs/{job}", scope="submit", json=change, headers={"If-Match": read.headers["etag"]}
    )
    stale = await gateway.ask(
        "PATCH", f"/jobs/{job}", scope="submit", json=change, headers={"If-Match": read.headers["etag"]}
    )
    assert without.status_code == 428
    assert (made.status_code, made.json()["priority"]) == (200, 7)
    assert (stale.status_code, stale.json()["code"]) == (412, "stale")


async def test_what_has_not_changed_is_not_sent_again(gateway: Gateway, media: str):
    job = (await submitted(gateway))["id"]
    read = await gateway.get(f"/jobs/{job}", scope="read")
    again = await gateway.get(f"/jobs/{job}", scope="read", headers={"If-None-Match": read.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_one_call_waits_until_the_job_has_ended(gateway: Gateway, conn: Connection):
    await node(conn)
    job = await submit(conn, step("a"))
    waiting = asyncio.create_task(gateway.get(f"/jobs/{job}", scope="read", headers={"Prefer": "wait=60"}))
    (task,) = await started(conn)
    assert not waiting.done()
    await finish(conn, task)
    answer = await waiting
    assert answer.json()["status"] == "done"
    assert answer.headers["preference-applied"] == "wait=60"


async def test_a_wait_with_a_version_ends_as_soon_as_it_differs(gateway: Gateway, conn: Connection):
    await node(conn)
    job = await submit(conn, step("a"))
    read = await gateway.get(f"/jobs/{job}", scope="read")
    headers = {"Prefer": "wait=60", "If-None-Match": read.headers["etag"]}
    waiting = asyncio.create_task(gateway.get(f"/jobs/{job}", scope="read", headers=headers))
    await claim(conn)
    answer = await waiting
    assert answer.json()["tasks"]["items"][0]["status"] == "starting"


# What would happen


async def test_a_dry_run_of_a_cancel_tells_what_stops_and_changes_nothing(gateway: Gateway, conn: Connection):
    await node(conn)
    job = await submit(conn, *chain("a", "b", "c"))
    (first,) = await started(conn)
    await finish(conn, first)
    await started(conn)
    told = (await gateway.post(f"/jobs/{job}/cancel?dry_run=true", scope="operate")).json()
    assert (told["stops"], told["never_begins"], told["stays"]) == (["b"], ["c"], ["a"])
    assert await conn.fetchval("SELECT status FROM jobs WHERE id = $1", job) == "running"


async def test_a_dry_run_of_a_retry_is_what_the_retry_then_does(gateway: Gateway, conn: Connection):
    await node(conn)
    job = await submit(conn, *chain("a", "b"))
    for _ in range(2):
        (task,) = await started(conn)
        await finish(conn, task)
    asked = {"from_step": "b"}
    told = (await gateway.post(f"/jobs/{job}/retry?dry_run=true", asked, scope="operate")).json()
    assert (told["runs_again"], told["kept"]) == (["b"], ["a"])
    assert (await gateway.post(f"/jobs/{job}/retry", asked, scope="operate")).json()["answer"] == "accepted"
    rows = await conn.fetch("SELECT task_key FROM job_tasks WHERE job_id = $1 AND generation = 1", job)
    assert [row["task_key"] for row in rows] == told["runs_again"]


async def test_a_refusal_of_the_state_machine_names_its_reason_and_what_is_held(gateway: Gateway, conn: Connection):
    job = await submit(conn)
    refused = await gateway.post(f"/jobs/{job}/retry", scope="operate")
    assert (refused.status_code, refused.json()["code"]) == (409, "not_in_expected_state")
    assert refused.json()["held"]["status"] == "running"


async def test_who_did_it_over_http_is_in_the_audit(gateway: Gateway, conn: Connection):
    job = await submit(conn)
    made = await gateway.post(f"/jobs/{job}/cancel", {"reason": "wrong input"}, scope="operate")
    (row,) = (await gateway.get(f"/audit?target={job}", scope="admin")).json()["items"]
    assert (row["actor"], row["via"], row["target"], row["reason"]) == ("operate", "http", str(job), "wrong input")
    assert row["request_id"] == made.headers["x-request-id"]
    await gateway.post(f"/jobs/{job}/retry", {"reason": "it is right now"}, scope="operate")
    verbs = (await gateway.get(f"/audit?target={job}", scope="admin")).json()["items"]
    assert "it is right now" in [each["reason"] for each in verbs]


async def test_a_rerun_is_a_new_job_that_names_the_old_one(gateway: Gateway, media: str):
    job = await submitted(gateway, options={"a": 1})
    made = await gateway.post(f"/jobs/{job['id']}/rerun", {"options": {"a": 2}}, scope="submit")
    assert made.status_code == 201
    assert (made.json()["options"], made.json()["trigger"]) == ({"a": 2}, {"rerun_of": job["id"]})


# Lists, and parts of ids


async def test_a_list_goes_on_by_its_cursor_and_refuses_one_of_another_filter(gateway: Gateway, media: str):
    made = [(await submitted(gateway, options={"n": n}))["id"] for n in range(5)]
    seen: list[str] = []
    path = "/jobs?limit=2"
    while path:
        page = (await gateway.get(path, scope="read")).json()
        seen += [job["id"] for job in page["items"]]
        path = f"/jobs?limit=2&cursor={page['next']}" if page["next"] else ""
    assert seen == made[::-1]
    first = (await gateway.get("/jobs?limit=2", scope="read")).json()["next"]
    other = await gateway.get(f"/jobs?limit=2&workflow=media&cursor={first}", scope="read")
    forged = await gateway.get(f"/jobs?cursor={first[:-2]}AA", scope="read")
    assert [(each.status_code, each.json()["code"]) for each in (other, forged)] == [(400, "cursor_mismatch")] * 2


async def test_a_query_that_is_not_understood_says_where(gateway: Gateway):
    wrong = await gateway.get("/jobs", scope="read", params={"q": "status:error colour:red"})
    assert wrong.status_code == 422
    (error,) = wrong.json()["errors"]
    assert (error["position"], error["length"]) == (13, 10)


async def test_a_part_of_an_id_is_enough_and_too_little_of_it_is_told(gateway: Gateway, media: str):
    job = (await submitted(gateway))["id"]
    assert (await gateway.get(f"/jobs/{job[-8:]}", scope="read")).json()["id"] == job
    assert (await gateway.get("/jobs/ffffffff", scope="read")).status_code == 404
    assert (await gateway.get("/jobs/no-id-at-all", scope="read")).status_code == 422


async def test_why_over_http_has_the_words_of_the_command(gateway: Gateway, conn: Connection):
    job: UUID = await submit(conn)
    rows = (await gateway.get(f"/jobs/{job}/why", scope="read")).json()["items"]
    assert any("no node" in row["text"] for row in rows)
    assert all({"text", "next", "remedies", "since"} <= row.keys() for row in rows)


async def test_the_title_of_a_workflow_is_listed(gateway: Gateway):
    body = {"title": "Tides", "steps": [{"key": "a", "service": "s"}]}
    assert (await gateway.ask("PUT", "/workflows/tides", json=body, scope="operate")).status_code == 201
    (row,) = (await gateway.get("/workflows", scope="read")).json()["items"]
    assert (row["name"], row["title"]) == ("tides", "Tides")
    assert (await gateway.get("/workflows/tides", scope="read")).json()["title"] == "Tides"


async def test_how_long_steps_usually_take_is_told_with_those_that_fail_everywhere(
    gateway: Gateway, conn: Connection, media: str
):
    await node(conn)
    await submitted(gateway)
    await finish(conn, *await started(conn))
    await count_events(gateway.context.verbs)
    await conn.execute(
        "INSERT INTO accs.step_health (workflow_id, task_key, reason) SELECT id, 'encode', 'fails' FROM workflows"
    )
    cut, encode = (await gateway.get(f"/workflows/{media}/steps", scope="read")).json()["items"]
    assert (cut["key"], cut["n"], cut["fails_everywhere"]) == ("cut", 1, None)
    assert cut["p50_seconds"] >= 0
    assert (encode["n"], encode["p50_seconds"], encode["fails_everywhere"]) == (0, None, "fails")
    (hour,) = (await gateway.get("/overview/outcomes?hours=1", scope="read")).json()["items"]
    assert (hour["done"], hour["error"]) == (1, 0)
    assert (await gateway.get(f"/workflows/{media}/steps?version=7", scope="read")).status_code == 404
