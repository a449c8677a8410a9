"""Who gets in: every route of the door with every credential. A route without a line here fails."""

from typing import Any
from uuid import uuid4

import orjson
import pytest

from accsd.gateway.access import all_routes
from accsd.gateway.seqpulse.app import make_routes, openapi
from tests.support.cluster import ROOT, Connection
from tests.support.deployments import Shop, settings_of
from tests.support.factory import submit
from tests.support.gateway import serving

TRIGGER, FINISH = ("POST", "/deployments/trigger"), ("POST", "/deployments/finish")
EXPECTED = {
    TRIGGER: "submit",
    FINISH: "submit",
    ("GET", "/deployments"): "read",
    ("GET", "/deployments/{deployment_id}"): "read",
    ("GET", "/deployments/{deployment_id}/metrics"): "read",
    ("GET", "/sdh"): "read",
}
MAY = {"read": {"read"}, "submit": {"read", "submit"}, "operate": {"read", "submit"}, "admin": {"read", "submit"}}


def test_every_route_has_its_expectation():
    """SP-6, G-5: deny by default."""
    routes = {
        (method, route.path): route.openapi_extra["x-scope"]  # type: ignore[attr-defined]
        for route in all_routes(make_routes())
        for method in route.methods  # type: ignore[attr-defined]
    }
    assert routes == EXPECTED


async def test_each_credential_reaches_what_it_may_and_nothing_else(shop: Shop, conn: Connection):
    """SP-6, G-4, G-5: none, wrong, expired, revoked, of no project, of one that is not there, of another door, a share
    link, other workflows, each scope."""
    deployment = await shop.triggered()
    job = await submit(conn)
    outside: dict[str, tuple[int, str | None]] = {
        "none": (401, None),
        "wrong": (401, "accs_aaaaaaaa_" + "A" * 43),
        "not a token": (401, "sp_live_1234"),
        "expired": (401, await shop.gateway.expired()),
        "revoked": (401, await shop.gateway.revoked()),
        "no project": (403, await shop.key("submit", project=None)),
        "unknown project": (403, await shop.key("submit", project="moon")),
        "another door": (403, await shop.key("submit", door="joblib")),
        "other workflows": (403, await shop.key("submit", workflows=["media-*"])),
        "share": (403, await shop.gateway.share(job)),
        "agent": (403, await shop.key("agent")),
    }
    inside = {scope: await shop.key(scope) for scope in MAY}
    for (method, path), scope in EXPECTED.items():
        where = path.replace("{deployment_id}", str(deployment))
        for name, (status, key) in outside.items():
            answer = await shop.gateway.client.request(
                method, where, json=_body(path), headers={} if key is None else {"X-API-Key": key}
            )
            assert answer.status_code == status, f"{method} {path} as {name}: {answer.text}"
            assert answer.json()["detail"], name
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers.get("www-authenticate", "").startswith("Bearer" if status == 401 else "")
        for name, key in inside.items():
            status, said = await shop.ask(method, where, _body(path), key=key)
            assert (status == 403) == (scope not in MAY[name]), f"{method} {path} as {name}: {said}"
            assert status in (200, 403), said


def _body(path: str) -> Any:
    if path == "/deployments/trigger":
        return {"env": "prod"}
    return {"deployment_id": str(uuid4()), "result": "success"} if path == "/deployments/finish" else None


async def test_the_key_comes_in_its_own_header_only(shop: Shop):
    """G-4: X-API-Key; neither a bearer token nor a browser's cookie is one."""
    key = await shop.key()
    assert (await shop.ask("GET", "/deployments", key="", Authorization=f"Bearer {key}"))[0] == 401
    cookie = (await shop.gateway.post("/session", {"token": await shop.gateway.token("admin")})).headers["set-cookie"]
    shop.gateway.client.cookies.clear()
    assert (await shop.ask("GET", "/deployments", key="", Cookie=cookie.partition(";")[0]))[0] == 401
    assert (await shop.ask("GET", "/deployments", key=key))[0] == 200


