"""The schema is installed once, says what it is, and is upgraded while workers run."""

import asyncio
import importlib
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from accsd.db import (
    SCHEMA_VERSION,
    Database,
    Submission,
    adopt_tasks,
    apply_workflow,
    claim_tasks,
    install,
    mark_task_done,
    mark_task_running,
    read_status,
    require_schema,
    select_runnable,
    submit_job,
    upgrade,
    upsert_heartbeat,
)
from accsd.db.install import SchemaStatus, pending_migrations
from accsd.db.schema import Migration
from accsd.errors import Bug, ConfigError, DatabaseUnavailable, SchemaMismatch
from accsd.model import WorkflowDef
from tests.conftest import Connect
from tests.support.checker import check
from tests.support.cluster import Clusters, Connection, TestServer, Unavailable, open_connection
from tests.support.eventually import eventually
from tests.support.goldens import catalog
from tests.support.library import empty_database, opened, url_as

pytestmark = pytest.mark.every_postgresql

LEASE = timedelta(seconds=60)
NEXT = SCHEMA_VERSION + 1
# The package exports the function of the same name, so the module has to be asked for.
INSTALLER = importlib.import_module("accsd.db.install")

ADD_A_COLUMN = Migration(NEXT, "add_a_column", "ALTER TABLE public.job_tasks ADD COLUMN note text")


