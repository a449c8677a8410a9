"""Least privilege: each role can do its work through the verbs, and nothing past them (SECURITY.md).

These tests connect as the roles, by the socket of a server of our own.
"""

from datetime import timedelta
from uuid import uuid4

import asyncpg
import pytest

from accsd.db import (
    Database,
    Done,
    Failed,
    Fence,
    NextDue,
    Pausable,
    Submission,
    append_task_event,
    apply_workflow,
    builder_outlook,
    cancel_jobs,
    claim_tasks,
    close_jobs,
    dismiss,
    finish_tasks,
    install,
    instantiate_due_jobs,
    make_months,
    mark_task_done,
    outbox,
    pause,
    reclaim_tasks,
    redrive,
    repair,
    require_schema,
    resume,
    retry_jobs,
    select_runnable,
    set_concurrency_limit,
    submit_job,
    upsert_heartbeat,
    workflow_id,
)
from accsd.db.schema import roles_sql
from accsd.errors import ConfigError, VerbRefused
from accsd.model import WorkflowDef
from tests.support.checker import check
from tests.support.cluster import Connection, TestServer, open_connection
from tests.support.goldens import compare
from tests.support.library import empty_database, opened, url_as
from tests.support.planted import VERB_PATH
from tests.support.roles import As, callable_by, refused, refused_tables
from tests.support.roles import connect_as as connect_as
from tests.support.roles import roles as roles

pytestmark = [pytest.mark.usefixtures("roles"), pytest.mark.every_postgresql]

LEASE = timedelta(seconds=60)
ROLES = ("accs_scheduler", "accs_archive", "accs_agent", "accs_api", "accs_gateway", "accs_reader")
CLIP = WorkflowDef.model_validate(
    {"name": "clip", "steps": [{"key": "a", "service": "x"}, {"key": "b", "service": "x", "depends_on": ["a"]}]}
)


# The scheduler


async def test_a_scheduler_submits_by_plain_inserts(connect_as: As, conn: Connection):
    scheduler = await connect_as("accs_scheduler")
    steps = CLIP.steps_document()
    await scheduler.fetch("INSERT INTO workflows (name, steps) VALUES ('clip', $1)", steps)
    job = await scheduler.fetchval("INSERT INTO jobs (workflow_id) SELECT id FROM workflows RETURNING id")
    assert await conn.fetchval("SELECT count(*) FROM accs.steps") == 2, "compiled by the trigger"
    assert [made.job_id for made in await instantiate_due_jobs(scheduler)] == [job]
    assert len(await select_runnable(scheduler, "x")) == 1

    later = await scheduler.fetchval(
        "INSERT INTO jobs (workflow_id, scheduled_at) SELECT id, now() + '1 h' FROM workflows RETURNING id"
    )
    await scheduler.fetch("SELECT accs.change_jobs(ARRAY[$1::uuid], 3, '{}', now())", later)
    assert [made.job_id for made in await instantiate_due_jobs(scheduler)] == [later]
    await scheduler.fetch("UPDATE workflows SET steps = $1, is_active = false", steps)
    await check(conn)


async def test_no_login_opens_the_guard_by_what_it_sets(connect_as: As, conn: Connection):
    """Whoever may write the table by a grant of its own, and pins the path of the verbs: it is not the owner."""
    scheduler = await connect_as("accs_scheduler")
    job = await submit_job(scheduler, Submission(await apply_workflow(scheduler, CLIP)))
    await conn.execute("GRANT ALL ON jobs, job_tasks, task_events TO accs_scheduler")
    async with scheduler.acquire() as session:
        await session.execute(f"SET search_path = {VERB_PATH}")
        await session.execute("SET accs.verb = 'on'")
        for statement in (
            f"UPDATE public.jobs SET status = 'done' WHERE id = '{job}'",
            f"UPDATE public.jobs SET priority = 77 WHERE id = '{job}'",
            "UPDATE public.job_tasks SET lane = 1",
            "INSERT INTO public.jobs (workflow_id, status) SELECT id, 'done' FROM public.workflows",
            "DELETE FROM public.job_tasks",
            "UPDATE public.task_events SET message = ''",
        ):
            with pytest.raises(asyncpg.PostgresError) as caught:
                await session.execute(statement)
            assert caught.value.sqlstate in ("AC002", "AC005"), statement
        await session.execute("RESET ALL")
    await check(conn)


