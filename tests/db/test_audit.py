"""The audit: each verb that people call leaves its row, in psql too; what the machinery does leaves none."""

from collections.abc import AsyncIterator
from typing import Any, Final
from uuid import uuid4

import pytest

from accsd.builder.cleanup import Cleanup
from accsd.db import Database, Pausable, apply_workflow, cancel_jobs, pause, resume
from accsd.db.audit import AuditRow, audit, note_reveal, prune_audit
from accsd.errors import InvalidValue, VerbRefused
from accsd.metrics import Metrics
from accsd.model import WorkflowDef
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import (
    LEASE,
    claim,
    done,
    fail,
    finish,
    node,
    pass_time,
    started,
    step,
    submit,
    workflow,
)
from tests.support.library import opened
from tests.support.roles import As, refused
from tests.support.roles import connect_as as connect_as
from tests.support.roles import roles as roles

DAY = 86400
TOOL: Final = (
    """'{"name": "media.probe", "kind": "service", "service": "prober", "input_schema": {"type": "object"}}'"""
)
FLOW: Final = """'{"name": "new", "steps": [{"key": "a", "service": "x"}]}'"""
NIGHTLY: Final = '{"name": "nightly", "schedule_kind": "cron", "schedule_expr": "0 3 * * *", "workflow": "media"}'
HERE: Final = "'11111111-1111-7111-8111-111111111111'"  # no job, no task


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as database:
        yield database


async def rows(conn: Connection) -> list[tuple[str, str, str | None, str]]:
    found = await conn.fetch("SELECT action, kind, target, answer FROM accs.audit ORDER BY id")
    return [tuple(row) for row in found]


async def last(conn: Connection) -> dict[str, Any]:
    found = await conn.fetchrow("SELECT * FROM accs.audit ORDER BY id DESC LIMIT 1")
    assert found is not None
    return dict(found)


# What is typed in psql, with the row that it leaves
CALLS: Final = {
    "cancel_jobs(ARRAY[JOB])": ("cancel_jobs", "job", "JOB", "accepted"),
    f"cancel_jobs(ARRAY[{HERE}::uuid])": ("cancel_jobs", "job", HERE, "refused"),
    "retry_jobs(ARRAY[JOB])": ("retry_jobs", "job", "JOB", "refused"),
    "change_jobs(ARRAY[JOB], 7)": ("change_jobs", "job", "JOB", "accepted"),
    f"skip_tasks(ARRAY[{HERE}::uuid])": ("skip_tasks", "task", HERE, "refused"),
    "redrive(ARRAY[LETTER])": ("redrive", "dead_letter", "LETTER", "accepted"),
    "redrive(ARRAY[0::bigint])": ("redrive", "dead_letter", "0", "refused"),
    "dismiss(ARRAY[LETTER])": ("dismiss", "dead_letter", "LETTER", "accepted"),
    "pause('service', 'render')": ("pause", "service", "render", "accepted"),
    "pause('workflow', 'media')": ("pause", "workflow", "media", "accepted"),
    "resume('node', 'n1')": ("resume", "node", "n1", "repeated"),
    "set_concurrency_limit('gpu', 2)": ("set_concurrency_limit", "concurrency_key", "gpu", "accepted"),
    "set_run_limit('nightly', 2)": ("set_run_limit", "run_key", "nightly", "accepted"),
    "forget_node('n2', '0')": ("forget_node", "node", "n2", "accepted"),
    "forget_node('n1')": ("forget_node", "node", "n1", "refused"),
    f"ask_node({HERE}, 'n1', 'sleep', NULL, NULL, '10 s')": ("sleep", "node", "n1", "accepted"),
    f"record_wake('n1', {HERE}, true, NULL, 'called', '{{}}', 'ada')": ("wake", "node", "n1", "accepted"),
    "lift_quarantine('n1', NULL, 'it was the cable')": ("lift_quarantine", "quarantine", "n1/render", "accepted"),
    f"put_tool({TOOL})": ("put_tool", "tool", "media.probe@1", "accepted"),
    "retire_tool('accs.assert')": ("retire_tool", "tool", "accs.assert", "refused"),
    "redrive_outbox(ARRAY[0::bigint])": ("redrive_outbox", "outgoing_event", "0", "refused"),
    "forget_outbox_target('studio')": ("forget_outbox_target", "outbox_target", "studio", "refused"),
    "hold_schedules('a fire')": ("hold_schedules", "schedules", None, "accepted"),
    "hold_schedules(p_lift => true)": ("lift_hold", "schedules", None, "repeated"),
    "put_actor('ada')": ("put_actor", "actor", "ada", "accepted"),
    "create_token('abcdefgh', sha256('x'), 'ci', '{read}')": ("create_token", "token", "abcdefgh", "accepted"),
    "revoke_token('abcdefgh')": ("revoke_token", "token", "abcdefgh", "refused"),
    "create_share('abcdefgh', sha256('x'), JOB, '1 day')": ("create_share", "job", "JOB", "accepted"),
    "create_code(sha256('x'), 'ada', '{read}')": ("create_code", "actor", "ada", "accepted"),
    "note_reveal('job', 'x', 'ada')": ("reveal", "job", "x", "accepted"),
    "retire_workflow('media')": ("apply_workflow", "workflow", "media", "accepted"),  # the version that it changes
    "retire_workflow('nothing')": ("retire_workflow", "workflow", "nothing", "refused"),
    f"apply_workflow({FLOW})": ("apply_workflow", "workflow", "new", "accepted"),
}