async def test_a_project_sees_and_ends_its_own_deployments_only(shop: Shop):
    """SP-12, SP-6: another project's is not found, by its id or by a number that both have."""
    mine = await shop.triggered()
    theirs = await shop.key(project="other")
    status, made = await shop.ask("POST", "/deployments/trigger", {"env": "prod"}, key=theirs)
    assert status == 200
    assert made["deployment_id"] != str(mine)
    for path in (
        f"/deployments/{mine}",
        f"/deployments/{mine}/metrics",
        f"/sdh?deployment_id={mine}",
        "/deployments/dpl_2",
    ):
        assert (await shop.ask("GET", path, key=theirs))[0] == 404, path
    body = {"deployment_id": str(mine), "result": "success"}
    assert (await shop.ask("POST", "/deployments/finish", body, key=theirs))[1]["status"] == "not_found"
    assert (await shop.ask("GET", f"/deployments/{mine}"))[1]["state"] == "running"
    assert [each["id"] for each in (await shop.ask("GET", "/deployments", key=theirs))[1]] == [made["deployment_id"]]


async def test_a_key_of_this_door_opens_no_other_way_in(shop: Shop):
    key = await shop.key(door="seqpulse")
    assert (await shop.ask("GET", "/deployments", key=key))[0] == 200
    assert (await shop.gateway.get("/jobs", token=key)).status_code == 403


async def test_too_many_requests_are_told_when_to_come_back(db_url: str, shop: Shop):
    """SP-6: so many a minute for each key, with what is left; another key is not concerned."""
    async with serving(db_url, gateway={"seqpulse": settings_of(shop.app) | {"per_minute": 3}}) as gateway:
        few = Shop(gateway, shop.app)
        key = await few.key()
        left: list[str] = []
        for _ in range(3):
            answer = await gateway.client.get("/deployments", headers={"X-API-Key": key})
            left.append(answer.headers["x-ratelimit-remaining"])
        assert left == ["2", "1", "0"]
        refused = await gateway.client.get("/deployments", headers={"X-API-Key": key})
        assert refused.status_code == 429
        assert refused.json()["detail"] == "more than 3 requests a minute"
        assert 1 <= int(refused.headers["retry-after"]) <= 61
        assert (refused.headers["x-ratelimit-limit"], refused.headers["x-ratelimit-remaining"]) == ("3", "0")
        assert int(refused.headers["x-ratelimit-reset"]) > 1_700_000_000
        assert (await few.ask("GET", "/deployments", key=await few.key("read")))[0] == 200


@pytest.mark.parametrize("path", ["/deployments/", "/deployments/trigger/", "/sdh/", "/deployments/x/y", "/sdhx"])
async def test_nothing_is_redirected(shop: Shop, path: str):
    """G-2: urllib would make a GET of a redirected POST."""
    for method in ("GET", "POST"):
        status, said = await shop.ask(method, path, {})
        assert status in (404, 405, 422), said
        assert said["detail"]


async def test_what_the_entrance_refuses_has_a_detail_too(shop: Shop):
    """SP-6, G-10."""
    status, said = await shop.ask("POST", "/deployments/trigger", {"env": "x" * 2**20})
    assert (status, said["code"]) == (413, "too_large")
    assert "at most" in said["detail"]
    assert (await shop.ask("GET", "/deployments", Host="evil.example"))[0] == 421


def test_the_committed_description_is_that_of_the_routes():
    """`make reference` writes it."""
    committed = ROOT / "docs/reference/openapi-seqpulse.json"
    assert orjson.loads(committed.read_bytes()) == orjson.loads(orjson.dumps(openapi()))
    operations = [each for methods in openapi()["paths"].values() for each in methods.values()]
    assert {each["operationId"] for each in operations} >= {"deployments.trigger", "deployments.finish", "sdh.list"}
    for each in operations:
        assert each["summary"]
        assert each["security"] == [{"key": []}]
        assert {"200", "4XX", "5XX"} <= each["responses"].keys()
