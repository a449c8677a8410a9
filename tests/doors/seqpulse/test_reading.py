"""What is read of deployments (2.7, 2.9), the verdict of a bad one, the health (S4), and that no row has the secret."""

import asyncio
from datetime import datetime
from pathlib import Path
from uuid import UUID, uuid4

from tests.support.applications import WELL, Application
from tests.support.checker import check
from tests.support.cluster import Connection, TestServer
from tests.support.deployments import SECRET, Shop, judged, samples, settings_of
from tests.support.eventually import eventually
from tests.support.factory import dump, node, pass_time
from tests.support.gateway import serving
from tests.support.library import url_as
from tests.support.roles import roles as roles

HEALTH = {"poller_running": bool, "pending": int, "running": int, "failed": int, "stuck_running": int}


async def test_a_deployment_that_made_it_worse(busy_shop: Shop, conn: Connection):
    """2.6, 2.7, 2.9, SP-25, S5: the verdict in one call that waits for it, the samples, the hints; and in no row or
    answer the secret (2.8)."""
    shop = busy_shop
    shop.app.metrics = WELL | {"requests_per_sec": 2.0}
    made = await shop.triggered()
    await eventually(lambda: samples(conn, made, "pre", 1), within=15)
    shop.app.metrics = WELL | {"requests_per_sec": 0.1, "error_rate": 0.2, "latency_p95": 80}
    await shop.finished(made, "failed")
    await eventually(lambda: samples(conn, made, "post", 1), within=15)
    assert (await shop.ask("GET", f"/deployments/{made}"))[1]["verdict"] is None, "none is invented"
    shop.app.metrics = WELL | {"error_rate": 0.2, "latency_p95": 80}
    waiting = asyncio.ensure_future(shop.gateway.client.get(f"/deployments/{made}", headers=await _patient(shop)))
    await shop.sampled(conn, made)
    answer = await waiting
    assert answer.headers["preference-applied"] == "wait=60"
    found = answer.json()
    assert (found["state"], found["pipeline_result"], found["analysis"]["status"]) == (
        "analyzed",
        "failed",
        "completed",
    )
    assert found["verdict"]["verdict"] == "rollback_recommended"
    assert found["verdict"]["confidence"] == 0.85
    assert any(line.startswith("error_rate: 100%") for line in found["verdict"]["details"])
    assert not any("requests_per_sec" in line for line in found["verdict"]["details"]), "the sample of the warm-up"

    _, taken = await shop.ask("GET", f"/deployments/{made}/metrics")
    assert [(each["phase"], each["sequence_index"], each["warm_up"]) for each in taken] == [
        ("pre", None, False),
        ("post", 0, True),
        *(("post", index, False) for index in range(1, 5)),
    ]
    assert (taken[0]["requests_per_sec"], taken[-1]["error_rate"]) == (2.0, 0.2)
    assert [each["collected_at"] for each in taken] == sorted(each["collected_at"] for each in taken)

    _, hints = await shop.ask("GET", f"/sdh?deployment_id={made}")
    assert [(each["metric"], each["severity"]) for each in hints] == [
        ("error_rate", "critical"),
        ("latency_p95", "info"),
    ]
    assert {"observed_value", "threshold", "secured_threshold", "exceed_ratio", "tolerance", "confidence"} <= hints[
        0
    ].keys()
    assert hints[0]["suggested_actions"]
    assert hints[0]["deployment_id"] == str(made)
    assert [each["severity"] for each in (await shop.ask("GET", "/sdh?severity=info"))[1]] == ["info"]
    assert len((await shop.ask("GET", "/sdh?limit=1"))[1]) == 1
    said = [await shop.ask("GET", path) for path in ("/deployments", f"/deployments/{made}/metrics", "/sdh")]
    assert SECRET not in f"{said}{await dump(conn)}"


async def _patient(shop: Shop) -> dict[str, str]:
    return {"X-API-Key": await shop.key("read"), "Prefer": "wait=60"}


async def test_deployments_are_listed_and_found(shop: Shop):
    """2.7."""
    first = await shop.triggered(branch="main")
    await shop.finished(first)
    second = await shop.triggered()
    staging = await shop.triggered("staging")
    _, listed = await shop.ask("GET", "/deployments")
    assert [each["id"] for each in listed] == [str(staging), str(second), str(first)]
    _, found = await shop.ask("GET", f"/deployments/{first}")
    assert found == listed[-1]
    assert (await shop.ask("GET", "/deployments/dpl_1"))[1] == found
    began, ended = (datetime.fromisoformat(found.pop(name)) for name in ("started_at", "finished_at"))
    assert ended >= began
    assert found.pop("duration_ms") >= 0
    assert found == {
        "id": str(first),
        "public_id": "dpl_1",
        "internal_id": str(first),
        "deployment_number": 1,
        "project": "shop",
        "env": "prod",
        "branch": "main",
        "metrics_endpoint": shop.app.metrics_url,
        "pipeline_result": "success",
        "state": "finished",
        "verdict": None,
        "analysis": {"status": "pending", "last_error": None},
    }
    assert [each["id"] for each in (await shop.ask("GET", "/deployments?env=staging"))[1]] == [str(staging)]
    assert [each["deployment_number"] for each in (await shop.ask("GET", "/deployments?below=3&limit=1"))[1]] == [2]
    for missing in (uuid4(), "dpl_77", "dpl_0"):
        assert (await shop.ask("GET", f"/deployments/{missing}"))[0] == 404, missing
    for wrong in (
        "/deployments/x",
        "/deployments/dpl_",
        "/deployments/dpl_-1",
        "/deployments?limit=201",
        "/sdh?limit=0",
    ):
        assert (await shop.ask("GET", wrong))[0] == 422, wrong
    assert (await shop.ask("GET", "/sdh?severity=loud"))[0] == 422
    assert (await shop.ask("GET", f"/deployments/{first}", Prefer="wait=soon"))[0] == 422
    assert (await shop.ask("GET", f"/deployments/{first}/metrics")) == (200, [])


