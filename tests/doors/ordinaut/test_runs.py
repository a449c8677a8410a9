"""/runs and /events: schedules really fire, events start tasks, and runs say what came of it."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from accsd.db import Database
from tests.doors.ordinaut.client import WEATHER, Client, finish, resolve
from tests.support import daemon
from tests.support.cluster import Connection, on_every_server
from tests.support.eventually import eventually
from tests.support.factory import node, pass_time
from tests.support.gateway import Gateway
from tests.support.schedules import all_roles


async def test_a_task_fires_at_its_time_and_its_run_has_the_output_of_each_step(
    client: Client, db: Database, conn: Connection
):
    """O5, O7, 2.4: planner, scheduler and resolver as they are; the machines are the test."""
    made = await client.create(schedule_expr="*/5 * * * *")
    assert await client.get(f"/runs/task/{made['id']}/latest") is None
    await all_roles(db)
    await pass_time(conn, 301)
    await all_roles(db)
    (run,) = (await client.get(f"/runs?task_id={made['id']}"))["items"]
    assert (run["status"], run["success"], run["task_id"], run["error"]) == ("running", None, made["id"], None)
    assert (run["trigger"]["cause"], run["trigger"]["timezone"]) == ("schedule", "Europe/Chisinau")

    await resolve(db)
    await finish(conn, "weather", temperature=31, sky="clear")
    await resolve(db)
    assert await conn.fetchval("SELECT given -> 'with' FROM job_tasks WHERE task_key = 'send_alert'") == {
        "message": "It's hot today: 31°C"
    }
    await finish(conn, "telegram", sent=True)
    run = await client.get(f"/runs/{run['id']}")
    assert (run["status"], run["success"], run["attempt"]) == ("done", True, 1)
    assert run["output"] == {
        "params": {"city": "Chisinau"},
        "steps": {"weather": {"temperature": 31, "sky": "clear"}, "send_alert": {"sent": True}},
    }
    assert [(step["id"], step["status"], step["attempt"]) for step in run["steps"]] == [
        ("get_weather", "done", 1),
        ("send_alert", "done", 1),
    ]
    assert run["started_at"] < run["finished_at"]


async def test_the_quick_start_of_its_documentation_runs_without_any_machine(client: Client, db: Database):
    """debug.echo and debug.log; what a step has saved is in the text of the next one."""
    echo = {"message": "Hello, ${params.user_name}!", "details": {"timestamp": "${now}"}}
    log = {"message": "Step 1 said: '${steps.greeting.message}' at ${steps.greeting.details.timestamp}"}
    payload = {
        "params": {"user_name": "Ordinaut User"},
        "pipeline": [
            {"id": "get_data", "uses": "debug.echo", "with": echo, "save_as": "greeting"},
            {"id": "process_data", "uses": "debug.log", "with": log},
        ],
    }
    made = await client.create(schedule_expr="* * * * *", payload=payload)
    await client.post(f"/tasks/{made['id']}/run_now")
    await resolve(db)
    (run,) = (await client.get(f"/runs?task_id={made['id']}&limit=5"))["items"]
    steps = run["output"]["steps"]
    assert (run["success"], steps["greeting"]["message"]) == (True, "Hello, Ordinaut User!")
    moment = steps["greeting"]["details"]["timestamp"]
    assert steps["process_data"]["message"] == f"Step 1 said: 'Hello, Ordinaut User!' at {moment}"


async def test_a_false_condition_leaves_no_output(client: Client, db: Database, conn: Connection):
    """2.3, kept: and the run succeeds."""
    made = await client.create()
    await client.post(f"/tasks/{made['id']}/run_now")
    await resolve(db)
    await finish(conn, "weather", sky="clear")  # no temperature: null, which is not above 25
    await resolve(db)
    run = await client.get(f"/runs/task/{made['id']}/latest")
    assert (run["success"], list(run["output"]["steps"])) == (True, ["weather"])
    assert run["steps"][1]["status"] == "skipped"


async def test_a_failure_is_tried_again_and_then_told(client: Client, db: Database, conn: Connection):
    """2.2: retries slept inside of the worker, under its lease. Here they wait in the database."""
    payload = {"pipeline": [{"id": "a", "uses": "service:a"}]}
    made = await client.create(payload=payload, max_retries=1, backoff_strategy="fixed")
    await client.post(f"/tasks/{made['id']}/run_now")
    await node(conn, "n", None, a=1)
    for _ in range(2):
        await conn.execute("SELECT * FROM accs.claim_tasks('a', 'n', 'n', 1, interval '60 s')")
        await conn.execute(
            "SELECT * FROM accs.finish_tasks(ARRAY(SELECT id FROM job_tasks), ARRAY(SELECT attempt_id FROM job_tasks),"
            " 'n', ARRAY['error'], p_error_codes => ARRAY['no_disk'], p_error_messages => ARRAY['the disk is full'])"
        )
        await pass_time(conn, 60)
    run = await client.get(f"/runs/task/{made['id']}/latest")
    assert (run["success"], run["status"], run["attempt"]) == (False, "error", 2)
    assert "the disk is full" in run["error"]
    assert run["steps"][0]["error_code"] == "no_disk"
    (listed,) = (await client.get("/runs"))["items"]
    assert (listed["error"], listed["steps"][0]["error"]) == ("the error is hidden: ask with include_errors=true",) * 2
    (listed,) = (await client.get("/runs?include_errors=true&success=false"))["items"]
    assert "the disk is full" in listed["error"]
    assert (await client.get("/runs?success=true"))["total"] == 0
    stats = await client.get(f"/runs/task/{made['id']}/stats?days=7")
    assert (stats["total_runs"], stats["failed_runs"], stats["failure_rate"]) == (1, 1, 1.0)
    assert stats["last_failure"] == run["created_at"]
    assert stats["last_success"] is None


@on_every_server
async def test_lists_of_runs_are_pages_that_filters_narrow(client: Client, conn: Connection):
    one, two = await client.create(title="One"), await client.create(title="Two")
    for _ in range(3):
        await client.post(f"/tasks/{one['id']}/run_now")
        await pass_time(conn, 3600)
    await client.post(f"/tasks/{two['id']}/run_now")
    await conn.execute("INSERT INTO jobs (workflow_id) SELECT id FROM workflows LIMIT 1")  # of no schedule: no run
    page = await client.get("/runs?limit=2&offset=1")
    assert (page["total"], page["has_more"], len(page["items"])) == (4, True, 2)
    assert (await client.get("/runs?limit=2&offset=2"))["has_more"] is False
    times = [each["created_at"] for each in (await client.get("/runs"))["items"]]
    assert times == sorted(times, reverse=True)
    for query, total in {
        f"task_id={one['id']}": 3,
        f"task_id={one['id']}&start_time={times[2].replace('+', '%2B')}": 2,
        f"task_id={one['id']}&end_time={times[2].replace('+', '%2B')}": 2,
        "start_time=2001-01-01T00:00:00&end_time=2001-01-02T00:00:00": 0,
        "task_id=00000000-0000-0000-0000-000000000001": 0,
    }.items():
        assert (await client.get(f"/runs?{query}"))["total"] == total, query
    summary = await client.get("/runs/stats/summary?days=1")
    assert (summary["total_runs"], summary["total_tasks_executed"], summary["runs_per_day"]) == (4, 2, 4.0)
    for path in ("/runs/00000000-0000-0000-0000-000000000001", "/runs/task/00000000-0000-0000-0000-000000000001/stats"):
        assert (await client.get(path, 404))["code"] == "not_found"
    job = await conn.fetchval("SELECT id FROM jobs WHERE schedule_id IS NULL")
    assert (await client.get(f"/runs/{job}", 404))["code"] == "not_found"


async def test_what_looks_secret_is_struck_out_and_large_results_are_left_out(
    client: Client, db: Database, conn: Connection
):
    payload = {"params": {"api_key": "k"}, "pipeline": [{"id": "a", "uses": "service:a", "save_as": "out"}]}
    made = await client.create(payload=payload)
    await client.post(f"/tasks/{made['id']}/run_now")
    await finish(conn, "a", token="t", text=json.dumps([n * 7919 % 100_003 for n in range(30_000)]))
    run = await client.get(f"/runs/task/{made['id']}/latest")
    assert run["output"]["params"] == {"api_key": "***"}
    assert run["output"]["steps"]["out"]["omitted"] > 65_536
    await client.post(f"/tasks/{made['id']}/run_now")
    await finish(conn, "a", token="t", n=1)
    run = await client.get(f"/runs/task/{made['id']}/latest")
    assert run["output"]["steps"]["out"] == {"token": "***", "n": 1}


# Events


async def test_an_event_starts_the_tasks_of_exactly_its_topic_with_its_payload(
    client: Client, db: Database, conn: Connection
):
    """O4, and 2.2: there the payload never reached the queue. The seed's topic."""
    payload = {"pipeline": [{"id": "a", "uses": "service:a", "with": {"host": "${event.payload.host}"}}]}
    on: dict[str, Any] = {"schedule_kind": "event", "payload": payload}
    made = await client.create(schedule_expr="alerta.critica", **on)
    other = await client.create(schedule_expr="alerta.critica.disc", **on)
    paused = await client.create(schedule_expr="alerta.critica", **on)
    await client.post(f"/tasks/{paused['id']}/pause")
    event = {"topic": "alerta.critica", "payload": {"host": "db-1"}}
    said = await client.post("/events", event, 202)
    assert said["success"] is True
    assert said["triggered_tasks"] == said["details"]["triggered_tasks"] == [made["id"]]
    assert said["event_id"] == said["details"]["event_id"]
    await all_roles(db)
    await resolve(db)
    (run,) = (await client.get("/runs"))["items"]
    assert (run["task_id"], run["trigger"]["event"]["payload"]) == (made["id"], {"host": "db-1"})
    assert await conn.fetchval("SELECT given -> 'with' FROM job_tasks") == {"host": "db-1"}
    topics = await client.get("/events/topics")
    assert topics == {
        "total_topics": 2,
        "topics": [
            {"topic": "alerta.critica", "active_tasks": 1, "task_ids": [made["id"]]},
            {"topic": "alerta.critica.disc", "active_tasks": 1, "task_ids": [other["id"]]},
        ],
    }
    (recent,) = (await client.get("/events/stream/recent"))["events"]
    assert (recent["topic"], recent["payload"], recent["published_by"]) == (*event.values(), "operate")
    assert recent["source_agent_id"] == made["created_by"]