async def test_a_reader_can_hold_no_lock_that_work_waits_for(connect_as: As, conn: Connection):
    reader = await connect_as("accs_reader")
    for table in ("locks", "slots", "concurrency_keys", "live", "schema_versions"):
        await refused(reader, f"SELECT FROM accs.{table} FOR SHARE")
        await refused(reader, f"DO $$ BEGIN LOCK TABLE accs.{table} IN SHARE MODE; END $$")
    sources = await conn.fetch(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'accs'::regnamespace AND prosrc ~* 'pg_(try_)?advisory'"
    )
    assert sources == [], "an advisory lock is anybody's"


async def test_only_a_scheduler_resolves(connect_as: As):
    for role in ROLES:
        db = await connect_as(role)
        for call in (
            "tasks_to_resolve()",
            "step_results('{}', '{}')",
            "resolve_tasks('[]')",
            "fan_out('01a1eb32-2289-71b2-8000-003000000000', 0, '{}')",
            "expire_results()",
        ):
            if role == "accs_scheduler":
                await db.fetch(f"SELECT * FROM accs.{call}")
            else:
                await refused(db, f"SELECT * FROM accs.{call}")


async def test_a_scheduler_keeps_the_house(connect_as: As, conn: Connection):
    scheduler = await connect_as("accs_scheduler")
    workflow = await apply_workflow(scheduler, CLIP)
    assert await apply_workflow(scheduler, CLIP) == workflow
    job = await submit_job(scheduler, Submission(workflow))
    assert await reclaim_tasks(scheduler) == {}
    assert await builder_outlook(scheduler) == NextDue(is_due=False, next_job=None, next_lease=None)
    assert await repair(scheduler) == {}
    assert (await close_jobs(scheduler, [job]))[job].reason == "tasks_open"
    assert await make_months(scheduler, months_ahead=5) != []
    await scheduler.fetch("INSERT INTO jobs (workflow_id) SELECT id FROM workflows")
    assert await conn.fetchval("SELECT count(*) FROM pg_inherits WHERE inhparent = 'task_events'::regclass") == 7
    assert await conn.fetchval(
        "SELECT relowner::regrole::text FROM pg_class WHERE relname = 'task_events_default'"
    ) == (
        await conn.fetchval("SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relname ~ '^task_events_20'")
    )


async def test_a_scheduler_moves_no_state_by_hand(connect_as: As):
    scheduler = await connect_as("accs_scheduler")
    await submit_job(scheduler, Submission(await apply_workflow(scheduler, CLIP)))
    for statement in (
        "UPDATE jobs SET status = 'done'",
        "UPDATE jobs SET open_tasks = 0",
        "UPDATE jobs SET priority = 77",
        "INSERT INTO jobs (workflow_id, status) SELECT id, 'done' FROM workflows",
        "SELECT accs.drop_archived(1)",
        "SELECT accs.delete_finished_jobs('1 s', '{}', '{}')",
        "UPDATE job_tasks SET status = 'done'",
        "UPDATE workflows SET id = accs.new_id()",
        "DELETE FROM jobs",
        "DELETE FROM workflows",
        "TRUNCATE jobs CASCADE",
        "INSERT INTO job_tasks DEFAULT VALUES",
        "INSERT INTO task_events (job_id, source, type) SELECT id, 'me', 'log' FROM jobs",
        "UPDATE task_events SET message = ''",
        "DELETE FROM task_events",
        "SELECT accs.reject_job(id, 'a', 'b') FROM jobs",
    ):
        await refused(scheduler, statement)


