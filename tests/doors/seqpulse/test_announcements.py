"""Trigger and finish on the wire: bodies, keys, environments, addresses, the look beforehand (SP-1 to SP-15)."""

import asyncio
import time
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from accsd.gateway.seqpulse.projects import canonical_path, compared
from accsd.settings import Settings
from tests.support.applications import application
from tests.support.cluster import Connection
from tests.support.deployments import SECRET, Shop, jobs_of, settings_of
from tests.support.gateway import serving


async def test_the_body_of_a_trigger(shop: Shop, conn: Connection):
    """SP-2, SP-4, G-6: env is required, the others may be missing or null; members that are not known are ignored."""
    trigger = "/deployments/trigger"
    status, said = await shop.ask("POST", trigger, {"env": "prod", "commit": "abc", "nested": {"x": [1]}})
    assert (status, said["status"], said["message"]) == (200, "created", None)
    assert UUID(said["deployment_id"])
    nulls = {"env": "staging", "metrics_endpoint": None, "idempotency_key": None, "branch": None}
    assert (await shop.ask("POST", trigger, nulls))[1]["status"] == "created"
    row = await conn.fetchrow("SELECT branch, idempotency_key FROM accs.seqpulse_deployments WHERE env = 'staging'")
    assert tuple(row or ()) == (None, None)
    for wrong in (
        {},
        {"env": ""},
        {"env": 7},
        {"env": "x" * 256},
        {"env": "prod", "branch": "x" * 256},
        {"env": "prod", "idempotency_key": "x" * 256},
        {"env": "prod", "branch": "nul\x00"},
        [],
        "prod",
    ):
        status, said = await shop.ask("POST", trigger, wrong)
        assert status == 422, wrong
        assert {"loc", "msg", "type"} <= said["detail"][0].keys()


@pytest.mark.parametrize("body", [b"", b"{", b'{"env": "\\ud800"}', b'{"env": NaN}', b"\xff"])
async def test_what_is_no_json_is_422(shop: Shop, body: bytes):
    """SP-6, G-10: halves of characters, too."""
    headers = {"X-API-Key": await shop.key(), "Content-Type": "application/json"}
    answer = await shop.gateway.client.post("/deployments/trigger", content=body, headers=headers)
    assert answer.status_code == 422
    assert answer.json()["detail"]


async def test_a_key_belongs_to_its_project_and_the_header_goes_first(shop: Shop, conn: Connection):
    """SP-2, SP-3, SP-11: a blank key is none; the same key of another project is another deployment."""
    trigger = "/deployments/trigger"
    body = {"env": "prod", "idempotency_key": "of-the-body"}
    first = (await shop.ask("POST", trigger, body, **{"X-Idempotency-Key": "of-the-header"}))[1]
    assert await conn.fetchval("SELECT idempotency_key FROM accs.seqpulse_deployments") == "of-the-header"
    again = (await shop.ask("POST", trigger, {"env": "staging", "idempotency_key": "of-the-header"}))[1]
    assert (again["deployment_id"], again["status"]) == (first["deployment_id"], "existing")
    assert again["message"]
    theirs = await shop.key(project="other")
    other = (await shop.ask("POST", trigger, {"env": "prod", "idempotency_key": "of-the-header"}, key=theirs))[1]
    assert other["status"] == "created"
    blank = (await shop.ask("POST", trigger, {"env": "staging", "idempotency_key": " "}, **{"X-Idempotency-Key": ""}))[
        1
    ]
    assert blank["status"] == "created"
    keys = "SELECT idempotency_key FROM accs.seqpulse_deployments WHERE env = 'staging'"
    assert await conn.fetchval(keys) is None
    status, _ = await shop.ask("POST", trigger, {"env": "prod"}, **{"X-Idempotency-Key": "x" * 256})
    assert status == 422


