"""Jobs and workers over REST (JB-1 to JB-7, JB-10 to JB-17)."""

from datetime import datetime

import pytest

from tests.support.cluster import Connection
from tests.support.joblib import User, problem, refused_input

ROTATE = {"category": "modifiers", "name": "Rotate"}


async def test_a_worker_is_made_heard_and_removed(ada: User):
    """JB-1, JB-10, JB-12, JB-13: without a body; each heartbeat is strictly later than the one before."""
    made = await ada.post("/workers")
    assert made.status_code == 201
    assert set(made.json()) == {"id", "last_heartbeat"}
    worker = made.json()["id"]
    heard = [made.json()["last_heartbeat"]]
    for _ in range(3):
        answer = await ada.patch(f"/workers/{worker}")
        assert (answer.status_code, answer.json()["id"]) == (200, worker)
        heard.append(answer.json()["last_heartbeat"])
    moments = [datetime.fromisoformat(each) for each in heard]
    assert all(moment.tzinfo is not None for moment in moments)
    assert moments == sorted(set(moments))
    gone = await ada.delete(f"/workers/{worker}")
    assert (gone.status_code, gone.content) == (204, b"")
    problem(await ada.patch(f"/workers/{worker}"), "worker-not-found", 404)
    problem(await ada.delete(f"/workers/{worker}"), "worker-not-found", 404)


async def test_a_worker_is_its_users(ada: User, bob: User, root: User):
    """JB-12, JB-13: an admin hears nobody's worker but may remove it."""
    worker = await ada.worker()
    problem(await bob.patch(f"/workers/{worker}"), "forbidden", 403)
    problem(await root.patch(f"/workers/{worker}"), "forbidden", 403)
    problem(await bob.delete(f"/workers/{worker}"), "forbidden", 403)
    assert (await root.delete(f"/workers/{worker}")).status_code == 204


async def test_a_user_may_have_many_workers_and_everybody_sees_all(ada: User, bob: User):
    """JB-10, JB-11, JB-4, JB-5."""
    mine = [await ada.worker() for _ in range(3)]
    other = await bob.register("Rotate", room="lab")
    page = (await ada.get("/workers")).json()
    assert [each["id"] for each in page["items"]] == [other, *reversed(mine)]
    assert [each["job_count"] for each in page["items"]] == [1, 0, 0, 0]
    assert (page["total"], page["limit"], page["offset"]) == (4, 50, 0)


async def test_registering_makes_a_job_and_a_worker(ada: User):
    """JB-14: without worker_id each call makes a worker; with one it is used."""
    first = await ada.put("/rooms/lab/jobs", {**ROTATE, "schema_": {"type": "object"}})
    assert first.status_code == 201
    job = first.json()
    assert set(job) == {"id", "room_id", "category", "name", "full_name", "schema", "workers", "worker_id"}
    assert (job["full_name"], job["room_id"], job["schema"]) == ("lab:modifiers:Rotate", "lab", {"type": "object"})
    assert job["workers"] == [job["worker_id"]]
    second = await ada.put("/rooms/lab/jobs", {**ROTATE, "schema": {"type": "object"}})
    assert second.status_code == 200, "schema and schema_ are the same"
    assert (second.json()["id"], len(second.json()["workers"])) == (job["id"], 2)
    for _ in range(2):
        again = await ada.put(
            "/rooms/lab/jobs", {**ROTATE, "schema": {"type": "object"}, "worker_id": job["worker_id"]}
        )
        assert (again.status_code, again.json()["worker_id"]) == (200, job["worker_id"])
        assert len(again.json()["workers"]) == 2
    both = await ada.put("/rooms/lab/jobs", {**ROTATE, "name": "Both", "schema": {"a": 1}, "schema_": {"b": 1}})
    assert both.json()["schema"] == {"a": 1}


async def test_the_schema_of_a_job_is_compared_as_json(ada: User):
    """JB-14: the order of keys does not matter, the order of lists does."""
    schema = {"type": "object", "required": ["a", "b"], "properties": {"a": {"type": "number"}, "b": {}}}
    await ada.put("/rooms/lab/jobs", {**ROTATE, "schema_": schema})
    turned = {key: schema[key] for key in reversed(schema)}
    assert (await ada.put("/rooms/lab/jobs", {**ROTATE, "schema_": turned})).status_code == 200
    other = schema | {"required": ["b", "a"]}
    said = problem(await ada.put("/rooms/lab/jobs", {**ROTATE, "schema_": other}), "schema-conflict", 409)
    assert said["title"] == "Conflict"


