"""Who gets in, for every route of the door (HT1, AG1, AG2, G-5)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import orjson

from accsd.gateway.access import all_routes
from accsd.gateway.ordinaut.app import make_routes, openapi, serves
from accsd.gateway.reach import Reach, reach_of
from accsd.settings import Settings
from tests.doors.ordinaut.client import ECHO, Client, task
from tests.support.cluster import Connection, TestServer
from tests.support.factory import submit
from tests.support.gateway import PLENTY, Gateway, serving
from tests.support.goldens import compare
from tests.support.library import url_as
from tests.support.roles import roles as roles
from tests.support.schedules import plan_all

COMMITTED = Path(__file__).parents[3] / "docs/reference/openapi-ordinaut.json"
SCOPES = ("read", "submit", "operate", "admin", "agent")
IMPLIED = {
    "read": {"read"},
    "submit": {"read", "submit"},
    "operate": {"read", "submit", "operate"},
    "admin": {"read", "submit", "operate", "admin"},
    "agent": {"agent"},
}
PUBLIC = {"/agents/auth/token", "/agents/auth/refresh", "/agents/auth/revoke"}


def routes() -> Iterator[tuple[str, str, str, str]]:
    """Method, path, scope, and what is left of it for a token that is limited to workflows."""
    for route in all_routes(make_routes()):
        extra = route.openapi_extra  # type: ignore[attr-defined]
        scope = extra["x-scope"]
        reach = reach_of(route.path, Reach(extra["x-reach"]) if "x-reach" in extra else None)  # type: ignore[attr-defined]
        for method in sorted(route.methods):  # type: ignore[attr-defined]
            yield method, route.path, scope, "-" if scope == "none" else reach.value  # type: ignore[attr-defined]


def test_every_route_and_its_scope_are_those_of_the_golden_file():
    """A new route changes the file, so that somebody has looked at who may call it."""
    compare("ordinaut_routes", (" ".join(each) for each in routes()))
    assert {path for _, path, scope, _ in routes() if scope == "none"} == PUBLIC


async def test_each_credential_reaches_what_its_scope_allows_and_nothing_else(gateway: Gateway, conn: Connection):
    """AG1: a UUID is never a credential. G-5: nothing is open, reading included."""
    made = await Client(gateway, await gateway.token("admin")).create()
    agent = await conn.fetchval("SELECT id::text FROM accs.actors WHERE name = 'admin'")
    credentials: dict[str, str | None] = {scope: await gateway.token(scope) for scope in SCOPES}
    credentials |= {"none": None, "wrong": "accs_aaaaaaaa_" + "A" * 43, "bare uuid": agent}
    credentials |= {"expired": await gateway.expired(), "revoked": await gateway.revoked()}
    credentials |= {"share": await gateway.share(await submit(conn))}
    known = list(routes())
    assert len(known) == 29
    for credential, token in credentials.items():
        for method, path, scope, _ in known:
            await check(gateway, credential, token, method, path, UUID(made["id"]), scope)


async def check(
    gateway: Gateway, credential: str, token: str | None, method: str, path: str, task_id: UUID, scope: str
) -> None:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    # a dry run, so that one credential does not take from the next what it is asked for
    dry = "?dry_run=true" if method != "GET" and path not in PUBLIC else ""
    url = path.replace("{task_id}", str(task_id))
    url = re.sub(r"\{\w+\}", str(uuid4()), url) + dry
    answer = await gateway.client.request(method, url, headers=headers, json={"delay_seconds": 1, **task()})
    said: Any = answer.json()
    where = f"{method} {path} as {credential}: {answer.status_code} {said}"
    if scope == "none" or scope in IMPLIED.get(credential, set()):
        assert answer.status_code not in (401, 405), where
        assert answer.status_code < 500, where
        if answer.status_code == 403:  # the pipeline's own services
            assert (credential, method, path) in (("submit", "POST", "/tasks"), ("submit", "PUT", "/tasks/{task_id}"),
                ("submit", "PATCH", "/tasks/{task_id}")) or said["code"] == "not_yours", where  # fmt: skip
    elif credential in (*SCOPES, "share"):
        assert (answer.status_code, said["code"]) == (403, "scope_missing"), where
    else:
        assert (answer.status_code, said["code"]) == (401, "unauthenticated"), where
        assert answer.headers["www-authenticate"].startswith("Bearer"), where


async def test_a_browsers_session_and_a_token_of_another_door_do_not_get_in(gateway: Gateway):
    cookie = (await gateway.post("/session", {"token": await gateway.token("admin")})).headers["set-cookie"]
    gateway.client.cookies.clear()
    headers = {"Cookie": cookie.partition(";")[0], "X-Accsd": "1", "Sec-Fetch-Site": "same-origin"}
    assert (await gateway.client.get("/tasks", headers=headers)).status_code == 401
    elsewhere = Client(gateway, await gateway.token("operate", actor="a", limits={"door": "joblib"}))
    assert "limited to the door joblib" in (await elsewhere.get("/tasks", 403))["detail"]
    here = Client(gateway, await gateway.token("operate", actor="b", limits={"door": "ordinaut"}))
    assert (await here.get("/tasks"))["total"] == 0
    assert (await gateway.get("/jobs", token=here.token)).status_code == 403


async def test_nothing_is_redirected_and_a_slash_at_the_end_changes_nothing(client: Client):
    """G-2: Ordinaut redirected, which loses the body of a POST."""
    assert (await client.get("/tasks/"))["items"] == []
    assert (await client.post("/tasks/", task(), 201))["status"] == "active"
    refused = await client.get("/tasks/none/such", 404)
    assert refused["code"] == "not_found"
    assert (await client.ask("DELETE", "/tasks")).status_code == 405


async def test_whoever_asks_too_often_is_told_when_to_come_back(db_url: str):
    """429 with Retry-After, as Ordinaut's description says; counted by caller, not by address."""
    async with serving(db_url, gateway={"ordinaut": {}, "limits": PLENTY | {"reads_per_second": 1}}) as gateway:
        often, other = [Client(gateway, await gateway.token("read", actor=name)) for name in ("often", "other")]
        answers = [await often.ask("GET", "/tasks") for _ in range(4)]
        assert [answer.status_code for answer in answers[:2]] == [200, 200]
        assert (answers[-1].status_code, int(answers[-1].headers["retry-after"]) >= 1) == (429, True)
        await other.get("/tasks")


