"""Operations, saved views, search and dead letters over HTTP."""

from typing import Any

from tests.support.cluster import Connection
from tests.support.factory import fail, node, started, step, submit_to, workflow
from tests.support.gateway import Gateway


async def test_what_a_dry_run_showed_is_what_happens(gateway: Gateway, conn: Connection):
    media = await workflow(conn, name="media")
    for _ in range(3):
        await submit_to(conn, media)
    body: dict[str, Any] = {"action": "cancel", "target": {"filter": {"q": "workflow:media"}}}
    shown = (await gateway.post("/operations?dry_run=true", body, scope="operate")).json()
    assert (shown["count"], shown["count_is"], len(shown["examples"]), shown["dry_run"]) == (3, "exact", 3, True)
    newer = await submit_to(conn, media)
    real = {"action": "cancel", "target": shown["target"], "reason": "no longer wanted"}
    key = {"Idempotency-Key": "k1"}
    answered = await gateway.post("/operations", real, scope="operate", headers=key)
    done = answered.json()
    assert (answered.status_code, done["state"], done["answers"]["accepted"]) == (200, "done", 3)
    assert (done["by"], done["reason"]) == ("operate", "no longer wanted")
    assert await conn.fetchval("SELECT status FROM jobs WHERE id = $1", newer) == "running"
    again = await gateway.post("/operations", real, scope="operate", headers=key)
    assert again.json()["id"] == done["id"]
    other = await gateway.post("/operations", real | {"action": "retry"}, scope="operate", headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    read = await gateway.get(answered.headers["location"].removeprefix("/api/v1"), scope="read")
    assert (read.json()["id"], read.headers["etag"][:1]) == (done["id"], '"')
    listed = (await gateway.get("/operations?limit=1", scope="read")).json()
    assert [one["id"] for one in listed["items"]] == [done["id"]]
    assert (await gateway.get(f"/operations?limit=1&cursor={listed['next']}", scope="read")).json()["items"] == []
    stopped = await gateway.post(f"/operations/{done['id']}/stop", scope="operate")
    assert (stopped.status_code, stopped.json()["code"]) == (409, "already_ended")
    wrong = await gateway.post("/operations", body | {"target": {"filter": {"q": "status:x"}}}, scope="operate")
    assert (wrong.status_code, wrong.json()["errors"][0]["position"]) == (422, 7)


async def test_many_items_are_left_to_a_worker(gateway: Gateway, conn: Connection):
    media = await workflow(conn, name="media")
    await conn.fetch("SELECT accs.submit_jobs($1)", [media] * 501)
    body = {"action": "set_priority", "priority": 3, "target": {"filter": {"workflow": "media"}}}
    answered = await gateway.post("/operations", body, scope="operate")
    assert (answered.status_code, answered.json()["state"]) == (202, "running")
    stopped = await gateway.post(f"/operations/{answered.json()['id']}/stop", {"reason": "not yet"}, scope="operate")
    assert (stopped.status_code, stopped.json()["state"]) == (200, "stopped")


async def test_a_token_that_is_limited_acts_on_its_own_workflows_only(gateway: Gateway, conn: Connection):
    await submit_to(conn, await workflow(conn, name="media-a"))
    other = await submit_to(conn, await workflow(conn, name="shop"))
    token = await gateway.token("operate", actor="media", limits={"workflows": ["media-*"]})
    done = await gateway.post("/operations", {"action": "cancel", "target": {"filter": {}}}, token=token)
    assert done.json()["answers"]["accepted"] == 1
    hidden = await gateway.post("/operations", {"action": "cancel", "target": {"ids": [str(other)]}}, token=token)
    assert hidden.status_code == 404
    assert (await gateway.get(f"/search?q={other}", token=token)).json()["groups"] == []


async def test_views_are_saved_changed_by_version_and_dropped(gateway: Gateway):
    body = {"query": {"q": "status:error"}}
    made = await gateway.ask("PUT", "/views/broken", json=body, scope="read")
    assert (made.status_code, made.headers["etag"], made.json()["is_shared"]) == (201, '"1"', False)
    blind = await gateway.ask("PUT", "/views/broken", json={"query": {}}, scope="read")
    assert blind.status_code == 428
    changed = await gateway.ask("PUT", "/views/broken", json={"query": {}}, scope="read", headers={"If-Match": '"1"'})
    assert (changed.status_code, changed.headers["etag"]) == (200, '"2"')
    stale = await gateway.ask("PUT", "/views/broken", json=body, scope="read", headers={"If-Match": '"1"'})
    assert (stale.status_code, stale.json()["code"]) == (412, "stale")
    assert (await gateway.ask("PUT", "/views/all?shared=true", json=body, scope="read")).status_code == 403
    assert (await gateway.ask("PUT", "/views/all?shared=true", json=body, scope="operate")).status_code == 201
    assert [view["name"] for view in (await gateway.get("/views", scope="read")).json()["items"]] == ["all", "broken"]
    assert (await gateway.get("/views/all", scope="read")).json()["query"] == {"q": "status:error"}
    assert (await gateway.get("/views/broken", scope="operate")).status_code == 404, "it is somebody else's"
    assert (await gateway.ask("DELETE", "/views/broken", scope="read")).json() == {"answer": "accepted"}
    assert (await gateway.get("/views/broken", scope="read")).status_code == 404


async def test_search_and_dead_letters(gateway: Gateway, conn: Connection):
    await node(conn)
    media = await workflow(conn, step("a", max_attempts=1), name="media")
    for number in (1, 2, 3):
        job = await submit_to(conn, media)
        await fail(conn, *await started(conn), message=f"frame {number} is broken")
    found = (await gateway.get(f"/search?q={str(job)[-8:]}", scope="read")).json()
    assert found["groups"] == [
        {"kind": "job", "items": [{"kind": "job", "id": str(job), "name": "media", "why": "id"}]}
    ]
    first = (await gateway.get("/dead-letters?limit=2", scope="read")).json()
    second = (await gateway.get(f"/dead-letters?limit=2&cursor={first['next']}", scope="read")).json()
    assert [len(first["items"]), len(second["items"]), second["next"]] == [2, 1, None]
    mixed = await gateway.get(f"/dead-letters?service=x&cursor={first['next']}", scope="read")
    assert (mixed.status_code, mixed.json()["code"]) == (400, "cursor_mismatch")
    (group,) = (await gateway.get("/dead-letters/groups", scope="read")).json()["items"]
    assert (group["count"], group["group"]["message"]) == (3, "frame # is broken")
    body = {"action": "redrive", "target": {"filter": {"group": group["group"]}}}
    assert (await gateway.post("/operations", body, scope="operate")).json()["answers"]["accepted"] == 3