async def test_waiting_ends_with_its_time_and_a_version_is_not_sent_twice(shop: Shop):
    """2.9: a wait that is over is answered with what is there."""
    made = await shop.triggered()
    client, headers = shop.gateway.client, {"X-API-Key": await shop.key()}
    answer = await client.get(f"/deployments/{made}", headers=headers | {"Prefer": "wait=1"})
    assert (answer.status_code, answer.json()["state"]) == (200, "running")
    again = await client.get(f"/deployments/{made}", headers=headers | {"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304


async def test_the_health_has_the_members_that_monitors_read(shop: Shop, conn: Connection):
    """SP-33, S4: always 200, without a key; each count is one of what it says."""
    await shop.triggered()
    answer = await shop.gateway.client.get("/health/scheduler")
    assert answer.status_code == 200
    said = answer.json()
    assert {name: type(said[name]) for name in HEALTH} == HEALTH
    assert [said[name] for name in HEALTH] == [False, 1, 0, 0, 0]
    assert said["status"] in ("ok", "degraded")
    await conn.execute("SELECT accs.note_daemon('control', '{builder}')")
    await node(conn)
    claim = "SELECT FROM accs.claim_tasks('seqpulse-collect', 'owner-1', 'n1', 1, '60 s', true)"
    await conn.execute(claim)
    said = (await shop.gateway.client.get("/health/scheduler")).json()
    assert [said[name] for name in HEALTH] == [True, 0, 1, 0, 0]
    await pass_time(conn, 61)
    said = (await shop.gateway.client.get("/health/scheduler")).json()
    assert said["stuck_running"] == 1
    assert (await shop.gateway.client.get("/health")).status_code == 200


async def test_accsd_shows_each_sample_with_its_attempts(busy_shop: Shop, conn: Connection):
    """2.9: the analysis is the job that has the deployment's id; its page says when it runs, and what it found."""
    shop = busy_shop
    made = await shop.triggered("staging")
    await shop.finished(made)
    job = (await shop.gateway.get(f"/jobs/{made}", scope="read")).json()
    assert (job["workflow"], job["status"], job["created_by"]) == ("seqpulse.analysis", "queued", "ci-of-shop")
    await eventually(lambda: samples(conn, made, "post", 1), within=15)
    found = (await shop.gateway.get("/jobs?q=workflow:seqpulse.post_collect status:done", scope="read")).json()["items"]
    assert [UUID(each["options"]["deployment_id"]) for each in found] == [made]
    nodes = await conn.fetch("SELECT name, labels FROM nodes ORDER BY name")
    assert [row["labels"] for row in nodes] == [{"accs.kind": "gateway"}] * 2
    assert [row["name"].partition(".")[2] for row in nodes] == ["seqpulse-analyse", "seqpulse-collect"]


async def test_a_verdict_is_given_once(busy_shop: Shop, conn: Connection):
    """2.6, SP-12: finishing again, or late, changes nothing."""
    made = await busy_shop.deployed(conn)
    before = await conn.fetchrow("SELECT * FROM deployment_verdicts")
    body = {"deployment_id": str(made), "result": "failed"}
    assert (await busy_shop.ask("POST", "/deployments/finish", body))[1]["status"] == "ignored"
    await pass_time(conn, 3600)
    await busy_shop.build(conn)
    assert await judged(conn, made) == "ok"
    assert await conn.fetchrow("SELECT * FROM deployment_verdicts") == before


async def test_the_login_of_a_gateway_with_doors_is_enough(
    roles: None, server: TestServer, db_url: str, tmp_path: Path, app: Application, conn: Connection
):
    """G-11: accs_gateway announces, claims, samples and judges; it needs nothing more."""
    url = url_as(server, db_url, "accs_gateway")
    settings = {"seqpulse": settings_of(app)}
    async with serving(url, works=True, gateway=settings, node={"state_dir": tmp_path / "state"}) as gateway:
        made = await Shop(gateway, app).deployed(conn)
        assert (await Shop(gateway, app).ask("GET", f"/deployments/{made}"))[1]["verdict"]["verdict"] == "ok"
    assert await conn.fetchval("SELECT array_agg(DISTINCT login) FROM nodes") == ["accs_gateway"]
    await check(conn)
