"""Deployments of SeqPulse's clients: one at a time in each environment, ended with all that follows or not at all."""

from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from accsd.db.answers import Verdict
from accsd.db.deployments import (
    finish_deployment,
    known_deployment,
    read_deployment,
    read_deployments,
    sdh_hints,
    stored_samples,
    trigger_deployment,
)
from accsd.db.workflows import apply_workflows
from accsd.errors import InvalidValue, NotFound
from accsd.gateway.seqpulse.workflows import WORKFLOWS
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import Row, claim, fail, finish, node, pass_time, started
from tests.support.library import opened
from tests.support.race import Race
from tests.support.roles import As, refused
from tests.support.roles import connect_as as connect_as
from tests.support.roles import roles as roles

ENDPOINT = "https://shop.example/seqpulse-metrics"
COLLECT, ANALYSE = "seqpulse-collect", "seqpulse-analyse"
SAMPLE: dict[str, Any] = {
    "requests_per_sec": 4.5,
    "latency_p95": 100,
    "error_rate": 0,
    "cpu_usage": 0.25,
    "memory_usage": 0.5,
    "collected_at": "2026-11-18T12:00:00+00:00",
    "warm_up": True,
    "phase": "post",
}


@pytest.fixture(autouse=True)
async def workflows(db_url: str) -> None:
    async with opened(db_url) as db:
        await apply_workflows(db, WORKFLOWS)


async def begin(conn: Connection, env: str = "prod", *, project: str = "shop", key: str | None = None) -> Row:
    row = await conn.fetchrow(
        "SELECT * FROM accs.trigger_deployment($1, $2, $3, 5, 5, $4, 'main', 'ci')", project, env, ENDPOINT, key
    )
    assert row is not None
    return row


async def end(conn: Connection, deployment: UUID, result: str = "success", *, project: str = "shop") -> Row:
    row = await conn.fetchrow("SELECT * FROM accs.finish_deployment($1, $2, $3)", project, deployment, result)
    assert row is not None
    return row


async def scheduled(conn: Connection, deployment: UUID) -> list[tuple[Any, ...]]:
    rows = await conn.fetch(
        "SELECT job_type, phase, sequence_index, status, scheduled_at - d.finished_at FROM scheduled_jobs s"
        " JOIN accs.seqpulse_deployments d ON d.id = deployment_id WHERE deployment_id = $1"
        " ORDER BY scheduled_at, job_type DESC",
        deployment,
    )
    return [(*row[:4], None if row[4] is None else row[4].total_seconds()) for row in rows]


async def test_one_deployment_runs_in_an_environment(conn: Connection):
    """SP-10, SP-11: a known key first, whatever became of it; then the one that runs; numbers count in the project."""
    first = await begin(conn, key="gha-1-1")
    assert first["answer"] == "accepted"
    assert tuple(await begin(conn, "staging", key="gha-1-1")) == (first["deployment_id"], "repeated")
    assert tuple(await begin(conn, key="gha-2-1")) == (first["deployment_id"], "repeated")
    staging = await begin(conn, "staging", key="gha-3-1")
    elsewhere = await begin(conn, project="other", key="gha-1-1")
    assert (staging["answer"], elsewhere["answer"]) == ("accepted", "accepted")
    assert (await end(conn, first["deployment_id"]))["answer"] == "accepted"
    assert tuple(await begin(conn, key="gha-1-1")) == (first["deployment_id"], "repeated")
    again = await begin(conn, key="gha-2-1")
    assert again["answer"] == "accepted"
    numbers = await conn.fetch("SELECT project, number, env FROM accs.seqpulse_deployments ORDER BY project, number")
    assert [tuple(row) for row in numbers] == [
        ("other", 1, "prod"),
        ("shop", 1, "prod"),
        ("shop", 2, "staging"),
        ("shop", 3, "prod"),
    ]
    await check(conn)


async def test_the_rules_hold_without_the_verbs_too(conn: Connection):
    """Chapter 4: they are rules of the table."""
    await begin(conn, key="k")
    insert = (
        "INSERT INTO accs.seqpulse_deployments (number, project, env, idempotency_key, window_minutes, delay_minutes,"
        " state, finished_at, pipeline_result) VALUES ($1, 'shop', $2, $3, 5, 5, $4, $5, $6)"
    )
    for values in (
        (2, "prod", "l", "running", None, None),  # a second one that runs
        (1, "moon", "l", "running", None, None),  # the number
        (2, "moon", "k", "running", None, None),  # the key
    ):
        with pytest.raises(asyncpg.UniqueViolationError):
            await conn.execute(insert, *values)
    with pytest.raises(asyncpg.CheckViolationError):
        await conn.execute(insert, 2, "moon", "l", "finished", None, None)