async def test_checks_come_in_their_order_and_a_refused_call_leaves_nothing(ada: User, bob: User):
    """JB-7, JB-14: token, room, superuser, category, schema, worker."""
    theirs = await bob.register("Rotate")
    wrong = {"category": "nothing", "name": "Rotate", "schema": {"x": 1}, "worker_id": theirs}
    said = problem(await ada.put("/rooms/a@b/jobs", wrong), "invalid-room-id", 400)
    assert "invalid characters" in said["detail"]
    problem(await ada.put("/rooms/a:b/jobs", "no body"), "invalid-room-id", 400)
    problem(await ada.put("/rooms/@global/jobs", wrong), "forbidden", 403)
    problem(await ada.put("/rooms/@internal/jobs", wrong), "forbidden", 403)
    problem(await ada.put("/rooms/lab/jobs", wrong), "invalid-category", 400)
    wrong["category"] = "modifiers"
    problem(await ada.put("/rooms/lab/jobs", wrong), "schema-conflict", 409)
    wrong["schema"] = {}
    problem(await ada.put("/rooms/lab/jobs", wrong), "worker-not-found", 404)
    problem(await ada.put("/rooms/new/jobs", wrong), "worker-not-found", 404)
    assert [each["id"] for each in (await ada.get("/workers")).json()["items"]] == [theirs]
    assert (await ada.get("/rooms/new/jobs")).json()["total"] == 0
    assert (await ada.get("/rooms/lab/jobs/lab:modifiers:Rotate")).json()["workers"] == [theirs]


async def test_an_admins_worker_is_not_anybodys(ada: User, root: User):
    """JB-14: also an admin serves by its own worker only."""
    theirs = await ada.worker()
    problem(await root.put("/rooms/lab/jobs", {**ROTATE, "worker_id": theirs}), "worker-not-found", 404)


@pytest.mark.parametrize("room", ["a@b", "@other", "a:b", "@", "x" * 201])
async def test_room_ids_are_checked_wherever_a_room_is(ada: User, room: str):
    """JB-7: reads included; after the token."""
    for path in ("jobs", "workers", "tasks", "providers", "jobs/x", "jobs/x/tasks", "providers/x", "providers/x/info"):
        answer = await ada.get(f"/rooms/{room}/{path}")
        assert "invalid characters" in problem(answer, "invalid-room-id", 400)["detail"]
        nobody = await ada.gateway.client.get(f"/v1/joblib/rooms/{room}/{path}")
        assert nobody.status_code == 401
    problem(await ada.post(f"/rooms/{room}/tasks/x", {}), "invalid-room-id", 400)
    problem(await ada.put(f"/rooms/{room}/providers", {}), "invalid-room-id", 400)


async def test_jobs_are_seen_from_their_room_and_from_everywhere(ada: User, root: User):
    """JB-15, JB-5: a room sees its own, @global and @internal; those two only themselves."""
    await ada.register("One", room="lab")
    await ada.register("Two", room="other")
    await root.register("All", room="@global")
    await root.register("Own", room="@internal")

    async def seen(room: str) -> list[str]:
        return [each["full_name"] for each in (await ada.get(f"/rooms/{room}/jobs")).json()["items"]]

    assert await seen("lab") == ["@internal:modifiers:Own", "@global:modifiers:All", "lab:modifiers:One"]
    assert await seen("empty") == ["@internal:modifiers:Own", "@global:modifiers:All"]
    assert await seen("@global") == ["@global:modifiers:All"]
    assert await seen("@internal") == ["@internal:modifiers:Own"]
    (first, *_) = (await ada.get("/rooms/lab/jobs")).json()["items"]
    assert set(first) == {"full_name", "category", "name", "workers"}


async def test_a_job_is_found_by_its_full_name_from_any_room(ada: User):
    """JB-6, JB-16: names may have slashes and colons; @ and : come as they are."""
    await ada.register("a/b:c", room="lab")
    found = await ada.get("/rooms/elsewhere/jobs/lab:modifiers:a/b:c")
    assert (found.status_code, found.json()["name"], found.json()["worker_id"]) == (200, "a/b:c", None)
    assert (await ada.get("/rooms/lab/jobs/lab:modifiers:a/b:c/tasks")).json()["total"] == 0
    problem(await ada.get("/rooms/lab/jobs/lab:modifiers:none"), "job-not-found", 404)
    for name in ("Rotate", "lab:Rotate", ""):
        said = problem(await ada.get(f"/rooms/lab/jobs/{name}"), "job-not-found", 404) if name else None
        assert said is None or "Invalid job name format" in said["detail"]