async def test_the_same_key_again_is_the_same_event(client: Client, db: Database):
    """HT2."""
    await client.create(schedule_kind="event", schedule_expr="a.b")
    event = {"topic": "a.b", "payload": {}}
    first = await client.post("/events", event, 202, key="k")
    again = await client.post("/events", event, 200, key="k")
    assert first["event_id"] == again["event_id"]
    await all_roles(db)
    assert (await client.get("/runs"))["total"] == 1


async def test_a_dedupe_window_lets_a_task_run_once_in_it(client: Client, db: Database, conn: Connection):
    """2.4: cooldown, and the ledger says so. Stored there, and read by nobody."""
    made = await client.create(schedule_kind="event", schedule_expr="a.b", dedupe_key="x", dedupe_window_seconds=600)
    assert (made["dedupe_key"], made["dedupe_window_seconds"]) == ("x", 600)
    for _ in range(3):
        await client.post("/events", {"topic": "a.b", "payload": {}}, 202)
        await all_roles(db)
        await pass_time(conn, 250)
    assert (await client.get("/runs"))["total"] == 1
    assert await conn.fetchval("SELECT count(*) FROM firings WHERE reason = 'cooldown'") == 2


@pytest.mark.parametrize("topic", ["", "a b", "a..b", "a.*", "x" * 101, "accs.job.done"])
async def test_a_topic_that_accsd_does_not_know_is_refused(client: Client, topic: str):
    """AGREED: topics outside of EV2 are answered 422."""
    refused = await client.post("/events", {"topic": topic, "payload": {}}, 422)
    assert refused["detail"]