async def test_what_is_about_the_server_itself_is_asked_of_accsd(client: Client):
    """Its pages on health and its Swagger pages are not here."""
    for path in ("/health/ready", "/health/live", "/docs", "/redoc"):
        assert (await client.ask("GET", path)).status_code == 404, path
    assert (await Client(client.gateway, None).ask("GET", "/health")).json()["status"] == "ok"


def test_the_door_is_shut_without_its_section_and_serves_its_own_paths_alone():
    assert Settings.model_validate({"gateway": {}}).gateway.ordinaut is None
    assert all(map(serves, ("/tasks", "/tasks/", "/runs/stats/summary", "/agents/auth/token", "/events")))
    assert not any(map(serves, ("/", "/api/v1/tasks", "/tasksx", "/jobs", "/api/v1/events")))


async def test_unknown_fields_are_ignored_and_what_is_no_json_is_refused(client: Client):
    """G-6, G-10."""
    made = await client.create(something_newer={"x": 1})
    assert made["title"] == "Weather alert"
    for body in (b"{", b'{"title": NaN}', b'{"title": "\\ud800"}', b"[]", b'{"title": 123456789012345678901}'):
        headers = {"Authorization": f"Bearer {client.token}", "Content-Type": "application/json"}
        answer = await client.gateway.client.post("/tasks", content=body, headers=headers)
        assert answer.status_code in (400, 422), (body, answer.text)
        assert answer.json()["code"] == "invalid"
    nul = await client.create(422, payload={"params": {"x": "\0"}, **ECHO})
    assert nul["code"] in ("invalid", "workflow_invalid")
    large = await client.ask("POST", "/tasks", task(payload={"params": {"x": "y" * 2**20}}))
    assert large.status_code == 413


async def test_what_belongs_to_others_needs_the_scope_operate(gateway: Gateway, client: Client, conn: Connection):
    """AG3."""
    made = await client.create()
    stranger = Client(gateway, await gateway.token("submit"))
    for method, path in (("POST", "run_now"), ("POST", "pause"), ("POST", "cancel"), ("DELETE", "")):
        refused = (await stranger.ask(method, f"/tasks/{made['id']}/{path}")).json()
        assert (refused["code"], refused["scope"]) == ("not_yours", "operate"), path
    assert (await stranger.put(f"/tasks/{made['id']}", {"title": "mine"}, 403))["code"] == "not_yours"
    owner = await conn.fetchval("SELECT id::text FROM accs.actors WHERE name = 'operate'")
    refused = await stranger.post("/events", {"topic": "a.b", "payload": {}, "source_agent_id": owner}, 403)
    assert refused["code"] == "not_yours"