async def test_a_scheduler_does_tools_and_nothing_else_and_an_agent_does_no_tools(connect_as: As):
    """AGREED, "Database roles": the verbs of an attempt, for the service accs only."""
    scheduler, agent = await connect_as("accs_scheduler"), await connect_as("accs_agent")
    await upsert_heartbeat(scheduler, "control/here", max_concurrency={"accs": 1})
    await upsert_heartbeat(agent, "n1")
    await upsert_heartbeat(agent, "control/mine")

    async def claims(db: Database, node: str, service: str) -> None:
        await claim_tasks(db, service, owner=node, node=node, limit=1, lease=timedelta(minutes=1))

    await claims(scheduler, "control/here", "accs")
    await claims(agent, "n1", "render")
    for db, node, service in (
        (scheduler, "control/here", "render"),
        (scheduler, "n1", "render"),
        (scheduler, "n1", "accs"),
        (agent, "n1", "accs"),
        (agent, "control/mine", "accs"),
        (agent, "control/here", "accs"),
    ):
        with pytest.raises(ConfigError, match="not_your_node"):
            await claims(db, node, service)
    with pytest.raises(ConfigError, match="not_your_node"):
        await finish_tasks(scheduler, [Done(Fence(uuid4(), 1))], owner="n1")


# The gateway, the reader


async def test_a_gateway_submits_and_operates_through_verbs(connect_as: As, db_url: str, conn: Connection):
    async with opened(db_url) as owner:
        await apply_workflow(owner, CLIP)
        await upsert_heartbeat(owner, "n1")
        api = await connect_as("accs_api")
        job = await submit_job(api, Submission(await workflow_id(api, "clip")))
        assert await pause(api, Pausable.NODE, "n1") == "accepted"
        assert await resume(api, Pausable.NODE, "n1") == "accepted"
        assert await set_concurrency_limit(api, "k", 2) == "accepted"
        [task] = await claim_tasks(owner, "x", owner="n1", node="n1", limit=1, lease=LEASE)
        await finish_tasks(owner, [Failed(task.fence, "bad", permanent=True)], owner="n1")
    letter = await api.fetchval("SELECT id FROM dead_letters")
    assert [answer.verdict for answer in await redrive(api, [letter])] == ["accepted"]
    assert [answer.verdict for answer in await dismiss(api, [letter])] == ["refused"]
    assert (await cancel_jobs(api, [job]))[job].is_effective
    assert (await retry_jobs(api, [job]))[job].is_effective
    await append_task_event(api, job, "asked for", source="api")
    assert await api.fetchval("SELECT count(*) FROM accs.waiting") == 1
    await refused_tables(api, but_reading=True)
    await refused(api, "SELECT * FROM accs.claim_tasks('x', 'me', 'n1', 1, '1 min')")
    await refused(api, "SELECT * FROM accs.reclaim_tasks()")
    await check(conn)


async def test_a_reader_reads_and_that_is_all(connect_as: As, conn: Connection):
    reader = await connect_as("accs_reader")
    await require_schema(reader)
    await reader.fetch("SELECT * FROM accs.service_load")
    await reader.fetch("SELECT * FROM accs.scheduler_health()")
    await refused_tables(reader, but_reading=True)
    assert await callable_by("accs_reader", conn) == {
        "clock",
        "channel_prefix",
        "backoff_base",
        "months_of",
        "next_occurrence",
        "scheduler_health",
        "why",
    }


# For everybody


async def test_what_each_role_may_do_is_the_golden_one(conn: Connection):
    """Functions, tables, columns and sequences. (Not the partitions, which are named by their months.)"""
    rows = await conn.fetch(
        """SELECT format('%s: %s %s', r.rolname, a.privilege_type, o.name)
             FROM (SELECT p.oid::regprocedure::text AS name, p.proacl AS acl FROM pg_proc p
                    WHERE p.pronamespace = 'accs'::regnamespace
                   UNION ALL
                   SELECT c.oid::regclass::text, c.relacl FROM pg_class c
                    WHERE c.relnamespace IN ('public'::regnamespace, 'accs'::regnamespace) AND NOT c.relispartition
                   UNION ALL
                   SELECT format('%s.%s', c.oid::regclass, t.attname), t.attacl FROM pg_class c
                     JOIN pg_attribute t ON t.attrelid = c.oid
                    WHERE c.relnamespace IN ('public'::regnamespace, 'accs'::regnamespace) AND NOT c.relispartition) o,
                  LATERAL aclexplode(o.acl) a JOIN pg_roles r ON r.oid = a.grantee
            WHERE r.rolname = ANY ($1)""",
        list(ROLES),
    )
    compare("grants", (row[0] for row in rows))


