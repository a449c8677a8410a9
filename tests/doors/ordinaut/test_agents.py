"""/agents: agents, their secrets, and the access tokens that they get for them (AG1, AG2, HT1)."""

from typing import Any

import pytest

from accsd.gateway.ordinaut.agents import read_scopes, written_scopes
from accsd.model.access import Scope
from tests.doors.ordinaut.client import ECHO, Client
from tests.support.cluster import Connection, on_every_server
from tests.support.factory import pass_time, submit
from tests.support.gateway import Gateway, serving


@pytest.fixture
async def admin(gateway: Gateway) -> Client:
    return Client(gateway, await gateway.token("admin"))


async def an_agent(admin: Client, *scopes: str, name: str = "helper") -> dict[str, Any]:
    return await admin.post("/agents", {"name": name, "scopes": list(scopes)}, 201)


def secret_of(agent: dict[str, Any]) -> dict[str, Any]:
    return {"agent_id": agent["id"], "agent_secret": agent["agent_secret"]}


async def test_an_agent_gets_an_access_token_for_its_secret_and_makes_tasks_with_it(
    gateway: Gateway, admin: Client, conn: Connection
):
    made = await an_agent(admin, "operate")
    assert made.keys() >= {"id", "name", "scopes", "created_at", "agent_secret"}
    assert (made["name"], made["scopes"], made["kind"], made["webhook_url"]) == (
        "helper",
        ["operate"],
        "assistant",
        None,
    )
    nobody = Client(gateway, None)
    access = await nobody.post("/agents/auth/token", secret_of(made))
    assert (access["token_type"], access["scope"]) == ("bearer", "operate")
    assert 3500 < access["expires_in"] <= 3600
    task = await Client(gateway, access["access_token"]).create()
    assert task["created_by"] == made["id"]
    assert await conn.fetchval("SELECT count(*) FROM accs.tokens WHERE sha256::text LIKE '%accs_%'") == 0
    refreshed = await nobody.post("/agents/auth/refresh", {"refresh_token": access["refresh_token"]})
    assert refreshed["access_token"] != access["access_token"]


async def test_a_wrong_secret_or_that_of_another_agent_is_401(admin: Client):
    """2.2: there the secrets were never kept, so that any would do."""
    one, two = await an_agent(admin, "read"), await an_agent(admin, "read", name="other")
    nobody = Client(admin.gateway, None)
    for given in (
        {"agent_id": one["id"], "agent_secret": two["agent_secret"]},
        {"agent_id": one["id"], "agent_secret": "accs_aaaaaaaa_" + "A" * 43},
        {"agent_id": one["id"], "agent_secret": one["id"]},
        {"agent_id": "00000000-0000-0000-0000-000000000001", "agent_secret": one["agent_secret"]},
    ):
        assert (await nobody.post("/agents/auth/token", given, 401))["code"] == "unauthenticated"
    assert (await nobody.post("/agents/auth/token", {"agent_id": one["id"]}, 422))["code"] == "invalid"
    assert (await nobody.post("/agents/auth/refresh", {"refresh_token": one["id"]}, 401))["code"] == "unauthenticated"


async def test_an_access_token_ends_with_its_time_its_secret_and_its_agent(admin: Client, conn: Connection):
    nobody, agent = Client(admin.gateway, None), await an_agent(admin, "read")
    answers = [await nobody.post("/agents/auth/token", secret_of(agent)) for _ in range(2)]
    tokens = [Client(admin.gateway, each["access_token"]) for each in answers]
    await tokens[0].get("/tasks")
    # one that refreshes itself ends when it did: whoever has stolen one has no other for longer
    await pass_time(conn, 1800)
    refreshed = await nobody.post("/agents/auth/refresh", {"refresh_token": tokens[0].token})
    assert refreshed["expires_in"] <= 1800
    assert (await nobody.post("/agents/auth/revoke", {"refresh_token": tokens[0].token}))["success"] is True
    await tokens[0].get("/tasks", 401)
    await tokens[1].get("/tasks")
    await Client(admin.gateway, refreshed["access_token"]).get("/tasks")
    await nobody.post("/agents/auth/revoke", {"refresh_token": agent["agent_secret"]})
    for token in (agent["agent_secret"], tokens[1].token, refreshed["access_token"]):
        await Client(admin.gateway, token).get("/tasks", 401)
    assert (await nobody.post("/agents/auth/revoke", {"refresh_token": "nothing"}))["success"] is True
    other = await an_agent(admin, "read", name="other")
    access = (await nobody.post("/agents/auth/token", secret_of(other)))["access_token"]
    await pass_time(conn, 3601)
    await Client(admin.gateway, access).get("/tasks", 401)
    await Client(admin.gateway, other["agent_secret"]).get("/tasks")
    await conn.execute("SELECT accs.forget_access()")
    assert (
        await conn.fetchval("SELECT count(*) FROM accs.tokens WHERE of_token IS NOT NULL AND expires_at < accs.clock()")
        == 0
    )


@on_every_server
async def test_agents_are_listed_with_the_scopes_of_their_tokens(admin: Client):
    made = await an_agent(admin, "submit", "events:github", "workflows:shop-")
    assert made["scopes"] == ["submit", "workflows:shop-*", "events:github", "events:github.*"]
    page = await admin.get("/agents?name_filter=HELP")
    assert page["total"] == 1
    assert page["items"][0] == await admin.get(f"/agents/{made['id']}")
    assert page["items"][0]["scopes"] == made["scopes"]
    assert (await admin.get("/agents?scope_filter=admin"))["items"][0]["name"] == "admin"
    assert (await admin.get("/agents?limit=1"))["has_more"] is True
    assert (await admin.get("/agents/00000000-0000-0000-0000-000000000001", 404))["code"] == "not_found"


