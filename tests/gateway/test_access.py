"""Who gets in, for every route and method that there is."""

import re
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest

from accsd.db.access import create_token
from accsd.errors import ConfigError
from accsd.gateway.access import all_routes
from accsd.gateway.app import make_routes
from accsd.gateway.reach import Reach, reach_of
from accsd.gateway.server import require_tokens_beyond_loopback
from accsd.model.access import Scope
from accsd.settings import GatewaySettings
from tests.support.cluster import Connection
from tests.support.factory import submit
from tests.support.gateway import Gateway, serving
from tests.support.goldens import compare
from tests.support.library import opened

SCOPES = ("read", "submit", "operate", "admin", "agent")
IMPLIED = {
    "read": {"read"},
    "submit": {"read", "submit"},
    "operate": {"read", "submit", "operate"},
    "admin": {"read", "submit", "operate", "admin"},
    "agent": {"agent"},
}


def routes() -> Iterator[tuple[str, str, str, bool | str]]:
    """Method, path, scope, and whether a share link may come there ("artifacts": if it is to show them)."""
    for route in all_routes(make_routes()):
        extra = route.openapi_extra  # type: ignore[attr-defined]
        for method in sorted(route.methods):  # type: ignore[attr-defined]
            yield method, route.path, extra["x-scope"], extra.get("x-shared", False)  # type: ignore[attr-defined]


def reaches() -> Iterator[tuple[str, str, str, bool | str, str]]:
    """The same, and what is left of it for a token that is limited to workflows."""
    for route in all_routes(make_routes()):
        extra = route.openapi_extra  # type: ignore[attr-defined]
        reach = reach_of(route.path, Reach(extra["x-reach"]) if "x-reach" in extra else None)  # type: ignore[attr-defined]
        for method in sorted(route.methods):  # type: ignore[attr-defined]
            said = "-" if extra["x-scope"] == "none" else reach.value
            yield method, route.path, extra["x-scope"], extra.get("x-shared", False), said  # type: ignore[attr-defined]


def test_every_route_and_its_scope_are_those_of_the_golden_file():
    """A new route changes the file, so that somebody has looked at who may call it, and what limits leave of it."""
    said: dict[bool | str, str] = {
        False: "",
        True: " shared",
        "artifacts": " shared-with-artifacts",
        "session": " shared",
    }
    compare(
        "gateway_routes",
        (f"{method} {path} {scope}{said[is_shared]} {reach}" for method, path, scope, is_shared, reach in reaches()),
    )


def filled(path: str, job: UUID) -> str:
    """A path with values in it; those of jobs are of one that is there."""
    known = {
        "job_id": str(job),
        "artifact_id": "1",
        "attempt_id": "1",
        "version": "1",
        "backfill_id": str(uuid4()),
        "operation_id": str(uuid4()),
    }
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: known.get(found[1], "nothing"), path)


async def test_each_credential_reaches_what_its_scope_allows_and_nothing_else(gateway: Gateway, conn: Connection):
    job = await submit(conn)
    known = list(routes())
    assert len(known) > 90
    for credential, token in (await credentials(gateway, job)).items():
        for method, path, scope, is_shared in known:
            if path.endswith("/stream"):
                continue  # test_a_stream_needs_the_scope_read
            await check(gateway, credential, token, method, path, filled(path, job), scope, is_shared=is_shared)


async def credentials(gateway: Gateway, job: UUID) -> dict[str, str | None]:
    made: dict[str, str | None] = {scope: await gateway.token(scope) for scope in SCOPES}
    made |= {"none": None, "wrong": "accs_aaaaaaaa_" + "A" * 43, "expired": await gateway.expired()}
    return made | {"revoked": await gateway.revoked(), "share": await gateway.share(job)}


async def check(
    gateway: Gateway,
    credential: str,
    token: str | None,
    method: str,
    path: str,
    url: str,
    scope: str,
    *,
    is_shared: bool | str,
) -> None:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    answer = await gateway.client.request(method, url, headers=headers, json={})
    said = answer.json() if "json" in answer.headers.get("content-type", "") else {}
    is_in = (
        scope == "none"
        or (credential == "share" and is_shared in (True, "session"))
        or scope in IMPLIED.get(credential, set())
    )
    where = f"{method} {path} as {credential}: {answer.status_code} {said}"
    if is_in:
        assert answer.status_code != 401 or path in ("/api/v1/session", "/hooks/{name}"), where
        assert said.get("code") != "scope_missing" or path.endswith("/shares"), where
        assert answer.status_code < 500, where
    elif credential in SCOPES or credential == "share":
        assert answer.status_code == 403, where
        assert said["code"] == "scope_missing", where
    else:
        assert answer.status_code == 401, where
        assert said["code"] == "unauthenticated", where
        assert answer.headers["www-authenticate"].startswith("Bearer"), where


