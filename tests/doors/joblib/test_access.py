"""Who gets in at the joblib door, for every route that there is (G-4, G-5; AGREED on scopes)."""

import re
from collections.abc import Iterator

import pytest

from accsd.gateway.access import all_routes
from accsd.gateway.joblib.app import make_routes, serves
from tests.support.goldens import compare
from tests.support.joblib import User, Users, problem

SCOPES = ("read", "submit", "operate", "admin", "agent")
IMPLIED = {
    "read": {"read"},
    "submit": {"read", "submit"},
    "operate": {"read", "submit", "operate"},
    "admin": {"read", "submit", "operate", "admin"},
    "agent": {"agent"},
}
SOME_ID = "019a0000-0000-7000-8000-000000000000"


def routes() -> Iterator[tuple[str, str, set[str]]]:
    for route in all_routes(make_routes()):
        for method in sorted(route.methods):  # type: ignore[attr-defined]
            yield method, route.path, set(route.openapi_extra["x-scope"].split())  # type: ignore[attr-defined]


def test_every_route_and_who_may_call_it_are_those_of_the_golden_file():
    """G-5: a new route changes the file, so that somebody has looked at who may call it."""
    known = list(routes())
    compare("joblib_routes", (f"{method} {path} {' '.join(sorted(scopes))}" for method, path, scopes in known))
    assert all(scopes for _, _, scopes in known)
    assert all(serves(path) for _, path, _ in known)


def test_the_door_serves_nothing_else():
    """AGREED, paths."""
    for path in ("/v1/me", "/socket.io", "/socket.io/", "/v1/joblib/workers", "/v1/problems/job-not-found"):
        assert serves(path), path
    for path in ("/v1", "/v1/jobs", "/api/v1/me", "/tasks", "/socket.iox", "/v1/joblibs"):
        assert not serves(path), path


def filled(path: str) -> str:
    known = {"room_id": "lab", "problem_id": "forbidden"}
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: known.get(found[1], SOME_ID), path)


async def test_each_credential_reaches_what_its_scope_allows_and_nothing_else(users: Users):
    """G-4, G-5: none, wrong, expired, revoked, a share; read, submit, operate, admin, agent."""
    gateway = users.gateway
    wrong: dict[str, str | None] = {
        "none": None,
        "wrong": "accs_aaaaaaaa_" + "A" * 43,
        "expired": await gateway.expired(),
        "revoked": await gateway.revoked(),
    }
    for method, path, scopes in routes():
        for name, token in wrong.items():
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            refused = await gateway.client.request(method, filled(path), headers=headers, json={})
            problem(refused, "unauthenticated", 401)
            assert refused.headers["www-authenticate"] == "Bearer", name
        for scope in SCOPES:
            answer = await (await users.user(f"of-{scope}", scope=scope)).ask(method, filled(path), json={})
            where = f"{method} {path} as {scope}: {answer.status_code} {answer.text}"
            said = answer.json() if "json" in answer.headers.get("content-type", "") else {}
            is_missing = "needs the scope" in str(said.get("detail"))
            assert is_missing == (not scopes & IMPLIED[scope]), where
            assert answer.status_code == 403 if is_missing else answer.status_code not in (401, 500), where


async def test_a_cookie_a_share_and_a_token_of_another_door_stay_outside(users: Users, ada: User):
    """AGREED: limits door."""
    gateway = users.gateway
    opened = await gateway.post("/session", {"token": await gateway.token("admin")})
    gateway.client.cookies.clear()
    cookie = opened.headers["set-cookie"].partition(";")[0]
    by_cookie = await gateway.client.get("/v1/me", headers={"Cookie": cookie, "X-Accsd": "1"})
    problem(by_cookie, "unauthenticated", 401)
    await ada.register("Rotate")
    share = User(gateway, await gateway.share(await ada.submit("lab:modifiers:Rotate")), "share")  # type: ignore[arg-type]
    problem(await share.get("/v1/me"), "forbidden", 403)
    for door, status in (("mcp", 403), ("joblib", 200)):
        user = await users.user(f"for {door}", limits={"door": door})
        assert (await user.get("/v1/me")).status_code == status