@pytest.mark.parametrize("keys", [("k", "k"), ("k", "l"), (None, None)])
async def test_concurrent_triggers_make_one_deployment(
    conn: Connection, race: Race, keys: tuple[str | None, str | None]
):
    """SP-11: each answers created or existing, with the same id."""
    first, second = await race.second_waits(
        lambda session: begin(session, key=keys[0]), lambda session: begin(session, key=keys[1])
    )
    assert (first["answer"], second["answer"]) == ("accepted", "repeated")
    assert first["deployment_id"] == second["deployment_id"]
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 1
    await check(conn)


async def test_finishing_schedules_everything_at_once(conn: Connection):
    """SP-12, SP-13, SP-30: a sample a minute, the analysis after the delay; due now is instantiated now."""
    deployment = (await begin(conn))["deployment_id"]
    assert await scheduled(conn, deployment) == [("pre_collect", "pre", None, "pending", None)]
    await pass_time(conn, 90)
    assert tuple(await end(conn, deployment, "failed")) == ("accepted", None)
    assert (await scheduled(conn, deployment))[1:] == [
        *(("post_collect", "post", index, "pending", index * 60) for index in range(5)),
        ("analysis", None, None, "pending", 300),
    ]
    row = await conn.fetchrow(
        "SELECT state, pipeline_result, finished_at - started_at AS took, duration_ms FROM accs.seqpulse_deployments"
    )
    assert row is not None
    assert (row["state"], row["pipeline_result"]) == ("finished", "failed")
    assert row["duration_ms"] == pytest.approx(row["took"].total_seconds() * 1000, abs=1)
    assert row["duration_ms"] >= 90_000
    options = await conn.fetch("SELECT options, created_by FROM jobs ORDER BY scheduled_at, order_seq")
    assert options[0]["options"] == {
        "deployment_id": str(deployment),
        "project": "shop",
        "phase": "pre",
        "sequence_index": None,
    }
    assert await conn.fetchval("SELECT status FROM jobs WHERE id = $1", deployment) == "queued", "the analysis"
    await check(conn)


async def test_deployments_leave_with_their_analyses_and_no_number_is_given_twice(conn: Connection):
    """Retention of jobs: the newest of a project stays, and goes when there is another; one that runs stays, too."""
    lasting = (await begin(conn, "staging"))["deployment_id"]
    for _ in range(2):
        await end(conn, (await begin(conn))["deployment_id"])
    await end(conn, (await begin(conn, project="other"))["deployment_id"])
    await conn.execute("SELECT accs.cancel_jobs(ARRAY(SELECT id FROM jobs))")

    async def kept() -> list[tuple[str, int]]:
        await pass_time(conn, 3600)
        await conn.fetch("SELECT * FROM accs.delete_finished_jobs('30 min')")
        rows = await conn.fetch("SELECT project, number FROM accs.seqpulse_deployments ORDER BY project, number")
        return [tuple(row) for row in rows]

    assert await kept() == [("other", 1), ("shop", 1), ("shop", 3)]
    again = (await begin(conn))["deployment_id"]
    assert await conn.fetchval("SELECT number FROM accs.seqpulse_deployments WHERE id = $1", again) == 4
    await end(conn, lasting)
    await conn.execute("SELECT accs.cancel_jobs(ARRAY(SELECT id FROM jobs))")
    assert await kept() == [("other", 1), ("shop", 4)]
    await check(conn)


async def test_finishing_again_changes_nothing(conn: Connection):
    """SP-12: ignored; another project's, or one that nobody knows: not found."""
    deployment = (await begin(conn))["deployment_id"]
    assert tuple(await end(conn, deployment, project="other")) == ("refused", "not_found")
    assert tuple(await end(conn, uuid4())) == ("refused", "not_found")
    assert await conn.fetchval("SELECT state FROM accs.seqpulse_deployments") == "running"
    assert (await end(conn, deployment))["answer"] == "accepted"
    before = await conn.fetchrow("SELECT * FROM accs.seqpulse_deployments")
    assert tuple(await end(conn, deployment, "failed")) == ("repeated", None)
    assert await conn.fetchrow("SELECT * FROM accs.seqpulse_deployments") == before
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 7


async def test_two_who_finish_at_once_schedule_once(conn: Connection, race: Race):
    """SP-12."""
    deployment = (await begin(conn))["deployment_id"]
    first, second = await race.second_waits(
        lambda session: end(session, deployment), lambda session: end(session, deployment)
    )
    assert (first["answer"], second["answer"]) == ("accepted", "repeated")
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 7
    await check(conn)