async def test_old_events_go_by_themselves(client: Client):
    """2.1: DELETE stream/cleanup; here they leave through the archive."""
    await client.post("/events", {"topic": "a.b", "payload": {}}, 202)
    said = (await client.ask("DELETE", "/events/stream/cleanup?max_age_hours=1")).json()
    assert said["details"] == {"deleted_count": 0, "max_age_hours": 1}
    assert (await client.get("/events/stream/recent?count=5"))["total_events"] == 1


async def test_a_condition_starts_a_task_when_its_evaluator_reports_it(gateway: Gateway, client: Client, db: Database):
    """O4: from outside. `true` raises it, or the value that the task names."""
    plain = await client.create(schedule_kind="condition", schedule_expr="disk.full")
    above = await client.create(schedule_kind="condition", schedule_expr="temperature", condition={"above": 30})
    assert (plain["schedule_kind"], plain["schedule_expr"]) == ("condition", "disk.full")
    await all_roles(db)
    for name, value in (("disk.full", True), ("temperature", 25), ("temperature", 31)):
        assert (await gateway.post(f"/conditions/{name}", {"value": value}, scope="submit")).status_code == 200
        await all_roles(db)
    runs = (await client.get("/runs"))["items"]
    assert {run["task_id"] for run in runs} == {plain["id"], above["id"]}
    assert len(runs) == 2


# A real daemon


@contextmanager
def running(folder: Path, db_url: str) -> Generator[None]:
    services = {"weather": 'print(\'{"type": "result", "results": {"temperature": 31}}\')', "telegram": "print('sent')"}
    config = "\n".join(
        f'[services.{name}]\nrunner = "process"\ncommand = ["python3", "-c", {json.dumps(code)}]'
        for name, code in services.items()
    )
    with daemon.running(folder, db_url, config=config):
        yield


async def test_a_real_daemon_runs_what_the_door_has_made(client: Client, db_url: str, tmp_path: Path):
    """O8: planner, scheduler, resolver and agent in one process, which knows nothing of the door."""
    made = await client.create(schedule_kind="event", schedule_expr="weather.asked", payload=WEATHER)
    soon = await client.create(schedule_kind="interval", schedule_expr="1s", title="Soon")
    with running(tmp_path, db_url):
        await client.post("/events", {"topic": "weather.asked", "payload": {}}, 202)

        async def ended(task_id: str) -> dict[str, Any] | None:
            runs = (await client.get(f"/runs?task_id={task_id}&success=true"))["items"]
            return runs[0] if runs else None

        for each in (made, soon):
            await eventually(lambda each=each: ended(each["id"]), within=40)
        await client.post(f"/tasks/{soon['id']}/cancel")
    run = await ended(made["id"])
    assert run is not None
    assert run["output"]["steps"]["weather"] == {"temperature": 31}
    assert [step["status"] for step in run["steps"]] == ["done", "done"]