@pytest.fixture
async def bare(server: TestServer) -> AsyncIterator[Connection]:
    """A connection to a database with nothing in it."""
    async with empty_database(server) as url:
        connection = await open_connection(url)
        try:
            yield connection
        finally:
            await connection.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Migrations that wait for a lock a twentieth of the usual time."""
    monkeypatch.setattr(INSTALLER, "_LOCK_TIMEOUT", "SET LOCAL lock_timeout = '100ms'")
    monkeypatch.setattr(INSTALLER, "_PAUSE_SEC", 0.05)


async def waiting_for_locks(conn: Connection, how_many: int) -> None:
    async def wait() -> bool:
        return how_many <= await conn.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )

    await eventually(wait, what=f"{how_many} sessions waiting for a lock")


# Installing


async def test_installing_twice_makes_it_once_and_status_tells(bare: Connection):
    assert await read_status(bare) == SchemaStatus(found=None, expected=SCHEMA_VERSION)
    assert await install(bare)
    before = await catalog(bare)
    assert not await install(bare)
    assert await catalog(bare) == before
    status = await read_status(bare)
    assert status.is_current
    assert (status.channel_prefix, status.event_partitions, status.literal_indexes) == ("accs_", 5, False)


async def test_two_installers_at_once_install_once(server: TestServer):
    async with empty_database(server) as url:
        watcher, one, two = [await open_connection(url) for _ in range(3)]
        try:
            async with watcher.transaction():
                await watcher.execute("CREATE SCHEMA accs")
                both = [asyncio.ensure_future(install(session)) for session in (one, two)]
                await waiting_for_locks(watcher, 2)
                await watcher.execute("DROP SCHEMA accs")
            assert sorted(await asyncio.gather(*both)) == [False, True]
        finally:
            for connection in (watcher, one, two):
                await connection.close()


async def test_what_the_database_must_know_of_the_settings_is_stored_and_changed(db_url: str, conn: Connection):
    await install(conn, channel_prefix="studio_", backoff_base_sec=2.5)
    assert await conn.fetchrow("SELECT accs.channel_prefix(), accs.backoff_base()") == ("studio_", 2.5)
    assert await conn.fetchval("SELECT accs.backoff_seconds(NULL, 3)") == 10
    assert (await read_status(conn)).channel_prefix == "studio_"
    await install(conn)
    assert await conn.fetchrow("SELECT accs.channel_prefix(), accs.backoff_base()") == ("accs_", 15)


async def test_a_changed_prefix_reaches_the_sessions_that_are_open(db_url: str, connect: Connect, conn: Connection):
    heard: list[str] = []
    ear = await connect()
    for channel in ("accs_builder", "accs_x", "studio_builder", "studio_x"):
        await ear.add_listener(channel, lambda *told: heard.append(str(told[2])))
    await conn.execute('INSERT INTO workflows (name, steps) VALUES (\'w\', \'[{"key": "a", "service": "x"}]\')')

    async def submit_both_ways() -> set[str]:
        heard.clear()
        for _ in range(7):  # past the custom plans, into the generic ones
            await conn.execute("INSERT INTO jobs (workflow_id) SELECT id FROM workflows")
            await conn.execute("SELECT accs.submit('w'), accs.resume('service', 'x')")
            await conn.execute("SELECT accs.pause('service', 'x'), accs.resume('service', 'x')")
        await ear.execute("SELECT 1")
        return set(heard)

    assert await submit_both_ways() == {"accs_builder", "accs_x"}
    await install(await connect(), channel_prefix="studio_")
    assert await submit_both_ways() == {"studio_builder", "studio_x"}


async def test_the_literal_indexes_are_added_on_demand(conn: Connection):
    await install(conn, literal_indexes=True)
    await install(conn, literal_indexes=True)
    rows = await conn.fetch(
        "SELECT indexdef FROM pg_indexes WHERE tablename IN ('jobs', 'job_tasks', 'task_events')"
        " AND indexdef ~ 'status|job_task_id'"
    )
    assert {row[0].partition("USING btree ")[2] for row in rows} == {
        "(status, scheduled_at)",
        "(service_name, status, job_id)",
        "(job_id, status)",
        "(job_task_id, ts DESC)",
    }
    assert (await read_status(conn)).literal_indexes


async def test_a_database_that_belongs_to_something_else_is_left_alone(bare: Connection):
    await bare.execute("CREATE TABLE jobs (mine int)")
    with pytest.raises(ConfigError, match='"jobs" already exists') as caught:
        await install(bare)
    assert caught.value.hint == "accsd needs a database of its own"
    assert await bare.fetchval("SELECT to_regnamespace('accs')") is None


async def test_an_installer_without_the_right_is_told_so(server: TestServer, bare: Connection):
    role = f"guest_{await bare.fetchval('SELECT current_database()')}"
    await bare.execute(f"CREATE ROLE {role} LOGIN")
    try:
        guest = await open_connection(url_as(server, server.url_of(role.removeprefix("guest_")), role))
        try:
            with pytest.raises(ConfigError, match="permission denied for database"):
                await install(guest)
        finally:
            await guest.close()
    finally:
        await bare.execute(f"DROP ROLE {role}")


async def test_both_versions_of_postgresql_hold_the_same_schema(clusters: Clusters):
    found: list[dict[str, list[str]]] = []
    for name in ("pg18", "pg15"):
        try:
            server = clusters.get(name)
        except Unavailable as reason:
            pytest.skip(str(reason))
        async with server.cloned() as url:
            connection = await open_connection(url)
            found.append(await catalog(connection))
            await connection.close()
    for kind, entries in found[0].items():
        assert entries == found[1][kind], kind
        assert entries


# Upgrading


async def work(db: Database, node: str, stop: asyncio.Event) -> int:
    """A worker that lives through an upgrade: submits, looks, claims, finishes, until it is told to stop."""
    finished = 0
    await upsert_heartbeat(db, node)
    steps = [{"key": "a", "service": "x"}, {"key": "b", "service": "x", "depends_on": ["a"]}]
    workflow = await apply_workflow(db, WorkflowDef.model_validate({"name": node, "steps": steps}))
    while not stop.is_set():
        await submit_job(db, Submission(workflow))
        await select_runnable(db, "x", 3)
        await claim_tasks(db, "x", owner=node, node=node, limit=2, lease=LEASE)
        for task in await adopt_tasks(db, owner=node, node=node, lease=LEASE):
            (await mark_task_running(db, task.fence, owner=node)).or_raise("start")
            (await mark_task_done(db, task.fence, owner=node, results={})).or_raise("finish")
            finished += 1
    return finished


async def test_an_upgrade_with_live_workers_around_fails_nobody_and_loses_nothing(db_url: str, conn: Connection):
    claim: str = await conn.fetchval("SELECT pg_get_functiondef('accs.claim_tasks'::regproc)")
    replaced = claim.replace("'node', p_node)", "'node', p_node, 'since', 'next')")
    assert replaced != claim
    step = Migration(NEXT, "note", f"{ADD_A_COLUMN.sql}; {replaced}")
    stop = asyncio.Event()
    async with opened(db_url, pool_size=8) as db:
        workers = [asyncio.ensure_future(work(db, f"n{i}", stop)) for i in range(8)]
        claims = "SELECT count(*) > 20 FROM task_events WHERE data ->> 'to' = 'starting' AND data ? 'since' = $1"
        await eventually(lambda: conn.fetchval(claims, False), within=20, what="claims before the upgrade")
        assert await upgrade(conn, [step]) == [step]
        await eventually(lambda: conn.fetchval(claims, True), within=20, what="claims after the upgrade")
        stop.set()
        finished = sum(await asyncio.gather(*workers))
        with pytest.raises(SchemaMismatch, match="newer"):
            await require_schema(db)
    assert await conn.fetchval("SELECT count(*) FROM job_tasks WHERE status = 'done'") == finished
    assert await conn.fetchval("SELECT count(*) FROM job_tasks WHERE note IS NULL") >= finished
    await check(conn)


async def test_a_call_that_a_migration_overtakes_is_sent_again(db_url: str, conn: Connection):
    """Planned before, run after: PostgreSQL finds that the function's rows have another shape than it was told."""
    async with opened(db_url, pool_size=1) as db:
        for table, call in (
            ("job_tasks", lambda: select_runnable(db, "x")),
            ("nodes", lambda: upsert_heartbeat(db, "n1")),
        ):
            await call()
            async with conn.transaction():
                await conn.execute(f"ALTER TABLE {table} ADD COLUMN note text")
                overtaken = asyncio.ensure_future(call())
                await waiting_for_locks(conn, 1)
            await overtaken