async def test_a_finish_is_all_or_nothing(conn: Connection):
    """SP-12, G-3: if the analysis can't be scheduled, the deployment has not ended, and no sample is asked for."""
    deployment = (await begin(conn))["deployment_id"]
    await conn.execute("UPDATE workflows SET is_active = false WHERE name = 'seqpulse.analysis'")
    with pytest.raises(asyncpg.PostgresError, match=r'no active workflow "seqpulse\.analysis"') as caught:
        await end(conn, deployment)
    assert caught.value.sqlstate == "AC004"
    assert await conn.fetchval("SELECT state FROM accs.seqpulse_deployments") == "running"
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 1
    await conn.execute("UPDATE workflows SET is_active = true WHERE name = 'seqpulse.analysis'")
    assert (await end(conn, deployment))["answer"] == "accepted"


async def test_an_operator_s_own_version_of_a_workflow_goes_before_ours(db_url: str, conn: Connection):
    """It may tell somebody, or have other retries; a gateway that starts anew leaves it alone."""
    await conn.execute(
        "INSERT INTO workflows (name, version, steps, notify) SELECT name, 2, steps, '{job.done}' FROM workflows"
        " WHERE name = 'seqpulse.pre_collect'"
    )
    async with opened(db_url) as db:
        await apply_workflows(db, WORKFLOWS)
    await begin(conn)
    version = "SELECT version FROM workflows w JOIN jobs j ON j.workflow_id = w.id"
    assert await conn.fetchval(version) == 2
    assert await conn.fetchval("SELECT count(*) FROM workflows") == 4


async def test_without_an_address_only_the_analysis_is_scheduled(conn: Connection):
    """SP-11: the deployment is made all the same. The address may come with its end."""
    trigger = "SELECT deployment_id FROM accs.trigger_deployment('shop', $1)"
    bare = await conn.fetchval(trigger, "prod")
    assert await scheduled(conn, bare) == []
    await end(conn, bare)
    assert [row[0] for row in await scheduled(conn, bare)] == ["analysis"]
    late = await conn.fetchval(trigger, "staging")
    await conn.execute("SELECT accs.finish_deployment('shop', $1, 'success', $2)", late, ENDPOINT)
    assert [row[0] for row in await scheduled(conn, late)] == [*["post_collect"] * 5, "analysis"]


async def test_the_views_show_what_seqpulse_s_tables_show(conn: Connection):
    """SP-30; S2, S5: the statements of its documentation, chapter 7, as they are."""
    deployment = (await begin(conn))["deployment_id"]
    await node(conn)
    (pre,) = await started(conn, service=COLLECT)
    running = await conn.fetchrow("SELECT status, job_metadata FROM scheduled_jobs")
    assert tuple(running or ()) == (
        "running",
        {"project": "shop", "phase": "pre", "sequence_index": None, "metrics_endpoint": ENDPOINT},
    )
    await finish(conn, pre, results=[SAMPLE | {"phase": "pre"}])
    await end(conn, deployment)
    (post,) = await claim(conn, service=COLLECT)
    await fail(conn, post, message="the application answered 503")
    await pass_time(conn, 400)
    await conn.fetch("SELECT * FROM accs.instantiate_due_jobs()")
    (analysis,) = await started(conn, service=ANALYSE)
    hint = {
        "metric": "error_rate",
        "severity": "critical",
        "confidence": 0.9,
        "observed_value": None,
        "title": "Errors",
    }
    verdict = {
        "verdict": "warning",
        "confidence": 0.4,
        "summary": "s",
        "details": ["d"],
        "quality": 0.4,
        "hints": [hint],
    }
    await finish(conn, analysis, results=[verdict])

    jobs = await conn.fetch(
        "select job_type, status, scheduled_at, sequence_index from scheduled_jobs where deployment_id = $1"
        " order by scheduled_at",
        deployment,
    )
    assert [(row["job_type"], row["status"]) for row in jobs] == [
        ("pre_collect", "completed"),
        *[("post_collect", "pending")] * 5,
        ("analysis", "completed"),
    ]
    retried = await conn.fetchrow("SELECT retry_count, last_error FROM scheduled_jobs WHERE sequence_index = 0")
    assert tuple(retried or ()) == (1, "the application answered 503")
    counted = "select phase, count(*) from metric_samples where deployment_id = $1 group by phase"
    assert [tuple(row) for row in await conn.fetch(counted, deployment)] == [("pre", 1)]
    sample = await conn.fetchrow("SELECT * FROM metric_samples")
    assert sample is not None
    assert (sample["requests_per_sec"], sample["latency_p95"], sample["warm_up"]) == (4.5, 100.0, True)
    found = await conn.fetchrow("select * from deployment_verdicts where deployment_id = $1", deployment)
    assert found is not None
    assert (found["verdict"], found["confidence"], found["details"]) == ("warning", 0.4, ["d"])
    hints = await conn.fetch("select * from sdh_hints where deployment_id = $1", deployment)
    assert [(row["metric"], row["severity"], row["observed_value"]) for row in hints] == [
        ("error_rate", "critical", None)
    ]
    assert isinstance(hints[0]["id"], UUID)
    await check(conn)