async def test_what_is_typed_in_psql_leaves_one_row(conn: Connection):
    await node(conn)
    await node(conn, "n2")
    await workflow(conn, name="media")
    broken = await submit(conn, step("a", max_attempts=1))
    await fail(conn, *await started(conn), permanent=True)
    letter = await conn.fetchval("SELECT id FROM dead_letters WHERE job_id = $1", broken)
    await conn.execute("SELECT accs.quarantine('n1', 'render', 'it is ill', '{}', '30 s')")
    job = await submit(conn)
    before, login = len(await rows(conn)), await conn.fetchval("SELECT session_user")
    names = {"JOB": str(job), "LETTER": str(letter), HERE: HERE.strip("'")}

    for call, (action, kind, target, answer) in CALLS.items():
        undone = conn.transaction()
        await undone.start()
        sql = call.replace("JOB", f"'{job}'::uuid").replace("LETTER", f"{letter}::bigint")
        await conn.execute(f"SELECT * FROM accs.{sql}")
        assert (await rows(conn))[before:] == [(action, kind, names.get(target or "", target), answer)], call
        row = await last(conn)
        assert row["via"] == "sql"
        assert row["actor"] in (login, "ada"), "who is not named is the login"
        assert (answer == "refused") == ("refused" in (row["detail"] or {})), call
        await undone.rollback()
    await check(conn)


# Verbs with p_by that are told elsewhere: in the history of schedules, in the samples of a condition
ELSEWHERE: Final = {
    "put_schedule", "end_schedule", "pause_schedule", "resume_schedule", "snooze", "unsnooze", "skip_occurrence",
    "run_now", "start_backfill", "cancel_backfill", "replay_events",
    # of the machinery, which gives its name
    "settle_due", "settle_events", "settle_plain_events", "trim_inbox", "choose_outcomes", "plan_schedules",
    "note_zones", "emit_event", "report_sample", "take_probes", "record_probe", "measure",
    "end_session",  # only of another one
    "start_operation", "stop_operation",  # tests/db/test_operations.py
    "save_view", "drop_view",  # what somebody looks at changes nothing
    # what clients of doors do, in the history of its jobs and by audited verbs within
    "joblib_register", "joblib_submit", "joblib_end", "joblib_remove_worker", "joblib_put_provider",
    "trigger_deployment", "finish_deployment",
}  # fmt: skip


async def test_every_verb_that_people_call_is_one_of_those(conn: Connection):
    named = await conn.fetch(
        """SELECT p.proname FROM pg_proc p JOIN accs.verbs v ON v.name = p.proname
            WHERE p.pronamespace = 'accs'::regnamespace AND p.proargnames && '{p_by,p_reason}'"""
    )
    tried = {call.partition("(")[0] for call in CALLS}
    assert {row["proname"] for row in named} - tried - ELSEWHERE == {"release_tasks", "quarantine", "note_obstacle"}