async def test_a_worker_needs_no_more_than_the_scope_agent(users: Users, ada: User):
    """AGREED: workers, claim, PATCH task and providers take agent or submit; agent neither reads nor submits."""
    agent = await users.user("worker", scope="agent")
    worker = await agent.register("Rotate")
    task = await ada.submit("lab:modifiers:Rotate")
    assert ((await agent.claim(worker)) or {})["id"] == task
    assert (await agent.say(task, "running")).status_code == 200
    assert (await agent.say(task, "completed")).status_code == 200
    assert (await agent.patch(f"/workers/{worker}")).status_code == 200
    provider = {"category": "files", "name": "local", "worker_id": worker}
    assert (await agent.put("/rooms/lab/providers", provider)).status_code == 201
    assert (await agent.delete(f"/workers/{worker}")).status_code == 204
    for answer in (
        await agent.get(f"/tasks/{task}"),
        await agent.get("/workers"),
        await agent.post("/rooms/lab/tasks/lab:modifiers:Rotate", {}),
    ):
        problem(answer, "forbidden", 403)


async def test_being_admin_is_a_property_of_the_token(users: Users, ada: User):
    """G-4: the same user, two tokens."""
    mighty = User(users.gateway, await users.gateway.token("admin", actor="ada"), "ada")
    body = {"category": "modifiers", "name": "Rotate"}
    problem(await ada.put("/rooms/@global/jobs", body), "forbidden", 403)
    worker = (await mighty.put("/rooms/@global/jobs", body)).json()["worker_id"]
    assert (await ada.patch(f"/workers/{worker}")).status_code == 200, "the worker is the user's"


async def test_a_token_with_limits_reaches_its_jobs_only(users: Users, ada: User, root: User):
    """limits.workflows: what is left out is not there."""
    await ada.register("Own", room="lab")
    hidden_worker = await ada.register("Other", room="secret")
    hidden = await ada.submit("secret:modifiers:Other", room="lab")
    shown = await ada.submit("lab:modifiers:Own", room="lab")
    narrow = await users.user("narrow", limits={"workflows": ["lab:*"]})
    worker = await narrow.register("Own", room="lab")
    assert [each["id"] for each in (await narrow.get("/rooms/lab/tasks")).json()["items"]] == [shown]
    assert (await narrow.get("/rooms/secret/jobs")).json()["total"] == 0
    listed = [each["id"] for each in (await narrow.get("/workers")).json()["items"]]
    assert worker in listed
    assert hidden_worker not in listed
    problem(await narrow.get(f"/tasks/{hidden}"), "task-not-found", 404)
    problem(await narrow.get("/rooms/lab/jobs/secret:modifiers:Other"), "job-not-found", 404)
    problem(await narrow.post("/rooms/lab/tasks/secret:modifiers:Other", {}), "job-not-found", 404)
    body = {"category": "modifiers", "name": "Other", "worker_id": worker}
    problem(await narrow.put("/rooms/secret/jobs", body), "forbidden", 403)
    mighty = await users.user("narrow admin", scope="admin", limits={"workflows": ["lab:*"]})
    problem(await mighty.say(hidden, "cancelled"), "task-not-found", 404)
    assert (await mighty.say(shown, "cancelled")).status_code == 200


async def test_a_foreign_host_name_is_refused(users: Users):
    assert (await users.gateway.client.get("/v1/me", headers={"Host": "evil.example"})).status_code == 421


@pytest.mark.parametrize("path", ["/rooms/lab/tasks/lab:modifiers:Rotate", "/workers"])
async def test_a_body_has_its_limit(ada: User, path: str):
    """G-10."""
    large = await ada.post(path, {"payload": {"x": "y" * 2**20}})
    assert large.status_code == 413