async def test_a_known_key_is_that_deployment_whatever_became_of_it(shop: Shop):
    """SP-10, SP-11: also when it has ended; also while the application is down."""
    made = await shop.triggered(idempotency_key="gha-1-1")
    await shop.finished(made)
    shop.app.is_down()
    assert await shop.triggered(idempotency_key="gha-1-1") == made
    assert await shop.triggered("staging", idempotency_key="gha-1-1") == made


async def test_concurrent_triggers_give_one_deployment(shop: Shop, conn: Connection):
    """SP-10, SP-11: each answers created or existing."""
    body = {"env": "prod", "idempotency_key": "gha-1-1"}
    answers = await asyncio.gather(*(shop.ask("POST", "/deployments/trigger", body) for _ in range(8)))
    assert len({said["deployment_id"] for _, said in answers}) == 1
    assert sorted(said["status"] for _, said in answers) == ["created", *["existing"] * 7]
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 1


async def test_an_environment_that_the_project_has_not_is_400_before_anything_else(shop: Shop, conn: Connection):
    """SP-6, SP-11."""
    status, said = await shop.ask(
        "POST", "/deployments/trigger", {"env": "moon", "metrics_endpoint": "https://elsewhere.example/"}
    )
    assert (status, said["code"]) == (400, "env_not_allowed")
    assert "prod, staging" in said["detail"]
    assert await conn.fetchval("SELECT count(*) FROM accs.seqpulse_deployments") == 0


async def test_the_endpoint_is_the_project_s_own(shop: Shop):
    """SP-14: scheme, host, port and path without one slash at its end; query and fragment do not count."""
    url = shop.app.metrics_url
    trigger = "/deployments/trigger"
    for same in (url, f"{url}/", f"{url}?x=1#top", f" {url} ", ""):
        assert (await shop.ask("POST", trigger, {"env": "prod", "metrics_endpoint": same}))[0] == 200, same
    port = shop.app.url.rpartition(":")[2]
    for other in (
        url.replace("http:", "https:"),
        url.replace(port, "1"),  # the port counts
        url.replace(f":{port}", ""),
        url.replace("127.0.0.1", "127.0.0.2"),
        f"{url}//",
        f"{url}2",
        url.upper(),
        "no address at all",
    ):
        status, said = await shop.ask("POST", trigger, {"env": "prod", "metrics_endpoint": other})
        assert (status, said["code"]) == (409, "ENDPOINT_MISMATCH"), other
        assert "ENDPOINT_MISMATCH" in said["detail"]
    made = await shop.triggered()
    body = {"deployment_id": str(made), "result": "success", "metrics_endpoint": "https://elsewhere.example/"}
    assert (await shop.ask("POST", "/deployments/finish", body))[0] == 409
    assert (await shop.ask("GET", f"/deployments/{made}"))[1]["state"] == "running"


def test_addresses_are_compared_with_their_ports():
    """SP-14, SP-22."""
    assert compared("https://Shop.example/m/") == compared("https://shop.example:443/m?x#y")
    assert compared("http://shop.example/m") == compared("http://shop.example:80/m")
    assert compared("https://shop.example:8443/m") != compared("https://shop.example/m")
    for none in ("", "shop.example/m", "ftp://shop.example/m", "https://ada:secret@shop.example/", "https://x:99999/"):
        assert compared(none) is None, none
    paths = {"": "/", "/": "/", "/m": "/m", "/m/": "/m", "/m//": "/m/", "/seq%20pulse": "/seq%20pulse", "/m?x=/": "/m"}
    assert {each: canonical_path(f"https://shop.example{each}") for each in paths} == paths