async def test_one_row_for_a_call_with_many_with_counts_and_the_first_of_them(db: Database, conn: Connection):
    jobs = [await submit(conn) for _ in range(30)]
    before = len(await rows(conn))
    await cancel_jobs(db, [*jobs, uuid4(), uuid4()], reason="wrong input", by="ada")
    assert (await rows(conn))[before:] == [("cancel_jobs", "job", None, "accepted")]
    row = await last(conn)
    assert (row["actor"], row["reason"]) == ("ada", "wrong input")
    detail = row["detail"]
    assert (detail["count"], detail["accepted"], detail["refused"]) == (32, 30, {"not_found": 2})
    assert len(detail["ids"]) == 20
    assert [found.id for found in await audit(db, target=detail["ids"][3])] == [row["id"]]
    await cancel_jobs(db, [])
    assert len(await rows(conn)) == before + 1, "nothing was asked for"


async def test_what_the_machinery_does_leaves_no_row(db: Database, conn: Connection):
    await node(conn)
    await workflow(conn, name="media")
    before = await rows(conn)
    flow = await submit(conn, step("a"), step("b", after="a"))
    with_workflow = len(await rows(conn))
    await done(conn)
    await fail(conn, *await started(conn))
    await pass_time(conn, 3600)
    await node(conn)
    await finish(conn, *await started(conn))
    assert await conn.fetchval("SELECT status FROM jobs WHERE id = $1", flow) == "done"
    await submit(conn)
    await claim(conn)
    await conn.execute("SELECT accs.register_node('control/here', '{\"accs.kind\": \"control\"}')")
    await pass_time(conn, 3600)
    await conn.execute("SELECT accs.forget_node('control/here')")
    await conn.execute("SELECT accs.forget_node('control/here')")
    await conn.execute("SELECT accs.ask_node($1, 'n1', 'relay', 'n1', 'builder', '1 s')", uuid4())
    await conn.execute("SELECT accs.record_wake('n1', $1, true, NULL, 'called', '{}')", uuid4())
    await Cleanup(db, lease=LEASE, grace=LEASE, metrics=Metrics()).run_once()
    rest = (await rows(conn))[with_workflow:]
    assert [row for row in rest if row[0] != "apply_workflow"] == []
    assert before == [("apply_workflow", "workflow", "media", "accepted")]


async def test_a_schedule_that_ends_with_its_jobs_is_in_its_own_history_and_cancels_nothing_in_anybodys_name(
    db: Database, conn: Connection
):
    await workflow(conn, name="media")
    await conn.execute(f"SELECT accs.put_schedule('{NIGHTLY}', 'ada')")
    await conn.execute("SELECT accs.run_now('nightly', p_by => 'ada')")
    assert await conn.fetchval("SELECT cancelled FROM accs.end_schedule('nightly', 'ada', p_cancel => true)") == 1
    assert (await audit(db, actor="ada"))[0].action == "ended"
    assert [row[0] for row in await rows(conn)] == ["apply_workflow"]


# By which way


async def test_the_way_and_the_request_are_those_of_the_call_and_end_with_it(db: Database, conn: Connection):
    over_http = db.acting("http", "req-1")
    await pause(over_http, Pausable.SERVICE, "render", by="ada", reason="the licence server is down")
    row = await last(conn)
    assert (row["via"], row["request_id"], row["actor"]) == ("http", "req-1", "ada")
    assert row["reason"] == "the licence server is down"
    await resume(db, Pausable.SERVICE, "render", by="bob", reason="it is back")
    row = await last(conn)
    assert (row["via"], row["request_id"], row["actor"]) == ("sql", None, "bob")
    async with over_http.acquire() as connection, connection.transaction():
        await pause(Database.over(connection, like=over_http), Pausable.NODE, "n1")
    assert (await last(conn))["request_id"] == "req-1"
    await conn.execute("SET accs.via = 'root'")
    await conn.execute("SELECT accs.pause('node', 'n2')")
    assert (await last(conn))["via"] == "sql", "what is no way is none"


async def test_what_was_done_to_a_schedule_says_by_which_way(db: Database, conn: Connection):
    await workflow(conn, name="media")
    await db.acting("http", "req-7").fetch(f"SELECT accs.put_schedule('{NIGHTLY}', 'ada', 'wanted')")
    [row, *_] = await audit(db, target="nightly")
    assert (row.kind, row.actor, row.reason, row.via, row.request_id) == ("schedule", "ada", "wanted", "http", "req-7")


# The reader