async def test_what_narrows_a_scope_narrows_what_the_agent_does(admin: Client):
    """AG2."""
    agent = await an_agent(admin, "operate", "events:github", "workflows:shop-", "tools:accs")
    helper = Client(admin.gateway, agent["agent_secret"])
    assert (await helper.create(403, payload=ECHO))["code"] == "scope_missing"
    await helper.create(payload=ECHO, name="shop-1")
    await helper.post("/events", {"topic": "github.push", "payload": {}}, 202)
    assert (await helper.post("/events", {"topic": "githubby", "payload": {}}, 403))["code"] == "scope_missing"


async def test_a_scope_that_accsd_does_not_have_is_refused(admin: Client):
    for scopes in (["calendar.read"], ["notify", "read"], ["events:x"], ["events:"]):
        refused = await admin.post("/agents", {"name": "x", "scopes": scopes}, 422)
        assert "read, submit, operate, admin" in refused["detail"]
    assert (await admin.post("/agents", {"name": "x", "scopes": []}, 422))["code"] == "invalid"
    await admin.post("/agents?dry_run=true", {"name": "x", "scopes": ["read"]})
    assert (await admin.get("/agents?name_filter=x"))["total"] == 0


def test_scopes_are_written_as_they_are_read():
    scopes, limits = read_scopes(["read", "events:github", "tools:telegram", "workflows:shop-", "services:gpu*"])
    assert (scopes, limits) == (
        [Scope.READ],
        {
            "events": ["github", "github.*"],
            "tools": ["telegram", "telegram.*"],
            "workflows": ["shop-*"],
            "services": ["gpu*"],
        },
    )
    again = read_scopes([*written_scopes(scopes, {"workflows": ["shop-*"], "services": ["gpu*"]})])
    assert again == ([Scope.READ], {"workflows": ["shop-*"], "services": ["gpu*"]})


async def test_a_name_is_given_once(admin: Client):
    """Answered 400, as by Ordinaut."""
    agent = await an_agent(admin, "read")
    assert (await admin.post("/agents", {"name": "helper", "scopes": ["read"]}, 400))["code"] == "agent_exists"
    await admin.ask("DELETE", f"/agents/{agent['id']}")
    assert (await admin.post("/agents", {"name": "helper", "scopes": ["read"]}, 400))["code"] == "agent_exists"
    renamed = await admin.put(f"/agents/{agent['id']}", {"name": "x", "scopes": ["read"]}, 422)
    assert "keeps its name" in renamed["detail"]


async def test_a_new_secret_replaces_what_the_agent_had(admin: Client):
    agent = await an_agent(admin, "read")
    first = Client(admin.gateway, agent["agent_secret"])
    changed = await admin.put(f"/agents/{agent['id']}", {"scopes": ["submit"]})
    assert changed["scopes"] == ["submit"]
    await first.get("/tasks", 401)
    second = Client(admin.gateway, changed["agent_secret"])
    await second.post("/events", {"topic": "a.b", "payload": {}}, 202)
    again = await admin.post(f"/agents/{agent['id']}/credentials")
    await second.get("/tasks", 401)
    await Client(admin.gateway, again["agent_secret"]).post("/events", {"topic": "a.b", "payload": {}}, 202)


async def test_an_agent_that_is_deleted_is_locked_out_with_its_tasks_and_nothing_is_lost(
    admin: Client, conn: Connection
):
    """There its tasks were deleted with their runs."""
    agent = await an_agent(admin, "operate")
    helper = Client(admin.gateway, agent["agent_secret"])
    made = await helper.create()
    said = (await admin.ask("DELETE", f"/agents/{agent['id']}")).json()
    assert said["details"] == {"agent_id": agent["id"], "agent_name": "helper"}
    await helper.get("/tasks", 401)
    assert (await admin.get(f"/tasks/{made['id']}"))["created_by"] == agent["id"]
    assert (await admin.get(f"/agents/{agent['id']}"))["disabled_at"]
    me = await conn.fetchval("SELECT id::text FROM accs.actors WHERE name = 'admin'")
    refused = await admin.ask("DELETE", f"/agents/{me}")
    assert (refused.status_code, refused.json()["code"]) == (400, "not_yourself")


async def test_whoever_guesses_secrets_is_put_off(db_url: str):
    limits = {"reads_per_second": 1000, "writes_per_second": 1000, "logins_per_minute": 3}
    async with serving(db_url, gateway={"ordinaut": {}, "limits": limits}) as gateway:
        nobody = Client(gateway, None)
        given = {"agent_id": "00000000-0000-0000-0000-000000000001", "agent_secret": "accs_aaaaaaaa_" + "A" * 43}
        for _ in range(3):
            await nobody.post("/agents/auth/token", given, 401)
        assert (await nobody.post("/agents/auth/token", given, 429))["retry_after_seconds"] >= 1


async def test_a_share_and_a_token_of_another_door_are_not_ended_here(admin: Client, conn: Connection):
    """Whoever has a link to a job would end it for everybody."""
    nobody, gateway = Client(admin.gateway, None), admin.gateway
    share = await gateway.share(await submit(conn))
    for token in (share, await gateway.token("read", limits={"door": "judge"})):
        refused = await nobody.post("/agents/auth/revoke", {"refresh_token": token}, 403)
        assert refused["code"] == "scope_missing"
    assert await conn.fetchval("SELECT count(*) FROM accs.tokens WHERE revoked_at IS NOT NULL") == 0
