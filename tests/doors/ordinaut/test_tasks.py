"""/tasks: made, listed, changed, paused, put off, ended (HT1, HT2), and what becomes of a pipeline (2.4)."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from accsd.db import Database
from tests.doors.ordinaut.client import ECHO, WEATHER, Client, task
from tests.support.cluster import Connection, on_every_server
from tests.support.factory import clock, pass_time
from tests.support.gateway import Gateway
from tests.support.schedules import all_roles, plan_all

# The example of its own description, as it stands there
BRIEFING: dict[str, Any] = {
    "title": "Morning Briefing",
    "description": "Daily morning briefing with calendar, weather, and email summary",
    "schedule_kind": "rrule",
    "schedule_expr": "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR;BYHOUR=8;BYMINUTE=30",
    "timezone": "Europe/Chisinau",
    "payload": {
        "pipeline": [
            {
                "id": "calendar",
                "uses": "google-calendar-mcp.list_events",
                "with": {"start": "${now}", "end": "${now+24h}"},
                "save_as": "events",
            },
            {"id": "weather", "uses": "weather-mcp.forecast", "with": {"city": "Chisinau"}, "save_as": "weather"},
            {
                "id": "brief",
                "uses": "llm.plan",
                "with": {
                    "instruction": "Create morning briefing",
                    "calendar": "${steps.events}",
                    "weather": "${steps.weather}",
                },
                "save_as": "summary",
            },
            {
                "id": "notify",
                "uses": "telegram-mcp.send_message",
                "with": {"chat_id": 12345, "text": "${steps.summary.text}"},
            },
        ]
    },
    "priority": 4,
    "dedupe_key": "morning-briefing",
    "dedupe_window_seconds": 1800,
    "max_retries": 3,
    "backoff_strategy": "exponential_jitter",
    "concurrency_key": "briefing",
}


async def tool(gateway: Gateway, name: str, service: str, **schema: Any) -> None:
    document = {"service": service, "input_schema": {"properties": schema}}
    assert (await gateway.ask("PUT", f"/tools/{name}", json=document, scope="operate")).status_code == 201


async def test_the_example_of_its_own_description_is_made_as_it_stands(
    gateway: Gateway, client: Client, conn: Connection
):
    """2.4: schedule, workflow, priority 5 − p, retries, backoff, run key; tools are those of accsd, with _ for -."""
    anything: dict[str, Any] = {}
    await tool(gateway, "google_calendar_mcp.list_events", "calendar", start=anything, end=anything)
    await tool(gateway, "weather_mcp.forecast", "weather", city=anything)
    await tool(gateway, "llm.plan", "llm", instruction=anything, calendar=anything, weather=anything)
    await tool(gateway, "telegram_mcp.send_message", "telegram", chat_id={"type": "integer"}, text=anything)
    agent = await conn.fetchval("SELECT id::text FROM accs.actors WHERE name = 'operate'")

    made = await client.post("/tasks", BRIEFING | {"created_by": agent}, 201)
    assert {key: made[key] for key in BRIEFING} == BRIEFING
    assert (made["created_by"], made["status"], made["state"]) == (agent, "active", "active")
    assert made["name"].startswith("morning-briefing-")

    row = await conn.fetchrow("SELECT * FROM schedules")
    assert row is not None
    assert str(row["id"]) == made["id"]
    assert (row["workflow"], row["priority"], row["created_by"]) == (row["name"], 1, "operate")
    assert (row["overlap"], row["run_key"]) == ("queue_all", "briefing")
    steps = {step["key"]: step for step in await conn.fetchval("SELECT steps FROM workflows")}
    assert [steps[key]["depends_on"] for key in steps] == [[], ["calendar"], ["weather"], ["brief"]]
    assert {(step["max_attempts"], step["backoff"]["strategy"], step["timeout"]) for step in steps.values()} == {
        (4, "exponential", 30.0)
    }
    assert steps["calendar"]["uses"] == "google_calendar_mcp.list_events@1"
    assert steps["calendar"]["with"]["end"] == '${(now + (duration("24h")))}'
    assert steps["notify"]["with"] == {"chat_id": 12345, "text": "${steps.summary.text}"}


async def test_what_a_step_says_itself_goes_before_what_the_task_says(client: Client, conn: Connection):
    pipeline = [{"uses": "service:a", "max_retries": 0, "timeout_seconds": 5}, {"uses": "service:b", "if": True}]
    await client.create(payload={"pipeline": pipeline}, max_retries=9, backoff_strategy="linear")
    first, second = await conn.fetchval("SELECT steps FROM workflows")
    assert (first["key"], first["max_attempts"], first["timeout"]) == ("step_0", 1, 5)
    assert (second["key"], second["max_attempts"], second["backoff"]) == ("step_1", 10, {"strategy": "linear"})


@pytest.mark.parametrize(
    ("kind", "expr", "following"),
    [
        ("cron", "0 9 * * 1-5", "2025-12-22T09:00:00+02:00"),  # Monday: every working day, not Tuesday to Saturday
        ("rrule", "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17", "2025-12-26T17:00:00+02:00"),
        ("once", "2025-12-25T09:00:00+02:00", "2025-12-25T09:00:00+02:00"),
    ],
)
async def test_the_expressions_of_the_seed_are_due_when_they_say(
    client: Client, db: Database, conn: Connection, kind: str, expr: str, following: str
):
    """The test vectors of AGREED: seeds/003."""
    wanted = datetime.fromisoformat("2025-12-20T12:00:00+02:00")
    await pass_time(conn, (wanted - await clock(conn)).total_seconds())
    made = await client.create(schedule_kind=kind, schedule_expr=expr)
    await plan_all(db)
    shown = await client.get(f"/tasks/{made['id']}")
    assert datetime.fromisoformat(shown["next_run_at"]) == datetime.fromisoformat(following)


async def test_a_time_that_lies_behind_is_ended_at_once_and_says_so(client: Client, db: Database):
    made = await client.create(schedule_kind="once", schedule_expr="2025-12-25T09:00:00+02:00")
    await plan_all(db)
    shown = await client.get(f"/tasks/{made['id']}")
    assert (shown["status"], shown["state"]) == ("canceled", "ended")
    assert shown["state_reason"]


@on_every_server
async def test_lists_are_pages_that_filters_narrow(client: Client, gateway: Gateway, conn: Connection):
    other = Client(gateway, await gateway.token("admin"))
    first = await client.create(title="One")
    second = await client.create(title="Two", schedule_kind="event", schedule_expr="a.b")
    third = await other.create(title="Three")
    await client.post(f"/tasks/{first['id']}/pause")
    await client.ask("DELETE", f"/tasks/{second['id']}")
    admin = await conn.fetchval("SELECT id FROM accs.actors WHERE name = 'admin'")
    for query, titles in {
        "": ["Three", "Two", "One"],
        "?status=paused": ["One"],
        "?status=canceled": ["Two"],
        "?status=active": ["Three"],
        "?schedule_kind=event": ["Two"],
        f"?created_by={admin}": ["Three"],
        "?created_by=00000000-0000-0000-0000-000000000001": [],
        "?offset=1&limit=1": ["Two"],
    }.items():
        found = await client.get(f"/tasks{query}")
        assert [each["title"] for each in found["items"]] == titles, query
    page = await client.get("/tasks?offset=1&limit=1")
    assert {key: page[key] for key in page if key != "items"} == {
        "total": 3,
        "limit": 1,
        "offset": 1,
        "has_more": True,
    }
    assert (await client.get("/tasks?limit=201", 422))["errors"][0]["pointer"] == "/query/limit"
    assert (await client.get("/tasks/not-a-uuid", 422))["code"] == "invalid"
    assert (await client.get(f"/tasks/{admin}", 404))["code"] == "not_found"
    assert (await client.get(f"/tasks/{third['id']}"))["payload"] == WEATHER


async def test_a_schedule_that_was_made_elsewhere_is_a_task_too(client: Client, conn: Connection):
    await conn.execute(
        "INSERT INTO workflows (name, steps) VALUES ('backup', $1)",
        [{"key": "dump", "service": "d", "max_attempts": 2}],
    )
    await conn.execute(
        "INSERT INTO schedules (name, schedule_kind, schedule_expr, workflow, options, priority)"
        " VALUES ('nightly', 'interval', '90m', 'backup', '{\"api_token\": \"x\"}', 100)"
    )
    (shown,) = (await client.get("/tasks"))["items"]
    assert (shown["title"], shown["schedule_kind"], shown["priority"], shown["created_by"]) == (
        "nightly",
        "interval",
        1,
        None,
    )
    assert shown["payload"] == {
        "params": {"api_token": "***"},
        "pipeline": [{"id": "dump", "uses": "service:d", "with": {}}],
    }
    assert shown["max_retries"] == 1
    await client.put(f"/tasks/{shown['id']}", {"priority": 2})
    assert await conn.fetchval("SELECT priority FROM schedules") == 3
    refused = await client.put(f"/tasks/{shown['id']}", {"payload": ECHO}, 422)
    assert "PUT /api/v1/workflows/backup" in refused["hint"]


# Changed


async def test_what_is_given_changes_and_a_new_pipeline_is_a_new_version(client: Client, conn: Connection):
    """HT1: PUT and PATCH. A run keeps the pipeline that it began with."""
    made = await client.create(concurrency_key="k")
    where = f"/tasks/{made['id']}"
    await client.post(f"{where}/run_now")
    changed = await client.put(where, {"title": "Hot", "schedule_expr": "30 8 * * *", "priority": 1, "max_retries": 0})
    differs = {key for key in made if made[key] != changed[key]}
    assert differs == {"title", "schedule_expr", "priority", "max_retries", "updated_at", "last_run_id"}
    patched = (await client.ask("PATCH", where, {"payload": ECHO, "concurrency_key": None})).json()
    assert (patched["payload"], patched["max_retries"], patched["concurrency_key"]) == (ECHO, 0, None)
    assert await conn.fetchval("SELECT overlap FROM schedules") == "allow"
    versions = await conn.fetch("SELECT version, jsonb_array_length(steps) AS n FROM workflows ORDER BY 1")
    assert [tuple(row) for row in versions] == [(1, 2), (2, 2), (3, 1)]
    run = (await client.get("/runs"))["items"][0]
    assert (run["workflow_version"], len(run["steps"])) == (1, 2)
    event = await client.put(where, {"schedule_kind": "event", "schedule_expr": "a.b", "dedupe_window_seconds": 60})
    assert (event["schedule_kind"], event["schedule_expr"], event["dedupe_window_seconds"]) == ("event", "a.b", 60)
    assert await conn.fetchval("SELECT cooldown FROM schedules") == timedelta(seconds=60)
    assert (await client.put(where, {}))["title"] == "Hot"


async def test_a_status_can_be_put_and_canceled_is_final(client: Client):
    made = await client.create()
    where = f"/tasks/{made['id']}"
    assert (await client.put(where, {"status": "paused", "title": "Both"}))["status"] == "paused"
    assert (await client.put(where, {"status": "active"}))["status"] == "active"
    assert (await client.put(where, {"status": "canceled"}))["status"] == "canceled"
    for refused in (
        await client.put(where, {"status": "active"}, 400),
        await client.put(where, {"title": "x"}, 400),
        await client.post(f"{where}/resume", status=400),
        await client.post(f"{where}/pause", status=400),
        await client.post(f"{where}/run_now", status=400),
    ):
        assert refused["code"] == "not_active"


async def test_a_secret_that_is_shown_as_stars_is_not_written_back_as_stars(client: Client, conn: Connection):
    payload = {"params": {"api_token": "real"}, **ECHO}
    made = await client.create(payload=payload)
    assert made["payload"]["params"] == {"api_token": "***"}
    refused = await client.put(f"/tasks/{made['id']}", {"payload": made["payload"]}, 422)
    assert refused["errors"][0]["pointer"] == "/payload/params/api_token"
    await client.put(f"/tasks/{made['id']}", {"title": "other"})
    assert await conn.fetchval("SELECT params FROM workflows ORDER BY version DESC LIMIT 1") == payload["params"]


# Paused, put off, ended, run


async def test_pause_and_resume_reach_the_scheduler_and_say_the_same_twice(
    client: Client, db: Database, conn: Connection
):
    made = await client.create(schedule_expr="*/5 * * * *")
    where = f"/tasks/{made['id']}"
    await all_roles(db)
    said = await client.post(f"{where}/pause")
    assert said["success"] is True
    assert said["details"] == {"task_id": made["id"], "old_status": "active", "new_status": "paused"}
    assert (await client.post(f"{where}/pause"))["details"] == {"task_id": made["id"], "status": "paused"}
    await pass_time(conn, 360)
    await all_roles(db)
    assert (await client.get("/runs"))["total"] == 0
    await client.post(f"{where}/resume")
    await all_roles(db)
    await pass_time(conn, 300)
    await all_roles(db)
    assert (await client.get(f"/runs?task_id={made['id']}"))["total"] == 1


async def test_a_snooze_moves_the_next_run_by_its_seconds(client: Client, db: Database):
    made = await client.create()
    where = f"/tasks/{made['id']}"
    assert (await client.post(f"{where}/snooze", {"delay_seconds": 60}, 409))["code"], "nothing is planned yet"
    await plan_all(db)
    due = datetime.fromisoformat((await client.get(where))["next_run_at"])
    said = await client.post(f"{where}/snooze", {"delay_seconds": 600, "reason": "asleep"})
    assert datetime.fromisoformat(said["details"]["due_at"]) == due + timedelta(minutes=10)
    shown = await client.get(where)
    assert (shown["status"], shown["state"]) == ("active", "snoozed")
    for wrong in ({"delay_seconds": 0}, {"delay_seconds": 604_801}, {"delay_seconds": 1, "reason": "x" * 201}, {}):
        await client.post(f"{where}/snooze", wrong, 422)
    await client.post(f"{where}/pause")
    assert (await client.post(f"{where}/snooze", {"delay_seconds": 60}, 400))["code"] == "not_active"


async def test_run_now_starts_a_run_at_once_and_the_same_key_again_is_the_same_run(client: Client):
    """HT2."""
    made = await client.create()
    where = f"/tasks/{made['id']}/run_now"
    first = await client.post(where, key="k")
    again = await client.post(where, key="k")
    assert first["details"]["run_id"] == again["details"]["run_id"]
    await client.post(where)  # beside the one that is open: no concurrency_key holds it
    assert (await client.get("/runs"))["total"] == 2


async def test_runs_of_one_concurrency_key_wait_for_each_other(client: Client, conn: Connection):
    """2.2: stored there, and read by nobody."""
    one = await client.create(concurrency_key="printer")
    two = await client.create(concurrency_key="printer")
    for made in (one, two):
        await client.post(f"/tasks/{made['id']}/run_now")
    assert [row["status"] for row in await conn.fetch("SELECT status FROM jobs ORDER BY order_seq")] == [
        "running",
        "queued",
    ]


# Not written


async def test_a_dry_run_says_the_same_and_writes_nothing(client: Client, conn: Connection):
    """HT2: on every write."""
    shown = await client.post("/tasks?dry_run=true", task())
    assert (shown["dry_run"], shown["status"], shown["payload"]) == (True, "active", WEATHER)
    made = await client.create()
    where = f"/tasks/{made['id']}"
    assert (await client.put(f"{where}?dry_run=true", {"title": "x", "payload": ECHO}))["title"] == "x"
    for act in ("run_now", "pause", "cancel"):
        assert (await client.post(f"{where}/{act}?dry_run=true"))["dry_run"] is True
    assert (await client.ask("DELETE", f"{where}?dry_run=true")).json()["dry_run"] is True
    assert (await client.post("/events?dry_run=true", {"topic": "a.b", "payload": {}}))["event_id"] is None
    counts = "SELECT (SELECT count(*) FROM {}) + (SELECT count(*) FROM {})"
    assert await conn.fetchval(counts.format("schedules", "workflows")) == 2
    assert await conn.fetchval(counts.format("jobs", "events")) == 0
    unknown = await client.post("/tasks?dryrun=true", task(), 422)
    assert unknown["errors"][0]["pointer"] == "/query/dryrun"


async def test_a_key_makes_one_task_however_often_it_is_sent(client: Client, conn: Connection):
    """HT2, also when it is sent several times at once."""
    answers = await asyncio.gather(
        *(client.ask("POST", "/tasks", task(), **{"Idempotency-Key": "k"}) for _ in range(4))
    )
    assert sorted(each.status_code for each in answers) == [200, 200, 200, 201]
    assert len({each.json()["id"] for each in answers}) == 1
    where = f"/tasks/{answers[0].json()['id']}"
    await client.put(where, {"title": "another", "max_retries": 1})
    again = await client.ask("POST", "/tasks", task(), **{"Idempotency-Key": "k"})
    assert (again.status_code, again.headers["idempotency-replayed"]) == (200, "true")
    assert again.json()["title"] == "another"
    other = await client.ask("POST", "/tasks", task(payload=ECHO), **{"Idempotency-Key": "k"})
    assert other.json()["code"] == "idempotency_mismatch"
    assert await conn.fetchval("SELECT count(*) FROM schedules") == 1


async def test_a_task_and_its_workflow_are_written_together_or_not_at_all(client: Client, conn: Connection):
    """G-3: one transaction for each request."""
    await conn.execute("SELECT accs.put_actor('operate', 'service', '{\"schedules\": 1}')")
    await client.create()
    refused = await client.create(422)
    assert "which is the limit" in refused["detail"]
    assert await conn.fetchval("SELECT count(*) FROM workflows") == 1
    taken = await client.create(409, name=(await client.get("/tasks"))["items"][0]["name"])
    assert taken["code"] == "already_there"


@pytest.mark.parametrize(
    ("fields", "pointer", "said"),
    [
        ({"title": ""}, "/body/title", "at least 1"),
        ({"name": "019A0000-0000-7000-8000-000000000000"}, "/name", "looks like the id of a schedule"),
        ({"priority": 10}, "/body/priority", "9"),
        ({"max_retries": 11}, "/body/max_retries", "10"),
        ({"schedule_kind": "never"}, "/body/schedule_kind", "cron"),
        ({"schedule_expr": None}, "/schedule_expr", "schedule_expr"),
        ({"schedule_expr": "0 9 * *"}, None, "fields"),
        ({"schedule_kind": "rrule", "schedule_expr": "FREQ=NEVER"}, None, "NEVER"),
        ({"timezone": "Mars/Phobos"}, None, "Mars/Phobos"),
        ({"schedule_kind": "event", "schedule_expr": "a.*"}, "/schedule_expr", "matched exactly"),
        ({"schedule_kind": "event", "schedule_expr": "a b"}, "/schedule_expr", "no topic"),
        ({"schedule_kind": "condition", "schedule_expr": "d", "condition": {"source": {"sql": "x"}}}, "/condition",
         "no probe"),
        ({"dedupe_window_seconds": 90_000}, "/dedupe_window_seconds", "86400 s apart"),
        ({"concurrency_key": "schedule:x"}, "/concurrency_key", "schedule:"),
        ({"payload": {}}, "/payload/pipeline", "must be a list"),
        ({"payload": {"pipeline": []}}, "/payload/pipeline", "one step or more"),
        ({"payload": {"pipeline": [1], "params": 2}}, "/payload/params", "must be an object"),
        ({"payload": {"pipeline": ["x"]}}, "/payload/pipeline/0", "must be an object"),
        ({"payload": {"pipeline": [{"id": "a"}]}}, "/payload/pipeline/0/uses", "must name a tool"),
        ({"payload": {"pipeline": [{"uses": "service:a", "retries": 1}]}}, "/payload/pipeline/0/retries", "not known"),
        ({"payload": {"pipeline": [{"uses": "service:a", "timeout_seconds": "1m"}]}},
         "/payload/pipeline/0/timeout_seconds", "whole number"),
        ({"payload": {"pipeline": [{"uses": "no.such"}]}}, "/payload/pipeline/0/uses", "not there"),
        ({"payload": {"pipeline": [{"id": "a", "uses": "service:a"}, {"id": "a", "uses": "service:b"}]}},
         "/payload/pipeline", "a"),
        ({"payload": {"pipeline": [{"id": "a", "uses": "service:a", "save_as": "1x"}]}},
         "/payload/pipeline/0/save_as", "digit"),
        ({"payload": {"pipeline": [{"uses": "service:a", "with": {"x": ["${a | b}"]}}]}},
         "/payload/pipeline/0/with/x/0", "a pipe"),
        ({"payload": {"pipeline": [{"uses": "service:a", "with": {"x": "${params.n"}}]}},
         "/payload/pipeline/0/with/x", "no } closes"),
        ({"payload": {"pipeline": [{"uses": "service:a", "if": "steps.b.c"}]}}, "/payload/pipeline/0/if", "no step"),
        ({"payload": {"pipeline": [{"uses": "service:a", "if": "sort(params.x)"}]}}, "/payload/pipeline/0/if",
         "sort()"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_refused_in_words_with_its_place(
    client: Client, conn: Connection, fields: dict[str, Any], pointer: str | None, said: str
):
    refused = await client.create(422, **fields)
    assert said in refused["detail"]
    if pointer is not None:
        assert pointer in [each["pointer"] for each in refused["errors"]], refused["errors"]
    assert await conn.fetchval("SELECT count(*) FROM schedules") == 0
    assert await conn.fetchval("SELECT count(*) FROM workflows") == 0


async def test_all_that_is_wrong_with_a_pipeline_is_said_at_once(client: Client):
    pipeline = [{"uses": ""}, {"uses": "service:a", "with": {"x": "${[]}"}, "if": "a[]"}]
    refused = await client.create(422, payload={"pipeline": pipeline})
    assert [each["pointer"] for each in refused["errors"]] == [
        "/payload/pipeline/0/uses",
        "/payload/pipeline/1/with/x",
        "/payload/pipeline/1/if",
    ]


async def test_an_agent_that_is_not_there_is_answered_400_as_by_ordinaut(client: Client):
    nobody = "00000000-0000-0000-0000-000000000001"  # there the built-in admin, here nobody
    refused = await client.create(400, created_by=nobody)
    assert (refused["code"], "leave it out" in refused["hint"]) == ("unknown_agent", True)
    event = {"topic": "a.b", "payload": {}, "source_agent_id": nobody}
    assert (await client.post("/events", event, 400))["code"] == "unknown_agent"


async def test_a_task_for_another_agent_is_that_agents(client: Client, gateway: Gateway, conn: Connection):
    await gateway.token("submit")
    agent = await conn.fetchval("SELECT id::text FROM accs.actors WHERE name = 'submit'")
    made = await client.create(created_by=agent)
    assert made["created_by"] == agent
    assert await conn.fetchval("SELECT created_by FROM schedules") == "submit"
    assert await conn.fetchval("SELECT by FROM accs.schedule_history") == "operate", "AG5: who did it is in the history"


async def test_a_task_of_an_assistant_does_not_run_every_second(gateway: Gateway):
    """AG4."""
    helper = Client(gateway, await gateway.token("operate", actor="helper", kind="assistant"))
    refused = await helper.create(409, schedule_kind="interval", schedule_expr="10s")
    assert (refused["code"], "gateway.ordinaut.least_interval" in refused["hint"]) == ("quota", True)
    await helper.create(schedule_kind="interval", schedule_expr="60s")
