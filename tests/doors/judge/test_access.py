"""Who gets in at the judge's door: each route and each credential; and its committed description."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson

from accsd.gateway.access import all_routes
from accsd.gateway.judge.app import is_ours, make_routes, openapi
from tests.support.cluster import Connection, TestServer
from tests.support.factory import submit
from tests.support.judging import PASSWORD, Door, judged, judging
from tests.support.library import url_as
from tests.support.roles import roles as roles

COMMITTED = Path(__file__).parents[3] / "docs/reference/openapi-judge.json"
SCOPES = ("read", "submit", "operate", "admin", "agent")
# Which scopes each route lets in; "anybody" needs no token. A route that is missing here fails the test.
EXPECTED = {
    "POST /submit": {"submit", "operate", "admin"},
    "POST /api/v1/submit": {"submit", "operate", "admin"},
    "GET /status/{job_id}": {"read", "submit", "operate", "admin"},
    "GET /api/v1/status/{job_id}": {"read", "submit", "operate", "admin"},
    "POST /api/v1/status/{job_id}/rejudge": {"operate", "admin"},
    "POST /api/v1/problems": {"admin"},
    "DELETE /api/v1/problems/{problem_id}": {"admin"},
    "POST /api/v1/problems/{problem_id}/rejudge": {"admin"},
    "POST /api/v1/auth/register": {"anybody"},
    "POST /api/v1/auth/login": {"anybody"},
    "GET /api/v1/health": {"anybody"},
}


def known_routes() -> list[tuple[str, str]]:
    return [(method, route.path) for route in all_routes(make_routes()) for method in route.methods]  # type: ignore[attr-defined]


def test_every_route_says_whom_it_lets_in_and_belongs_to_the_door():
    assert {f"{method} {path}" for method, path in known_routes()} == set(EXPECTED)
    for _, path in known_routes():
        assert is_ours(path), path
    for path in (
        "/",
        "/api/v1/jobs",
        "/api/v1/problem",
        "/problems/not_found",
        "/api/v1",
        "/submitted",
        "/api/v2/submit",
    ):
        assert not is_ours(path), path


def test_the_committed_description_is_that_of_the_routes():
    """`make reference` writes it."""
    assert orjson.loads(COMMITTED.read_bytes()) == orjson.loads(orjson.dumps(openapi()))


async def credentials(door: Door, conn: Connection) -> dict[str, str | None]:
    gateway = door.gateway
    made: dict[str, str | None] = {scope: await gateway.token(scope) for scope in SCOPES}
    made |= {"none": None, "wrong": "accs_aaaaaaaa_" + "A" * 43, "expired": await gateway.expired()}
    made |= {"revoked": await gateway.revoked(), "share": await gateway.share(await submit(conn))}
    made["elsewhere"] = await gateway.token("admin", actor="elsewhere", limits={"door": "joblib"})
    return made


async def test_each_credential_reaches_what_it_may_and_nothing_else(door: Door, conn: Connection):
    """G-5."""
    for name, token in (await credentials(door, conn)).items():
        for method, path in known_routes():
            url = path.replace("{job_id}", str(uuid4())).replace("{problem_id}", "999")
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            answer = await door.client.request(method, url, headers=headers, json={})
            code = answer.json().get("code")
            where = f"{method} {path} as {name}: {answer.status_code} {answer.text}"
            allowed = EXPECTED[f"{method} {path}"]
            assert answer.status_code < 500, where
            if name in allowed or "anybody" in allowed:
                assert code not in ("UNAUTHORIZED", "FORBIDDEN"), where
            elif name in (*SCOPES, "share", "elsewhere"):
                assert (answer.status_code, code) == (403, "FORBIDDEN"), where
            else:
                assert (answer.status_code, code) == (401, "UNAUTHORIZED"), where
                assert answer.headers["www-authenticate"].startswith("Bearer"), where


async def test_a_browsers_session_is_no_credential_here(door: Door):
    opened = await door.gateway.post("/session", {"token": await door.gateway.token("admin")})
    assert opened.status_code < 300
    answer = await door.ask("GET", f"/status/{uuid4()}", by=None, headers={"X-Accsd": "1"})
    assert answer.status_code == 401


async def test_a_token_of_this_door_opens_neither_the_api_nor_another(door: Door):
    """G-4."""
    token = await door.gateway.token("admin", actor="ada", limits={"door": "judge"})
    refused = await door.gateway.get("/jobs", token=token)
    assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing")
    assert "judge" in refused.json()["detail"]
    assert (await door.ask("GET", f"/status/{uuid4()}", token=token)).status_code == 404


async def test_the_limits_of_a_token_hold_here_too(door: Door):
    problem = await door.problem()
    job = await door.submitted(problem)
    token = await door.gateway.token("operate", actor="media", limits={"workflows": ["media-*"]})
    assert (await door.submit(problem, token=token)).json()["code"] == "PROBLEM_NOT_FOUND"
    assert (await door.ask("GET", f"/status/{job}", token=token)).json()["code"] == "NOT_FOUND"
    token = await door.gateway.token("admin", actor="media", limits={"workflows": ["media-*"]})
    assert (await door.ask("DELETE", f"/api/v1/problems/{problem}", token=token)).json()["code"] == "NOT_FOUND"
    assert (await door.ask("POST", "/api/v1/problems", token=token)).json()["code"] == "FORBIDDEN"


async def test_the_door_needs_no_more_than_the_database_role_of_a_gateway(
    server: TestServer, db_url: str, tmp_path: Path, conn: Connection, roles: None
):
    """G-11: what clients and admins do; the judge itself is a node."""
    async with judging(url_as(server, db_url, "accs_api"), tmp_path) as door:
        problem = await door.problem()
        token = (await door.client.post("/api/v1/auth/login", json={"username": "ada", "password": PASSWORD})).json()
        job = await door.submitted(problem, token=token["token"])
        await judged(conn)
        assert (await door.status(job, token=token["token"]))["data"]["status"] == "Accepted"
        again = await door.ask("POST", f"/api/v1/problems/{problem}/rejudge", by="admin")
        assert again.json()["rejudged"] == 1
        assert (await door.ask("DELETE", f"/api/v1/problems/{problem}", by="admin")).status_code == 200


async def test_what_is_refused_anywhere_has_the_door_s_own_form(door: Door):
    """G-2: {error, code}, whether a route refuses it, no route is there, or the entrance does not let it in."""
    cases: list[tuple[str, str, dict[str, Any], int, str]] = [
        ("GET", "/submit", {}, 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/submit/", {}, 404, "NOT_FOUND"),
        ("GET", "/api/v1/auth/nothing", {}, 404, "NOT_FOUND"),
        ("GET", "/status/no-uuid", {}, 404, "NOT_FOUND"),
        ("GET", "/status/x?" + "&".join("a=1" for _ in range(200)), {}, 400, "BAD_REQUEST"),
    ]
    for method, path, headers, status, code in cases:
        answer = await door.ask(method, path, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (status, code), path
        assert answer.json()["error"], path
        assert "location" not in answer.headers, path