async def test_two_upgrades_at_once_apply_each_step_once(connect: Connect, conn: Connection):
    steps = [ADD_A_COLUMN, Migration(NEXT + 1, "another", "ALTER TABLE public.jobs ADD COLUMN note text")]
    sessions = await connect(), await connect()
    async with conn.transaction():
        await conn.execute("SELECT FROM public.job_tasks")  # which keeps the first step waiting
        both = [asyncio.ensure_future(upgrade(session, steps)) for session in sessions]
        await waiting_for_locks(conn, 2)
    one, two = await asyncio.gather(*both)
    assert sorted(step.version for step in one + two) == [NEXT, NEXT + 1]
    assert await conn.fetch("SELECT version FROM accs.schema_versions ORDER BY 1") == [(1,), (NEXT,), (NEXT + 1,)]


@pytest.mark.usefixtures("impatient")
async def test_a_step_that_gets_no_lock_lets_the_workers_pass_and_tries_again(
    db_url: str, connect: Connect, conn: Connection
):
    reader = await connect()
    async with opened(db_url) as db:
        await upsert_heartbeat(db, "n1")
        workflow = await apply_workflow(
            db, WorkflowDef.model_validate({"name": "w", "steps": [{"key": "a", "service": "x"}]})
        )
        async with reader.transaction():
            await reader.execute("SELECT FROM public.job_tasks")
            upgrading = asyncio.ensure_future(upgrade(conn, [ADD_A_COLUMN]))
            for _ in range(5):  # each comes to stand behind the migration's request, and passes when that gives up
                await waiting_for_locks(reader, 1)
                await asyncio.wait_for(submit_job(db, Submission(workflow)), 2)
            assert not upgrading.done()
        assert await upgrading == [ADD_A_COLUMN]
        assert len(await claim_tasks(db, "x", owner="n1", node="n1", limit=9, lease=LEASE)) == 5