@pytest.mark.parametrize(("scope", "status"), [(None, 401), ("agent", 403), ("read", 200)])
async def test_a_stream_needs_the_scope_read(gateway: Gateway, scope: str | None, status: int):
    headers = {} if scope is None else {"Authorization": f"Bearer {await gateway.token(scope)}"}
    async with gateway.client.stream("GET", "/api/v1/stream", headers=headers) as answer:
        assert answer.status_code == status


async def test_a_refusal_names_the_scope_that_is_missing(gateway: Gateway, conn: Connection):
    job = await submit(conn)
    refused = await gateway.post(f"/jobs/{job}/cancel", scope="read")
    assert refused.status_code == 403
    assert refused.json()["scope"] == "submit"
    assert '"submit"' in refused.json()["detail"]
    assert "accsd tokens create" in refused.json()["hint"]


async def test_the_scope_submit_changes_ones_own_jobs_only(gateway: Gateway, conn: Connection):
    await conn.execute('INSERT INTO workflows (name, steps) VALUES (\'w\', \'[{"key": "a", "service": "s"}]\')')
    own = (await gateway.post("/jobs", {"workflow": "w"}, scope="submit")).json()["id"]
    other = (await gateway.post("/jobs", {"workflow": "w"}, scope="operate")).json()["id"]

    assert (await gateway.post(f"/jobs/{own}/cancel", scope="submit")).json()["answer"] == "accepted"
    refused = await gateway.post(f"/jobs/{other}/cancel", scope="submit")
    assert (refused.status_code, refused.json()["code"]) == (403, "not_yours")
    assert (await gateway.post(f"/jobs/{other}/cancel", scope="operate")).status_code == 200


async def test_a_limited_token_submits_only_the_workflows_that_it_names(gateway: Gateway, conn: Connection):
    for name in ("media-cut", "nightly"):
        await conn.execute('INSERT INTO workflows (name, steps) VALUES ($1, \'[{"key": "a", "service": "s"}]\')', name)
    token = await gateway.token("submit", actor="studio", limits={"workflows": ["media-*"]})
    assert (await gateway.post("/jobs", {"workflow": "media-cut"}, token=token)).status_code == 201
    refused = await gateway.post("/jobs", {"workflow": "nightly"}, token=token)
    assert refused.status_code == 403
    assert "media-*" in refused.json()["detail"]


async def test_a_token_that_is_made_for_a_door_is_none_for_the_native_api(gateway: Gateway):
    """G-4."""
    token = await gateway.token("operate", actor="studio", limits={"door": "joblib"})
    refused = await gateway.get("/jobs", token=token)
    assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing")
    assert "limited to the door joblib" in refused.json()["detail"]


async def test_a_door_is_open_only_where_its_section_is_there(gateway: Gateway):
    """G-1."""
    token = await gateway.token("admin")
    for path in ("/v1/joblib/workers", "/v1/me", "/deployments", "/sdh", "/status/x", "/tasks", "/runs", "/mcp"):
        answer = await gateway.client.get(path, headers={"Authorization": f"Bearer {token}", "X-API-Key": token})
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path


async def test_a_gateway_is_open_beyond_this_machine_only_if_there_are_tokens(db_url: str):
    """G-1: it listens only where the settings say an address."""
    assert GatewaySettings().listen is None
    async with opened(db_url) as db:
        await require_tokens_beyond_loopback(db, GatewaySettings(listen="127.0.0.1:8460"))
        beyond = GatewaySettings(listen="0.0.0.0:8460")
        with pytest.raises(ConfigError, match="there is no token"):
            await require_tokens_beyond_loopback(db, beyond)
        await create_token(db, "laptop", [Scope.READ])
        await require_tokens_beyond_loopback(db, beyond)


# Browsers


async def logged_in(gateway: Gateway) -> str:
    opened = await gateway.post("/session", {"token": await gateway.token("admin")})
    assert opened.status_code == 201
    cookie = opened.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    gateway.client.cookies.clear()
    return cookie.partition(";")[0]