async def test_a_sample_that_is_given_up_is_failed_with_three_retries(conn: Connection):
    """SP-31: after 30, 120 and 300 seconds; then it is a dead letter, which S4 counts as failed."""
    await begin(conn)
    await node(conn)
    pauses = []
    for _ in range(4):
        (task,) = await started(conn, service=COLLECT)
        await fail(conn, task, message="no answer")
        due = await conn.fetchval("SELECT next_attempt_at - accs.clock() FROM job_tasks WHERE status = 'queued'")
        if due is not None:
            pauses.append(round(due.total_seconds()))
            await pass_time(conn, due.total_seconds() - 1)
            assert await claim(conn, service=COLLECT) == []
            await pass_time(conn, 1)
    assert pauses == [30, 120, 300]
    row = await conn.fetchrow("SELECT status, retry_count, last_error FROM scheduled_jobs")
    assert tuple(row or ()) == ("failed", 3, "no answer")
    assert await conn.fetchval("SELECT failed FROM accs.scheduler_health()") == 1
    step = await conn.fetchrow("SELECT timeout_sec, max_attempts FROM job_tasks")
    assert tuple(step or ()) == (600.0, 4)
    await check(conn)


async def test_the_library_reads_what_was_found(db_url: str, conn: Connection):
    async with opened(db_url) as db:
        await conn.execute("UPDATE workflows SET is_active = false")
        with pytest.raises(NotFound, match="seqpulse"):
            await trigger_deployment(db, "shop", "prod", endpoint=ENDPOINT, window_minutes=2, delay_minutes=3)
        await conn.execute("UPDATE workflows SET is_active = true")
        made = await trigger_deployment(
            db, "shop", "prod", endpoint=ENDPOINT, window_minutes=2, delay_minutes=3, key="k"
        )
        assert made.verdict is Verdict.ACCEPTED
        for env, key in (("prod", None), ("moon", "k"), ("prod", "k")):
            known = await known_deployment(db, "shop", env, key)
            assert known is not None
            assert known.id == made.id
        assert await known_deployment(db, "shop", "moon", "l") is None
        assert await finish_deployment(db, "shop", made.id, "success") is Verdict.ACCEPTED
        samples = await stored_samples(db, made.id)
        assert [(each.phase, each.is_untried, each.values) for each in samples] == [
            ("pre", True, None),
            ("post", True, None),
            ("post", True, None),
        ]
        found = await read_deployment(db, "shop", 1)
        assert found == await read_deployment(db, "shop", made.id)
        assert found is not None
        assert (found.analysis, found.verdict, found.deployment.window_minutes) == ("pending", None, 2)
        assert await read_deployment(db, "other", made.id) is None
        assert [each.deployment.id for each in await read_deployments(db, "shop")] == [made.id]
        assert await read_deployments(db, "shop", below=1) == []
        assert await read_deployments(db, "shop", env="moon") == []
        assert await sdh_hints(db, "shop") == []
        with pytest.raises(InvalidValue):
            await trigger_deployment(db, "shop", "x" * 300, endpoint=None, window_minutes=2, delay_minutes=3)


async def test_only_a_gateway_with_a_door_announces(roles: None, connect_as: As, conn: Connection):
    """Least privilege: others read, a node does not even that."""
    gateway = await connect_as("accs_gateway")
    made = await trigger_deployment(gateway, "shop", "prod", endpoint=ENDPOINT, window_minutes=1, delay_minutes=1)
    assert await finish_deployment(gateway, "shop", made.id, "success") is Verdict.ACCEPTED
    for role in ("accs_scheduler", "accs_archive", "accs_api", "accs_reader", "accs_agent"):
        db = await connect_as(role)
        await refused(db, "SELECT accs.trigger_deployment('shop', 'prod')")
        await refused(db, f"SELECT accs.finish_deployment('shop', '{made.id}', 'success')")
        await refused(db, "UPDATE accs.seqpulse_deployments SET state = 'running'")
        if role == "accs_agent":
            await refused(db, "SELECT FROM scheduled_jobs")
        else:
            await db.fetch("SELECT * FROM scheduled_jobs")
    await refused(gateway, "UPDATE accs.seqpulse_deployments SET number = 7")
    await check(conn)