@pytest.mark.usefixtures("impatient")
async def test_a_step_that_never_gets_its_lock_gives_up_and_says_where_to_look(
    monkeypatch: pytest.MonkeyPatch, connect: Connect, conn: Connection
):
    monkeypatch.setattr(INSTALLER, "_TRIES", 2)
    reader = await connect()
    async with reader.transaction():
        await reader.execute("SELECT FROM public.job_tasks")
        with pytest.raises(DatabaseUnavailable, match="did not get its locks in 2 tries") as caught:
            await upgrade(conn, [ADD_A_COLUMN])
    assert "pg_stat_activity" in str(caught.value.hint)


async def test_a_step_that_fails_leaves_nothing_behind(conn: Connection):
    before = await catalog(conn)
    broken = Migration(NEXT, "broken", f"{ADD_A_COLUMN.sql}; CREATE TABLE accs.half (); SELECT 1 / 0")
    with pytest.raises(Bug, match=r"migration 2 \(broken\) failed and was undone: division by zero"):
        await upgrade(conn, [broken])
    assert await catalog(conn) == before
    assert (await read_status(conn)).is_current
    assert await upgrade(conn, [ADD_A_COLUMN]) == [ADD_A_COLUMN], "a corrected one can follow"


async def test_an_upgrade_without_the_right_is_told_so(server: TestServer, db_url: str, conn: Connection):
    await install(conn, with_roles=True)
    agent = await open_connection(url_as(server, db_url, "accs_agent"))
    try:
        with pytest.raises(ConfigError, match="permission denied for table schema_versions"):
            await upgrade(agent, [ADD_A_COLUMN])
    finally:
        await agent.close()


async def test_what_a_step_adds_is_closed_to_the_public_and_open_to_the_roles(server: TestServer, conn: Connection):
    await install(conn, with_roles=True)
    step = Migration(
        NEXT,
        "more",
        "CREATE TABLE accs.more (id int); CREATE FUNCTION accs.fresh() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    )
    await upgrade(conn, [step])
    assert not await conn.fetchval("SELECT has_function_privilege('public', 'accs.fresh()', 'EXECUTE')")
    assert await conn.fetchval("SELECT has_table_privilege('accs_reader', 'accs.more', 'SELECT')")


async def test_a_plan_says_what_would_be_done_and_does_nothing(conn: Connection):
    assert await pending_migrations(conn) == [], "this is the newest version"
    assert await pending_migrations(conn, [ADD_A_COLUMN]) == [ADD_A_COLUMN]
    assert (await read_status(conn)).is_current


async def test_a_gap_in_the_migrations_is_refused(conn: Connection, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(Bug, match=f"no chain of migrations leads from version 1 to {NEXT + 1}"):
        await pending_migrations(conn, [Migration(NEXT + 1, "too_far", "")])
    monkeypatch.setattr(INSTALLER, "SCHEMA_VERSION", NEXT)
    with pytest.raises(Bug, match=f"no chain of migrations leads from version 1 to {NEXT}"):
        await pending_migrations(conn, [])


async def test_a_newer_schema_than_ours_is_refused_everywhere(db_url: str, conn: Connection):
    await conn.execute("INSERT INTO accs.schema_versions (version) VALUES (99)")
    async with opened(db_url) as db:
        for refused in (require_schema(db), install(conn), upgrade(conn)):
            with pytest.raises(SchemaMismatch, match="schema version 99, newer than 1 of this accsd") as caught:
                await refused
            assert caught.value.hint == "upgrade accsd on this machine"
    assert not (await read_status(conn)).is_current


async def test_an_older_schema_than_ours_is_refused_until_it_is_upgraded(
    db_url: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(INSTALLER, "SCHEMA_VERSION", NEXT)
    async with opened(db_url) as db:
        for refused in (require_schema(db), install(conn)):
            with pytest.raises(SchemaMismatch, match=f"schema version 1, older than {NEXT}") as caught:
                await refused
            assert caught.value.hint == "run `accsd db upgrade`"
        await upgrade(conn, [ADD_A_COLUMN])
        await require_schema(db)


async def test_a_database_without_a_schema_is_to_be_installed_not_upgraded(bare: Connection):
    with pytest.raises(SchemaMismatch) as caught:
        await upgrade(bare)
    assert caught.value.hint == "run `accsd db install`"