async def test_history_is_changed_by_nobody_not_even_the_owner(db_url: str, conn: Connection):
    async with opened(db_url) as owner:
        await submit_job(owner, Submission(await apply_workflow(owner, CLIP)))
        assert await owner.fetchval("SELECT count(*) FROM task_events") == 1
        for statement in (
            "UPDATE task_events SET message = ''",
            "DELETE FROM task_events",
            "TRUNCATE task_events",
            "TRUNCATE task_events_default",
        ):
            with pytest.raises(VerbRefused, match="append-only"):
                await owner.fetch(statement)
        month = await conn.fetchval("SELECT tableoid::regclass::text FROM task_events")
        for statement in (f"DELETE FROM {month}", f"TRUNCATE {month}", f"UPDATE {month} SET message = ''"):
            with pytest.raises(VerbRefused, match="append-only"):
                await owner.fetch(statement)


async def test_no_function_is_open_to_the_public(conn: Connection):
    assert await callable_by("public", conn) == set()
    assert not await conn.fetchval("SELECT has_schema_privilege('public', 'accs', 'USAGE')")
    open_tables = await conn.fetch(
        "SELECT oid::regclass FROM pg_class WHERE relnamespace IN ('public'::regnamespace, 'accs'::regnamespace)"
        " AND relname <> 'test_clock' AND relkind IN ('r', 'p', 'v') AND has_table_privilege('public', oid, 'SELECT')"
    )
    assert open_tables == []


async def test_what_runs_as_the_owner_has_a_fixed_search_path(conn: Connection):
    rows = await conn.fetch(
        "SELECT proname, proconfig FROM pg_proc WHERE pronamespace = 'accs'::regnamespace AND prosecdef"
        " AND proowner <> 'accs_probe'::regrole"
    )
    assert len(rows) > 20
    for row in rows:
        pinned = {"search_path=pg_catalog, pg_temp", f"search_path={VERB_PATH}"}
        assert pinned & set(row["proconfig"]), row["proname"]


async def test_the_verbs_and_only_they_run_as_the_owner(conn: Connection):
    """But for triggers, which nobody calls."""
    rows = await conn.fetch(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'accs'::regnamespace AND prosecdef"
        " AND prorettype <> 'trigger'::regtype AND proowner <> 'accs_probe'::regrole"
    )
    declared = await conn.fetch("SELECT name FROM accs.verbs WHERE may <> '{}'")
    assert len(declared) > 60
    assert {row["proname"] for row in rows} == {row["name"] for row in declared}


async def test_a_table_of_the_callers_own_does_not_catch_what_a_verb_does(connect_as: As, conn: Connection):
    """The classic trap of functions that run as their owner: a temporary table under the name of a real one."""
    api = await connect_as("accs_api")
    await conn.execute("SELECT accs.register_node('n1')")
    async with api.acquire() as connection:
        await connection.execute("CREATE TEMPORARY TABLE pauses (kind text, name text, reason text, by text)")
        await connection.execute("SET search_path = pg_temp, accs, public")
        assert await pause(Database.over(connection), Pausable.NODE, "n1") == "accepted"
        assert await connection.fetchval("SELECT count(*) FROM pg_temp.pauses") == 0
        await connection.execute("DROP TABLE pg_temp.pauses; RESET search_path")


