"""Every kind of error that the server can answer with, as one of ours: it says what, which, and what to do."""

import asyncio
import os
import socket
from datetime import timedelta
from uuid import UUID

import pytest

from accsd.db import (
    Database,
    Fence,
    Submission,
    adopt_tasks,
    claim_tasks,
    install,
    instantiate_due_jobs,
    mark_task_done,
    submit_job,
    upsert_heartbeat,
)
from accsd.errors import (
    Bug,
    ConfigError,
    DatabaseUnavailable,
    InvalidValue,
    NotFound,
    SchemaMismatch,
    VerbRefused,
    WorkflowInvalid,
)
from tests.support.cluster import Connection, TestServer
from tests.support.cluster import server as server  # what stands above SQL, whichever PostgreSQL it is
from tests.support.library import name_in, opened, prepared, settings_of, tcp_url, url_as

LEASE = timedelta(seconds=60)


async def test_a_wrong_password_is_an_error_of_configuration_that_does_not_show_it(server: TestServer, db_url: str):
    if server.launched is None:
        pytest.skip("the server of ACC_TEST_DB_URL may trust everybody")
    good = tcp_url(server, db_url)
    with pytest.raises(ConfigError, match="refuses this user") as caught:
        await Database.open(settings_of(good.replace(server.launched.password, "wrong-password")))
    assert "wrong-password" not in str(caught.value)
    assert caught.value.hint is not None


async def test_an_unknown_database_is_an_error_of_configuration(server: TestServer):
    with pytest.raises(ConfigError, match="does not exist"):
        await Database.open(settings_of(server.url_of("no_such_database")))


async def test_a_server_that_is_not_there_is_unavailable(db_url: str):
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        nobody = f"postgresql://a@127.0.0.1:{reserved.getsockname()[1]}/x"
        with pytest.raises(DatabaseUnavailable, match="can't be reached"):
            await Database.open(settings_of(nobody))


async def test_an_option_that_the_driver_does_not_know_is_an_error_of_configuration(db_url: str):
    with pytest.raises(ConfigError):
        await Database.open(settings_of("postgresql://a@127.0.0.1/x?sslmode=perhaps"))


async def test_a_psycopg_url_works_as_it_is(server: TestServer, db_url: str):
    async with opened(db_url.replace("postgresql://", "postgresql+psycopg://")) as db:
        assert await db.fetchval("SELECT current_database()") == name_in(db_url)


async def test_a_database_without_the_schema_says_what_to_do(server: TestServer, db_url: str, conn: Connection):
    await conn.execute("DROP SCHEMA accs CASCADE")
    async with opened(db_url) as db:
        with pytest.raises(SchemaMismatch, match="no accsd schema") as caught:
            await claim_tasks(db, "render", owner="n1", node="n1", limit=1, lease=LEASE)
    assert caught.value.hint == "run `accsd db install`"


async def test_a_role_without_the_right_is_told_which(server: TestServer, db_url: str, conn: Connection):
    await install(conn, with_roles=True)
    async with opened(url_as(server, db_url, "accs_reader")) as db:
        with pytest.raises(ConfigError, match="permission denied for function claim_tasks"):
            await claim_tasks(db, "render", owner="n1", node="n1", limit=1, lease=LEASE)


async def test_too_many_connections_is_unavailable_and_passes(server: TestServer, db_url: str, conn: Connection):
    role = f"few_{name_in(db_url)}"
    await conn.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1")
    try:
        async with opened(url_as(server, db_url, role), pooler="none", statement_timeout_sec=5) as first:
            with pytest.raises(DatabaseUnavailable, match="too many connections"):
                await Database.open(settings_of(url_as(server, db_url, role), pooler="none"))
            async with first.acquire():
                waiting = asyncio.ensure_future(first.fetchval("SELECT 1", repeatable=True))
                await asyncio.sleep(0.1)
            assert await waiting == 1
    finally:
        await conn.execute(f"DROP ROLE {role}")