async def test_a_cookie_changes_something_only_with_proof_of_the_same_origin(gateway: Gateway):
    cookie = await logged_in(gateway)
    ours = {"Cookie": cookie, "Sec-Fetch-Site": "same-origin", "X-Accsd": "1"}
    assert (await gateway.get("/me", headers={"Cookie": cookie})).json()["actor"] == "admin"
    for missing in ("Sec-Fetch-Site", "X-Accsd"):
        headers = {name: value for name, value in ours.items() if name != missing}
        refused = await gateway.post("/schedules/hold", headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "not_same_origin"), missing
    for site in ("cross-site", "same-site", "none"):
        refused = await gateway.post("/schedules/hold", headers={**ours, "Sec-Fetch-Site": site})
        assert refused.status_code == 403, site
    by_origin = {"Cookie": cookie, "Origin": gateway.url, "X-Accsd": "1"}
    assert (await gateway.post("/schedules/hold?dry_run=true", headers=by_origin)).status_code == 200
    assert (await gateway.post("/schedules/hold", headers=ours)).json()["answer"] == "accepted"


async def test_a_session_ends_by_logging_out(gateway: Gateway):
    cookie = await logged_in(gateway)
    ours = {"Cookie": cookie, "Sec-Fetch-Site": "same-origin", "X-Accsd": "1"}
    assert (await gateway.ask("DELETE", "/session", headers=ours)).status_code == 204
    assert (await gateway.get("/me", headers={"Cookie": cookie})).status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "127.0.0.1.evil.example"])
async def test_a_foreign_host_name_is_refused(gateway: Gateway, host: str):
    answer = await gateway.client.get("/health", headers={"Host": host})
    assert (answer.status_code, answer.json()["code"]) == (421, "unknown_host")


async def test_a_configured_name_and_a_base_path_are_taken(db_url: str):
    async with serving(db_url, gateway={"hosts": ["accsd.lan"]}) as gateway:
        assert (await gateway.client.get("/health", headers={"Host": "accsd.lan:8460"})).status_code == 200


async def test_pages_of_allowed_origins_may_read_answers_and_others_may_not(db_url: str):
    async with serving(db_url, gateway={"cors_origins": ["https://tools.lan"]}) as gateway:
        allowed = await gateway.client.get("/health", headers={"Origin": "https://tools.lan"})
        other = await gateway.client.get("/health", headers={"Origin": "https://evil.example"})
        asked = await gateway.client.options(
            "/api/v1/jobs", headers={"Origin": "https://tools.lan", "Access-Control-Request-Method": "POST"}
        )
    assert allowed.headers["access-control-allow-origin"] == "https://tools.lan"
    assert "access-control-allow-credentials" not in allowed.headers
    assert "access-control-allow-origin" not in other.headers
    assert asked.status_code == 204


async def test_whoever_asks_too_often_is_told_when_to_come_back(db_url: str):
    async with serving(db_url, gateway={"limits": {"reads_per_second": 1}}) as gateway:
        token = await gateway.token("read")
        answers = [await gateway.get("/me", token=token) for _ in range(4)]
    assert answers[0].status_code == 200
    assert answers[-1].status_code == 429
    assert int(answers[-1].headers["retry-after"]) >= 1


async def test_secrets_in_options_are_shown_to_nobody(gateway: Gateway, conn: Connection):
    await conn.execute('INSERT INTO workflows (name, steps) VALUES (\'w\', \'[{"key": "a", "service": "s"}]\')')
    options = {
        "api_token": "canary-1",
        "nested": {"Password": "canary-2", "plain": "seen"},
        "list": [{"secret": "canary-3"}],
    }
    made = await gateway.post("/jobs", {"workflow": "w", "options": options}, scope="admin")
    job = made.json()["id"]
    paths = ["/jobs", f"/jobs/{job}", f"/jobs/{job}/events", f"/jobs/{job}/tasks", "/overview", "/task-events"]
    for text in [made.text, *[(await gateway.get(path, scope="admin")).text for path in paths]]:
        assert "canary" not in text
    assert made.json()["options"]["nested"] == {"Password": "***", "plain": "seen"}


async def test_the_page_is_for_anybody_and_runs_no_script_but_its_own(gateway: Gateway):
    page = await gateway.client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    for name in re.findall(r'(?:src|href)="(static/[^"]+)"', page.text):
        assert (await gateway.client.get(f"/{name}")).status_code == 200, name
    for name in ("../client.py", "%2e%2e/client.py", "index.html", "nothing.js"):
        assert (await gateway.client.get(f"/static/{name}")).status_code == 404, name