async def test_the_control_host_runs_the_outbox_and_nobody_else_does(connect_as: As):
    scheduler, api, agent, reader = [
        await connect_as(f"accs_{name}") for name in ("scheduler", "api", "agent", "reader")
    ]
    await outbox.register_target(scheduler, "studio", address="https://x", events=["job.submitted"], workflows=None)
    for submitter in (scheduler, api):
        await submit_job(submitter, Submission(await apply_workflow(scheduler, CLIP)))
    await scheduler.fetch("INSERT INTO jobs (workflow_id) SELECT id FROM workflows")
    claim = uuid4()
    events = await outbox.claim_events(scheduler, "studio", claim, lease=LEASE, jobs=5, each=5)
    assert [event.event for event in events] == ["job.submitted"] * 3
    sent = [outbox.Settlement(event.id, outbox.DeliveryOutcome.DEAD, error="no") for event in events]
    await outbox.settle_events(scheduler, "studio", claim, sent, outbox.Breaker(5, LEASE, LEASE))
    assert len(await outbox.redrive_events(api, None)) == 3
    assert await outbox.outbox_outlook(scheduler, "studio") is not None
    assert await outbox.count_pending(scheduler) == len(await outbox.events(reader)) == 3
    assert await outbox.prune_events(scheduler, keep=LEASE, keep_dead=LEASE) == 0
    for db in (agent, reader):
        await refused(db, "SELECT accs.redrive_outbox()")
        await refused(db, f"SELECT accs.claim_outbox('studio', '{claim}', '1 s', 1, 1)")
        await refused(db, "UPDATE outbox_events SET status = 'delivered'")
    await refused(agent, "SELECT FROM outbox_events")
    await refused(api, "SELECT accs.register_outbox_target('mine', 'x', '{job.done}')")


async def test_each_role_has_its_timeouts(connect_as: As):
    for role in ROLES:
        db = await connect_as(role)
        names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
        assert [await db.fetchval("SELECT current_setting($1)", name) for name in names] == ["1min", "20s", "30s"]


async def test_the_step_can_be_repeated_and_keeps_what_an_operator_set(conn: Connection, connect_as: As):
    await conn.execute("ALTER ROLE accs_reader SET statement_timeout = '5s'")
    try:
        await conn.execute(roles_sql())
        assert not await install(conn, with_roles=True)
        reader = await connect_as("accs_reader")
        assert await reader.fetchval("SHOW statement_timeout") == "5s"
    finally:
        await conn.execute("ALTER ROLE accs_reader SET statement_timeout = '60s'")


async def test_the_roles_work_in_a_second_database_of_the_cluster(server: TestServer):
    async with empty_database(server) as url:
        owner = await open_connection(url)
        try:
            assert await install(owner)
            for allowed in (False, True):
                agent = await open_connection(url_as(server, url, "accs_agent"))
                try:
                    if allowed:
                        await upsert_heartbeat(Database.over(agent), "n1")
                    else:
                        with pytest.raises(asyncpg.InsufficientPrivilegeError):
                            await agent.execute("SELECT accs.register_node('n1')")
                finally:
                    await agent.close()
                await install(owner, with_roles=True)
        finally:
            await owner.close()


async def test_a_stranger_to_the_roles_gets_nowhere(server: TestServer, db_url: str, conn: Connection):
    role = f"stranger_{await conn.fetchval('SELECT current_database()')}"
    await conn.execute(f"CREATE ROLE {role} LOGIN")
    try:
        async with opened(url_as(server, db_url, role)) as db:
            with pytest.raises(ConfigError, match="permission denied for schema accs"):
                await claim_tasks(db, "x", owner="n1", node="n1", limit=1, lease=LEASE)
            with pytest.raises(ConfigError, match="permission denied for table jobs"):
                await db.fetch("SELECT FROM jobs")
            with pytest.raises(ConfigError):
                await require_schema(db)
            with pytest.raises(ConfigError):
                await mark_task_done(db, Fence((await conn.fetchval("SELECT accs.new_id()")), 1), owner="n1")
    finally:
        await conn.execute(f"DROP ROLE {role}")