async def test_a_standby_is_unavailable_because_another_server_is_the_one_to_write_to(db_url: str, conn: Connection):
    await conn.execute(f"ALTER DATABASE {name_in(db_url)} SET default_transaction_read_only = on")
    async with opened(db_url, statement_timeout_sec=0.5) as db:
        with pytest.raises(DatabaseUnavailable, match="read-only"):
            await upsert_heartbeat(db, "n1")


async def test_a_workflow_that_sql_refuses_names_the_step(db_url: str):
    steps = [{"key": "a", "service": "x", "depends_on": ["b"]}, {"key": "b", "service": "x", "depends_on": ["a"]}]
    async with opened(db_url) as db:
        with pytest.raises(WorkflowInvalid, match=r'step "(a|b)" depends on itself in a cycle'):
            await db.fetch("INSERT INTO workflows (name, steps) VALUES ('w', $1)", steps)


async def test_a_write_past_the_verbs_is_refused_with_the_verb_to_use(db_url: str):
    async with opened(db_url) as db:
        await submit_job(db, Submission(await prepared(db)))
        with pytest.raises(VerbRefused, match="must not be written by a plain UPDATE") as caught:
            await db.fetch("UPDATE jobs SET status = 'done'")
        assert caught.value.hint is not None
        assert "finish_tasks" in caught.value.hint
        with pytest.raises(VerbRefused, match="append-only"):
            await db.fetch("DELETE FROM task_events")


async def test_a_node_that_nobody_registered_is_not_found(db_url: str):
    async with opened(db_url) as db:
        with pytest.raises(NotFound, match='node "nowhere" is not registered'):
            await claim_tasks(db, "render", owner="n1", node="nowhere", limit=1, lease=LEASE)


async def test_options_that_jsonb_cannot_hold_are_an_invalid_value(db_url: str):
    refused: list[tuple[object, str]] = [
        ("\0", "Unicode"),
        ({1, 2}, "set"),
        ("\ud800", "surrogates"),
        (10**100, "64-bit"),
        (os.urandom(1 << 20).hex(), "options must be a JSON object of at most 1 MiB"),
    ]
    async with opened(db_url) as db:
        workflow = await prepared(db)
        for value, says in refused:
            with pytest.raises(InvalidValue, match=says):
                await submit_job(db, Submission(workflow, options={"a": value}))
        assert await db.fetchval("SELECT count(*) FROM jobs") == 0


async def test_an_argument_out_of_its_type_is_an_invalid_value(db_url: str):
    async with opened(db_url) as db:
        with pytest.raises(InvalidValue, match="out of int32 range"):
            await mark_task_done(db, Fence(UUID(int=1), 2**40), owner="n1")


async def test_an_idempotency_key_longer_than_an_index_takes_is_an_invalid_value(db_url: str):
    async with opened(db_url) as db:
        key = os.urandom(6000).hex()
        with pytest.raises(InvalidValue, match="index row"):
            await submit_job(db, Submission(await prepared(db), key=key))


async def test_what_nobody_foresaw_is_a_bug(db_url: str):
    async with opened(db_url) as db:
        with pytest.raises(Bug, match="syntax error"):
            await db.fetch("this is no SQL")
        with pytest.raises(Bug, match="composite"):
            await db.fetch("SELECT NULL::accs.claimed", repeatable=True)


async def test_one_row_that_no_parser_reads_does_not_stop_the_others(db_url: str, conn: Connection):
    """A plain INSERT can write JSON that PostgreSQL holds and Python does not."""
    deep = '{"x":' * 3000 + "1" + "}" * 3000
    await conn.execute("DROP TRIGGER jobs_options_check ON jobs")  # as in a database that is older than it
    async with opened(db_url) as db:
        workflow = await prepared(db)
        for options in ('{"x": 1e400, "y": 2}', '{"x": %s}' % ("9" * 5000), deep):
            await conn.execute(
                "INSERT INTO jobs (workflow_id, options) VALUES ($1, $2::text::jsonb)", workflow, options
            )
        await instantiate_due_jobs(db)
        claimed = await claim_tasks(db, "render", owner="n1", node="n1", limit=9, lease=LEASE)
        assert len(claimed) == 3
        assert claimed[0].options["y"] == 2
        assert len(await adopt_tasks(db, owner="n1", node="n1", lease=LEASE)) == 3