async def test_the_trail_has_both_in_one_order_page_by_page_and_by_filter(db: Database, conn: Connection):
    await workflow(conn, name="media")
    await pause(db, Pausable.SERVICE, "render", by="ada")
    await conn.execute(f"SELECT accs.put_schedule('{NIGHTLY}', 'bob')")
    await resume(db, Pausable.SERVICE, "render", by="ada")
    everything = await audit(db)
    ids = [row.id for row in everything]
    assert ids == sorted(ids, reverse=True)
    assert [row.action for row in everything][:1] == ["resume"]
    assert {"schedule", "service", "workflow"} == {row.kind for row in everything}
    pages: list[AuditRow] = []
    while page := await audit(db, limit=1, before=pages[-1].id if pages else None):
        pages += page
    assert pages == everything
    assert [row.action for row in await audit(db, actor="ada")] == ["resume", "pause"]
    assert [row.action for row in await audit(db, target="render", actions=["pause"])] == ["pause"]
    assert {row.kind for row in await audit(db, kinds=["schedule"])} == {"schedule"}
    now = everything[0].ts
    assert await audit(db, until=everything[-1].ts) == []
    assert everything[0] in await audit(db, since=now)
    await pass_time(conn, 60)


# A workflow is in it however it was written


async def test_a_workflow_is_in_the_audit_by_the_verb_and_by_plain_sql(db: Database, conn: Connection):
    media = {"name": "media", "steps": [{"key": "a", "service": "x"}]}
    await apply_workflow(db, WorkflowDef.model_validate(media), created_by="ada", reason="new")
    row = await last(conn)
    assert (row["actor"], row["reason"], row["detail"]["made"]) == ("ada", "new", True)
    await apply_workflow(db, WorkflowDef.model_validate(media), created_by="bob")
    assert await last(conn) == row, "nothing has changed"
    media["steps"] = [{"key": "b", "service": "x"}]
    await apply_workflow(db, WorkflowDef.model_validate(media), created_by="bob")
    row = await last(conn)
    assert (row["actor"], row["detail"]["made"]) == ("bob", False)
    await conn.execute("INSERT INTO workflows (name, steps, created_by) SELECT 'plain', steps, 'carol' FROM workflows")
    assert (await last(conn))["actor"] == "carol"
    await conn.execute("UPDATE workflows SET is_active = false WHERE name = 'plain'")
    await conn.execute("DELETE FROM workflows WHERE name = 'plain'")
    assert [row[0] for row in (await rows(conn))[-2:]] == ["apply_workflow", "delete_workflow"]


# It stays


async def test_the_audit_is_changed_by_nobody_and_kept_for_400_days(db: Database, conn: Connection):
    await note_reveal(db, "job", "x", by="ada")
    for statement in ("UPDATE accs.audit SET actor = ''", "DELETE FROM accs.audit", "TRUNCATE accs.audit"):
        with pytest.raises(VerbRefused, match="append-only"):
            await db.fetch(statement)
    await pass_time(conn, 399 * DAY)
    await note_reveal(db, "job", "y", by="ada")
    assert await prune_audit(db) == 0
    await pass_time(conn, 2 * DAY)
    did = (await Cleanup(db, lease=LEASE, grace=LEASE, metrics=Metrics()).run_once()).did
    assert did is not None
    assert "1 old rows of the audit removed" in did
    assert [row.target for row in await audit(db)] == ["y"]
    with pytest.raises((InvalidValue, VerbRefused)):
        await db.fetch("SELECT accs.prune_audit('1 day')")


@pytest.mark.usefixtures("roles")
async def test_roles_read_the_audit_and_write_it_by_what_they_do(connect_as: As, conn: Connection):
    api = await connect_as("accs_api")
    await pause(api, Pausable.NODE, "n1")
    assert (await last(conn))["actor"] == "accs_api"
    for role in ("accs_scheduler", "accs_archive", "accs_api", "accs_reader"):
        login = await connect_as(role)
        assert len(await audit(login)) == 1
        await refused(
            login, "INSERT INTO accs.audit (actor, via, action, kind, answer) VALUES ('a', 'sql', 'a', 'a', 'accepted')"
        )
        await refused(login, "DELETE FROM accs.audit")
        await refused(login, "SELECT accs.audited('a', 'a', 'a', 'accepted', 'a', 'a')")
    await refused(await connect_as("accs_agent"), "SELECT FROM accs.audit")
