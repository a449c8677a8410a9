"""What a token reaches that is limited to workflows, and what a share link shows."""

from datetime import timedelta
from uuid import UUID

import pytest

from accsd.db.access import create_share
from accsd.gateway.access import all_routes
from accsd.gateway.app import make_routes
from accsd.gateway.reach import Reach, reach_of
from tests.gateway.test_access import filled
from tests.support.cluster import Connection
from tests.support.factory import fail, node, started, step, submit_to, workflow
from tests.support.gateway import Gateway


class Two:
    """A job of a workflow that the token reaches, one of a workflow that it does not, and the token."""

    def __init__(self, gateway: Gateway, token: str, own: UUID, other: UUID) -> None:
        self.gateway, self.token, self.own, self.other = gateway, token, own, other


@pytest.fixture
async def two(gateway: Gateway, conn: Connection) -> Two:
    await node(conn)
    jobs: list[UUID] = []
    for name in ("media-cut", "payroll"):
        jobs.append(await submit_to(conn, await workflow(conn, step("a", max_attempts=1), name=name)))
        await fail(conn, *await started(conn), message="broken")
        await conn.execute(
            "INSERT INTO task_artifacts (job_id, kind, bucket, key) VALUES ($1, 'output', 'b', $2)", jobs[-1], name
        )
    for name, target in (("cuts", "media-cut"), ("salaries", "payroll")):
        body = {"name": name, "workflow": target, "every": "1h"}
        assert (await gateway.post("/schedules", body, scope="operate")).status_code == 201
    token = await gateway.token("operate", actor="studio", limits={"workflows": ["media-*"]})
    return Two(gateway, token, jobs[0], jobs[1])


async def test_lists_show_what_a_limited_token_reaches(two: Two):
    for path in (
        "/jobs",
        "/dead-letters",
        "/dead-letters/groups",
        "/schedules",
        "/workflows",
        "/workflows?all_versions=1",
    ):
        answer = await two.gateway.get(path, token=two.token)
        assert answer.status_code == 200, path
        assert "payroll" not in answer.text, path
        assert str(two.other) not in answer.text, path
        assert len(answer.json()["items"]) == 1, path
    found = await two.gateway.get(f"/search?q={two.other}", token=two.token)
    assert found.json()["groups"] == []


async def test_what_a_path_names_beyond_the_limits_is_not_there(two: Two, conn: Connection):
    """Every route that names a job, task, artifact, schedule or workflow: read, changed or watched."""
    tasks = {
        job: await conn.fetchval("SELECT id FROM job_tasks WHERE job_id = $1", job) for job in (two.own, two.other)
    }
    files = {j: await conn.fetchval("SELECT id FROM task_artifacts WHERE job_id = $1", j) for j in (two.own, two.other)}
    asked = 0
    for route in all_routes(make_routes()):
        extra, path = route.openapi_extra, str(route.path)  # type: ignore[attr-defined]
        reach = reach_of(path, Reach(extra["x-reach"]) if "x-reach" in extra else None)  # type: ignore[index]
        if extra["x-scope"] in ("none", "admin") or reach in (Reach.FREE, Reach.NARROWED):  # type: ignore[index]
            continue
        url = path.replace("{task_id}", str(tasks[two.other])).replace("{artifact_id}", str(files[two.other]))
        named = {Reach.WORKFLOW: "payroll", Reach.SCHEDULE: "salaries"}.get(reach, "nothing")
        url = filled(url.replace("{name}", named), two.other)
        for method in route.methods:  # type: ignore[attr-defined]
            headers = {"Authorization": f"Bearer {two.token}"}
            answer = await two.gateway.client.request(method, url, headers=headers, json={})
            wanted = (403, "scope_missing") if reach is Reach.CLOSED else (404, "not_found")
            assert (answer.status_code, answer.json()["code"]) == wanted, f"{method} {url}: {answer.text}"
            asked += 1
    assert asked > 50
    own = [
        f"/jobs/{two.own}",
        f"/tasks/{tasks[two.own]}",
        f"/artifacts/{files[two.own]}",
        "/schedules/cuts",
        "/workflows/media-cut",
    ]
    for path in own:
        assert (await two.gateway.get(path, token=two.token)).status_code == 200, path