async def test_a_project_may_take_the_endpoint_from_the_trigger(shop: Shop, conn: Connection):
    """SP-11, SP-14: then without one a deployment is made all the same, and only its analysis is scheduled."""
    key = await shop.key(project="other")
    trigger = "/deployments/trigger"
    bare = (await shop.ask("POST", trigger, {"env": "prod"}, key=key))[1]
    assert bare["status"] == "created"
    assert await jobs_of(conn, UUID(bare["deployment_id"])) == []
    finish = {"deployment_id": bare["deployment_id"], "result": "failed"}
    assert (await shop.ask("POST", "/deployments/finish", finish, key=key))[1]["status"] == "accepted"
    assert [job["job_type"] for job in await jobs_of(conn, UUID(bare["deployment_id"]))] == ["analysis"]
    named = (await shop.ask("POST", trigger, {"env": "prod", "metrics_endpoint": "http://10.0.0.1:81/m"}, key=key))[1]
    assert (
        await conn.fetchval(
            "SELECT metrics_endpoint FROM accs.seqpulse_deployments WHERE id = $1", UUID(named["deployment_id"])
        )
        == "http://10.0.0.1:81/m"
    )
    finish = {"deployment_id": named["deployment_id"], "result": "failed", "metrics_endpoint": "http://10.0.0.1:82/m"}
    assert (await shop.ask("POST", "/deployments/finish", finish, key=key))[0] == 409
    for wrong in ("ftp://x/", "https://ada:secret@x/", "x", "https://x/\u00e9"):
        body = {"env": "prod", "metrics_endpoint": wrong}
        assert (await shop.ask("POST", trigger, body, key=key))[0] == 422, wrong


async def test_a_blocked_project_can_not_be_deployed(db_url: str, shop: Shop):
    """SP-6: 423, of a project that was blocked."""
    async with serving(db_url, gateway={"seqpulse": settings_of(shop.app, blocked=True)}) as gateway:
        status, said = await Shop(gateway, shop.app).ask("POST", "/deployments/trigger", {"env": "prod"})
        assert status == 423
        assert "PROJECT_ENDPOINT_BLOCKED" in said["detail"]


async def test_the_body_of_a_finish(shop: Shop):
    """SP-5, SP-12: 200 in all three cases; anything else than success and failed is 422."""
    made = await shop.triggered()
    finish = "/deployments/finish"
    for wrong in ({}, {"deployment_id": "7", "result": "success"}, {"deployment_id": str(made), "result": "ok"}):
        assert (await shop.ask("POST", finish, wrong))[0] == 422, wrong
    unknown = await shop.ask("POST", finish, {"deployment_id": str(uuid4()), "result": "success"})
    assert (unknown[0], unknown[1]["status"]) == (200, "not_found")
    assert await shop.ask("POST", finish, {"deployment_id": str(made), "result": "failed"}) == (
        200,
        {"status": "accepted", "message": None},
    )
    ended = await shop.ask("POST", finish, {"deployment_id": str(made), "result": "success"})
    assert (ended[0], ended[1]["status"]) == (200, "ignored")
    assert (await shop.ask("GET", f"/deployments/{made}"))[1]["pipeline_result"] == "failed"


async def test_the_window_and_the_delay_are_the_project_s(db_url: str, shop: Shop, conn: Connection):
    """SP-13: N samples, one a minute; the delay is as long, unless it says otherwise."""
    for given, last in (({"window_minutes": 15}, 15), ({"window_minutes": 2, "delay_minutes": 30}, 30)):
        async with serving(db_url, gateway={"seqpulse": settings_of(shop.app, **given)}) as gateway:
            mine = Shop(gateway, shop.app)
            made = await mine.triggered("staging")
            await mine.finished(made)
        jobs = await jobs_of(conn, made)
        began = jobs[1]["scheduled_at"]
        posts = [job["scheduled_at"] - began for job in jobs if job["job_type"] == "post_collect"]
        assert posts == [timedelta(minutes=n) for n in range(given["window_minutes"])]
        assert jobs[-1]["scheduled_at"] - began == timedelta(minutes=last)


async def test_the_application_is_looked_at_before_a_deployment(shop: Shop, conn: Connection):
    """SP-15: signed; a failure at the trigger is 422 and makes nothing; a success is remembered."""
    shop.app.is_down()
    status, said = await shop.ask("POST", "/deployments/trigger", {"env": "prod"})
    assert (status, said["code"]) == (422, "preflight_failed")
    assert "503: down for maintenance" in said["detail"]
    assert await conn.fetchval("SELECT count(*) FROM accs.seqpulse_deployments") == 0
    shop.app.is_well()
    await shop.triggered()
    asked = len(shop.app.asked)
    assert shop.app.asked[-1]["x-seqpulse-signature-version"] == "v2"
    await shop.triggered("staging")
    assert len(shop.app.asked) == asked, "the first look is remembered"