async def test_workers_of_a_room_serve_a_job_that_is_seen_there(ada: User, bob: User, root: User):
    """JB-17: each once."""
    both = await ada.register("One", room="lab")
    await ada.register("Two", room="lab", worker=both)
    everywhere = await root.register("All", room="@global")
    await bob.register("Three", room="other")
    await bob.worker()
    found = (await ada.get("/rooms/lab/workers")).json()
    assert [(each["id"], each["job_count"]) for each in found["items"]] == [(everywhere, 1), (both, 2)]
    assert found["total"] == 2
    assert [each["id"] for each in (await ada.get("/rooms/@global/workers")).json()["items"]] == [everywhere]


async def test_pages_count_everything_whatever_they_show(ada: User):
    """JB-4, JB-5."""
    for number in range(5):
        await ada.register(f"J{number}")
    whole = (await ada.get("/rooms/lab/jobs")).json()
    assert [each["name"] for each in whole["items"]] == ["J4", "J3", "J2", "J1", "J0"]
    middle = (await ada.get("/rooms/lab/jobs", params={"limit": 2, "offset": 1})).json()
    assert [each["name"] for each in middle["items"]] == ["J3", "J2"]
    assert (middle["total"], middle["limit"], middle["offset"]) == (5, 2, 1)
    for given in ({"limit": 0}, {"offset": 5}, {"offset": 500}):
        page = (await ada.get("/rooms/lab/jobs", params=given)).json()
        assert (page["items"], page["total"]) == ([], 5)
    for given in ({"limit": 501}, {"limit": -1}, {"offset": -1}, {"limit": "x"}):
        for path in ("/rooms/lab/jobs", "/workers", "/rooms/lab/tasks", "/rooms/lab/providers", "/rooms/lab/workers"):
            refused_input(await ada.get(path, params=given))


async def test_malformed_input_is_refused_as_fastapi_does(ada: User):
    """JB-3: a body with FastAPI's own shape."""
    refused_input(await ada.put("/rooms/lab/jobs", {"name": "x"}))
    refused_input(await ada.put("/rooms/lab/jobs", {"category": "modifiers", "name": ""}))
    refused_input(await ada.put("/rooms/lab/jobs", {**ROTATE, "name": "x" * 200}))
    refused_input(await ada.put("/rooms/lab/jobs", {**ROTATE, "worker_id": "no uuid"}))
    refused_input(await ada.patch("/workers/no-uuid"))
    refused_input(await ada.get("/tasks/no-uuid"))
    refused_input(await ada.get("/rooms/lab/tasks", params={"status": "sleeping"}))
    refused_input(await ada.post("/tasks/claim", {}))
    refused_input(await ada.ask("PUT", "/rooms/lab/jobs", content=b"{", headers={"Content-Type": "application/json"}))
    for text in (b'{"category": "modifiers", "name": "a\\u0000"}', b'{"category": "modifiers", "name": "\\ud800"}'):
        given = {"content": text, "headers": {"Content-Type": "application/json"}}
        refused_input(await ada.ask("PUT", "/rooms/lab/jobs", **given))
    assert (await ada.put("/rooms/lab/jobs", {**ROTATE, "unknown": 1})).status_code == 201, "G-6"


async def test_each_problem_has_a_page(ada: User):
    """JB-2."""
    said = problem(await ada.get("/rooms/lab/jobs/none"), "job-not-found", 404)
    page = await ada.get(said["type"])
    assert (page.status_code, page.json()["title"]) == (200, "Not Found")
    assert (await ada.get("/v1/problems/no-such")).status_code == 404


async def test_who_asks_is_told(ada: User, root: User, conn: Connection):
    me = (await ada.get("/v1/me")).json()
    assert me["id"] == str(await conn.fetchval("SELECT id FROM accs.actors WHERE name = 'ada'"))
    assert (me["is_superuser"], (await root.get("/v1/me")).json()["is_superuser"]) == (False, True)


async def test_there_are_no_redirects(ada: User):
    """G-2."""
    assert (await ada.get("/workers/")).status_code == 404
    assert (await ada.get("/nothing")).status_code == 404
    assert (await ada.put("/workers", {})).status_code == 405


async def test_a_worker_is_a_node_that_is_hidden_from_the_list_of_machines(ada: User, conn: Connection):
    """AGREED: labelled accs.kind."""
    worker = await ada.register("Rotate")
    labels = await conn.fetchval("SELECT labels FROM nodes WHERE name = $1", f"joblib/{worker}")
    assert labels == {"accs.kind": "joblib", "joblib.user": "ada", "joblib:lab:modifiers:Rotate": True}