async def test_what_a_body_or_a_query_names_beyond_the_limits_is_not_there(two: Two, conn: Connection):
    letter = await conn.fetchval("SELECT id FROM dead_letters WHERE job_id = $1", two.other)
    task = await conn.fetchval("SELECT id FROM job_tasks WHERE job_id = $1", two.other)
    for path, body in (
        ("/why", {"ids": [str(two.other)]}),
        ("/why", {"ids": [str(two.other)[-8:]]}),
        ("/dead-letters/redrive", {"ids": [letter]}),
        ("/dead-letters/dismiss", {"ids": [letter]}),
        ("/backfills", {"schedule": "salaries", "from": "2026-01-01T00:00:00Z"}),
        ("/operations", {"action": "retry", "target": {"ids": [str(two.other)]}}),
    ):
        assert (await two.gateway.post(path, body, token=two.token)).status_code == 404, path
    assert (await two.gateway.get(f"/jobs/{two.own}/compare?with={two.other}", token=two.token)).status_code == 404
    for topic, status in ((f"job:{two.other}", 404), (f"log:{task}:1", 404), ("jobs", 403), ("overview", 403)):
        answer = await two.gateway.get(f"/stream?topics={topic}", token=two.token)
        assert answer.status_code == status, topic
    assert await conn.fetchval(
        "SELECT dismissed_at IS NULL AND redriven_at IS NULL FROM dead_letters WHERE id = $1", letter
    )


async def test_a_limited_admin_can_not_make_a_token_without_limits(gateway: Gateway):
    token = await gateway.token("admin", actor="narrow", limits={"events": ["shop.*"]})
    refused = await gateway.post("/tokens", {"name": "wide", "scopes": ["admin"]}, token=token)
    assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing")


async def test_services_tools_and_events_beyond_the_limits_are_left_alone(gateway: Gateway, conn: Connection):
    await workflow(conn, step("a", service="render"), name="w")
    limits = {"services": ["cut"], "tools": ["cut"], "events": ["shop.*"]}
    token = await gateway.token("operate", actor="narrow", limits=limits)
    assert (await gateway.post("/services/render/pause", token=token)).status_code == 403
    assert (await gateway.post("/tools/render/retire", token=token)).status_code == 403
    await gateway.post("/events", {"topic": "home.door"}, scope="submit")
    await gateway.post("/events", {"topic": "shop.order"}, scope="submit")
    shown = (await gateway.get("/events", token=token)).json()["items"]
    assert [event["topic"] for event in shown] == ["shop.order"]


async def test_a_share_shows_artifacts_only_if_it_says_so_and_only_those_of_its_job(two: Two, conn: Connection):
    verbs = two.gateway.context.verbs
    plain = (await create_share(verbs, two.own, lives=timedelta(days=1), by="ada")).token
    wide = (await create_share(verbs, two.own, lives=timedelta(days=1), artifacts=True, by="ada")).token
    own = await conn.fetchval("SELECT id FROM task_artifacts WHERE job_id = $1", two.own)
    other = await conn.fetchval("SELECT id FROM task_artifacts WHERE job_id = $1", two.other)
    for path in (f"/jobs/{two.own}/artifacts", f"/artifacts/{own}", f"/artifacts/{own}/content"):
        assert (await two.gateway.get(path, token=plain)).status_code == 403, path
        assert (await two.gateway.get(path, token=wide)).status_code in (200, 409), path
    for path in (f"/artifacts/{other}", f"/artifacts/{other}/content", f"/jobs/{two.other}/artifacts", "/artifacts/x"):
        assert (await two.gateway.get(path, token=wide)).status_code == 403, path


async def test_a_share_opens_nothing_of_another_job_in_any_spelling(two: Two):
    share = await two.gateway.share(two.own)
    other = str(two.other)
    for given in (
        other,
        other[:8],
        other[-8:],
        f"{{{other}}}",
        f"urn:uuid:{other}",
        f"{two.own}%2F..%2F{other}",
        "%2e%2e",
    ):
        assert (await two.gateway.get(f"/jobs/{two.own}/why", token=share)).status_code == 403, "it names other jobs"
        for route in ("", "/events", "/tasks", "/stream", "/artifacts"):
            answer = await two.gateway.get(f"/jobs/{given}{route}", token=share)
            assert answer.status_code in (403, 404), f"{given}{route}"