async def test_a_failed_look_at_the_end_still_schedules_everything(db_url: str, shop: Shop, conn: Connection):
    """SP-15: the verdict will say what is missing. (The original closes the deployment without one.)"""
    made = await shop.triggered()
    shop.app.is_down()
    async with serving(db_url, gateway={"seqpulse": settings_of(shop.app)}) as gateway:  # which remembers nothing
        body = {"deployment_id": str(made), "result": "success"}
        status, said = await Shop(gateway, shop.app).ask("POST", "/deployments/finish", body)
    assert (status, said["status"]) == (200, "accepted")
    assert "503" in said["message"]
    assert len(await jobs_of(conn, made)) == 7


@pytest.mark.parametrize("action", ["trigger", "finish"])
async def test_the_answer_comes_in_time_whatever_the_application_does(db_url: str, shop: Shop, action: str):
    """SP-1, SP-15: the client waits for 4 s; an application that hangs is given up before."""
    made = await shop.triggered("staging")
    shop.app.hangs(30)
    body: dict[str, Any] = {"trigger": {"env": "prod"}, "finish": {"deployment_id": str(made), "result": "success"}}
    async with serving(db_url, gateway={"seqpulse": settings_of(shop.app)}) as gateway:  # which remembers nothing
        began = time.monotonic()
        status, said = await Shop(gateway, shop.app).ask("POST", f"/deployments/{action}", body[action])
        assert time.monotonic() - began < 3
    assert (status, said.get("status")) == ((422, None) if action == "trigger" else (200, "accepted"))


async def test_a_database_that_hangs_is_given_up_in_time(shop: Shop, conn: Connection):
    """SP-1: 503, and sending it again does no harm."""
    made = await shop.triggered()
    async with conn.transaction():
        await conn.execute("SELECT FROM accs.seqpulse_deployments WHERE id = $1 FOR UPDATE", made)
        began = time.monotonic()
        body = {"deployment_id": str(made), "result": "success"}
        status, said = await shop.ask("POST", "/deployments/finish", body)
        assert time.monotonic() - began < 3.5
        assert status == 503
        assert "send it again" in said["hint"]
    assert (await shop.ask("POST", "/deployments/finish", body))[1]["status"] in ("accepted", "ignored")
    assert len(await jobs_of(conn, made)) == 7


async def test_nothing_is_signed_or_looked_at_without_a_secret(db_url: str, conn: Connection):
    """SP-15: only where HMAC is on."""
    with application() as plain:
        project = {"endpoint": plain.metrics_url, "allow_private": True}
        async with serving(db_url, gateway={"seqpulse": {"projects": {"shop": project}}}) as gateway:
            await Shop(gateway, plain).triggered()
        assert plain.asked == []


@pytest.mark.parametrize(
    ("project", "said"),
    [
        ({"endpoint": "http://shop.example/m"}, "without TLS"),
        ({"endpoint": "https://shop.example:99999/"}, "can't be called"),
        ({"endpoint": "https://ada:secret@shop.example/"}, "endpoint"),
        ({"endpoint": "shop"}, "endpoint"),
        ({}, "endpoint"),
        ({"endpoint": "from_trigger", "hmac_secret": SECRET, "hmac_secret_file": "/x"}, "one of them at most"),
        ({"endpoint": "from_trigger", "hmac_secret": "short"}, "hmac_secret"),
        ({"endpoint": "from_trigger", "envs": []}, "envs"),
        ({"endpoint": "from_trigger", "window_minutes": 0}, "window_minutes"),
    ],
)
def test_a_project_that_can_not_work_is_refused_with_the_settings(project: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        Settings.model_validate({"gateway": {"seqpulse": {"projects": {"shop": project}}}})