async def test_the_limits_of_a_token_hold(gateway: Gateway, client: Client):
    """AG2: workflows, events, tools, services; what a token does not reach is not there."""
    hidden = await client.create(name="payroll")
    await client.post(f"/tasks/{hidden['id']}/run_now")
    run = (await client.get("/runs"))["items"][0]["id"]
    limits = {"workflows": ["shop-*"], "events": ["shop.*"], "tools": ["accs.*"], "services": ["echo"]}
    shop = Client(gateway, await gateway.token("operate", actor="shop", limits=limits))
    assert (await shop.get("/tasks"))["total"] == 0
    assert (await shop.get("/runs"))["total"] == 0
    assert (await shop.get("/runs/stats/summary"))["total_runs"] == 0
    for path in (f"/tasks/{hidden['id']}", f"/runs/{run}", f"/runs/task/{hidden['id']}/latest"):
        assert (await shop.get(path, 404))["code"] == "not_found", path
    assert (await shop.get(f"/runs?task_id={hidden['id']}"))["total"] == 0
    await shop.post(f"/tasks/{hidden['id']}/run_now", status=404)
    assert (await shop.create(403, name="payroll-2", payload=ECHO))["code"] == "scope_missing"
    assert "services echo" in (await shop.create(403, name="shop-1"))["detail"]
    await shop.create(name="shop-1", payload=ECHO)
    for topic in ("pay.day", "accs.job.done"):  # a task tells its run what it has heard
        heard = await shop.create(403, name="shop-2", payload=ECHO, schedule_kind="event", schedule_expr=topic)
        assert heard["code"] == "scope_missing", topic
    assert (await shop.post("/events", {"topic": "pay.day", "payload": {}}, 403))["code"] == "scope_missing"
    await shop.post("/events", {"topic": "shop.open", "payload": {}}, 202)
    await client.post("/events", {"topic": "pay.day", "payload": {}}, 202)
    assert [each["topic"] for each in (await shop.get("/events/stream/recent"))["events"]] == ["shop.open"]


async def test_the_scope_submit_uses_what_the_settings_let_it_use(db_url: str):
    """A pipeline is a workflow, and to write one needs operate; a gateway may say which tools are harmless."""
    async with serving(db_url, gateway={"ordinaut": {"tools": ["service:echo", "accs.trans*"]}}) as gateway:
        client = Client(gateway, await gateway.token("submit", actor="helper"))
        refused = await client.create(403)
        assert (refused["code"], refused["scope"]) == ("scope_missing", "operate")
        assert refused["errors"][0]["pointer"] == "/payload/pipeline/0/uses"
        made = await client.create(payload=ECHO)
        await client.put(f"/tasks/{made['id']}", {"payload": {"pipeline": [{"uses": "service:echo"}]}})
        await client.put(f"/tasks/{made['id']}", {"payload": {"pipeline": [{"uses": "service:rm"}]}}, 403)
        await client.post(f"/tasks/{made['id']}/pause")


async def test_the_door_needs_no_more_than_the_database_role_of_a_gateway(
    server: TestServer, db_url: str, conn: Connection, roles: None
):
    """G-11: a role's grants are what its own process calls."""
    async with serving(db_url) as owner:  # whoever makes tokens
        token = await owner.token("admin")
    async with serving(url_as(server, db_url, "accs_api"), gateway={"ordinaut": {}}) as gateway:
        client = Client(gateway, token)
        made = await client.create(schedule_kind="event", schedule_expr="a.b")
        where = f"/tasks/{made['id']}"
        async with serving(db_url) as owner:
            await plan_all(owner.context.verbs)
        assert (await client.post("/events", {"topic": "a.b", "payload": {}}, 202))["triggered_tasks"] == [made["id"]]
        await client.put(where, {"payload": ECHO, "priority": 1})
        for act in ("run_now", "pause", "resume", "cancel"):
            await client.post(f"{where}/{act}")
        agent = await client.post("/agents", {"name": "helper", "scopes": ["submit"]}, 201)
        secret = {"agent_id": agent["id"], "agent_secret": agent["agent_secret"]}
        access = await client.post("/agents/auth/token", secret)
        await client.post("/agents/auth/revoke", {"refresh_token": access["access_token"]})
        await client.ask("DELETE", f"/agents/{agent['id']}")
        for path in ("/tasks", where, "/runs", f"/runs/task/{made['id']}/stats", "/events/topics",
                     "/events/stream/recent", "/agents", f"/agents/{agent['id']}", "/runs/stats/summary"):  # fmt: skip
            await client.get(path)


def test_the_committed_description_is_that_of_the_routes():
    """`make reference` writes it."""
    assert orjson.loads(COMMITTED.read_bytes()) == orjson.loads(orjson.dumps(openapi()))
    operations = [each for methods in openapi()["paths"].values() for each in methods.values()]
    ids = [each["operationId"] for each in operations]
    assert len(set(ids)) == len(ids)
    for each in operations:
        assert each["summary"], each["operationId"]
        assert {"4XX", "5XX"} <= each["responses"].keys(), each["operationId"]
