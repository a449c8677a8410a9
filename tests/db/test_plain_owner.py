"""Installed by an owner who is no superuser, as on every stock PostgreSQL: nothing is granted, and all of it works."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from accsd.db import (
    Submission,
    apply_workflow,
    claim_tasks,
    finish_tasks,
    install,
    mark_task_done,
    mark_task_running,
    submit_job,
    upsert_heartbeat,
)
from accsd.db.conditions import ask_database
from accsd.db.logins import login_of, make_node_login
from accsd.errors import ConfigError, VerbRefused
from accsd.model import WorkflowDef
from tests.support.checker import check
from tests.support.cluster import TestServer, open_connection
from tests.support.conditions import refuse_escapes
from tests.support.library import opened, settings_of, url_as

pytestmark = pytest.mark.every_postgresql

ONE = WorkflowDef.model_validate({"name": "one", "steps": [{"key": "a", "service": "x"}]})
LEASE = timedelta(seconds=60)


@asynccontextmanager
async def plain_owner(server: TestServer, *options: str) -> AsyncGenerator[str]:
    """The URL of an empty database for its owner, as `createuser` and `createdb --owner` make them."""
    if server.launched is None:
        pytest.skip("roles belong to the whole cluster, and the one of ACC_TEST_DB_URL is not ours")
    owner, name = f"owner_{uuid4().hex[:12]}", f"e_{uuid4().hex[:16]}"
    admin = await asyncpg.connect(server.url_of("postgres"))
    try:
        await admin.execute(f"CREATE ROLE {owner} LOGIN NOSUPERUSER {' '.join(options)}")
        await admin.execute(f"CREATE DATABASE {name} OWNER {owner}")
        try:
            yield url_as(server, server.url_of(name), owner)
        finally:
            await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
            await admin.execute(f"DROP ROLE {owner}")
    finally:
        await admin.close()


async def test_a_plain_owner_installs_and_a_job_runs_through(server: TestServer):
    async with plain_owner(server) as url:
        session = await open_connection(url)
        assert await install(session)
        assert not await install(session), "a second time changes nothing"
        async with opened(url) as db:
            await submit_job(db, Submission(await apply_workflow(db, ONE)))
            await db.fetch("INSERT INTO jobs (workflow_id) SELECT id FROM workflows")
            await upsert_heartbeat(db, "n1")
            [task] = await claim_tasks(db, "x", owner="n1", node="n1", limit=5, lease=LEASE)
            await mark_task_running(db, task.fence, owner="n1")
            (await mark_task_done(db, task.fence, owner="n1")).or_raise("finish")
            for statement in (
                "UPDATE jobs SET status = 'error'",
                "UPDATE job_tasks SET lane = 1",
                "INSERT INTO jobs (workflow_id, status) SELECT id, 'done' FROM workflows",
                "DELETE FROM jobs",
                "UPDATE task_events SET message = ''",
            ):
                with pytest.raises(VerbRefused):
                    await db.fetch(statement)
        await check(session)
        await session.close()


async def test_an_owner_who_may_make_roles_makes_them_and_they_work(server: TestServer):
    async with plain_owner(server, "CREATEROLE") as url:
        session = await open_connection(url)
        existing = await session.fetchval("SELECT to_regrole('accs_agent') IS NOT NULL")
        await install(session, with_roles=True)
        async with opened(url) as owner, opened(url_as(server, url, "accs_agent")) as agent:
            await submit_job(owner, Submission(await apply_workflow(owner, ONE)))
            await upsert_heartbeat(agent, "n1")
            [task] = await claim_tasks(agent, "x", owner="n1", node="n1", limit=1, lease=LEASE, start=True)
            await finish_tasks(agent, [], owner="n1")
            (await mark_task_done(agent, task.fence, owner="n1")).or_raise("finish")
        await check(session)
        await session.close()
        await drop_grants(server, url, drop_roles=not existing)


async def test_no_statement_leaves_its_role_where_the_owner_is_no_superuser(server: TestServer):
    async with plain_owner(server, "CREATEROLE") as url:
        session = await open_connection(url)
        existing = await session.fetchval("SELECT to_regrole('accs_probe') IS NOT NULL")
        if existing:  # made for another database: somebody has to let this owner give away a function
            admin = await open_connection(server.url_of("postgres"))
            await admin.execute(f"GRANT accs_probe TO {urlsplit(url).username}")
            await admin.close()
        try:
            await install(session, with_roles=True)
            await install(session, with_roles=True)
            await session.execute("CREATE TABLE secrets AS SELECT 7 AS n; GRANT SELECT ON secrets TO accs_scheduler")
            assert not await session.fetchval("SELECT has_schema_privilege('accs_probe', 'accs', 'CREATE')")
            for each in (url, url_as(server, url, "accs_scheduler")):
                assert await ask_database(settings_of(each), "SELECT current_user::text") == "accs_probe"
                await refuse_escapes(each)
        finally:
            await session.close()
            await drop_grants(server, url, drop_roles=not existing)


async def test_an_owner_who_may_not_is_told_what_is_missing(server: TestServer):
    async with plain_owner(server) as url:
        session = await open_connection(url)
        try:
            if await session.fetchval("SELECT to_regrole('accs_agent') IS NULL"):
                with pytest.raises(ConfigError, match="permission denied to create role"):
                    await install(session, with_roles=True)
            else:  # another database of the cluster has made them: granting needs no right but the owner's
                await install(session, with_roles=True)
        finally:
            await session.close()
            await drop_grants(server, url, drop_roles=False)


async def test_a_node_gets_a_login_of_its_own_and_is_handed_over_to_it(server: TestServer, db_url: str):
    session = await open_connection(db_url)
    node = f"render-{uuid4().hex[:6]}"
    try:
        await install(session, with_roles=True)
        async with opened(url_as(server, db_url, "accs_agent")) as shared:
            await upsert_heartbeat(shared, node)
            made = await make_node_login(session, node)
            assert (made.login, made.is_new) == (login_of(node), True)
            with pytest.raises(ConfigError, match="not_your_node"):
                await upsert_heartbeat(shared, node)
        stored = await session.fetchval("SELECT rolpassword FROM pg_authid WHERE rolname = $1", made.login)
        assert stored.startswith("SCRAM-SHA-256$4096:")
        assert made.password not in stored
        async with opened(url_as(server, db_url, f'"{made.login}"'.strip('"'))) as own:
            await upsert_heartbeat(own, node)
            assert await own.fetchval("SHOW statement_timeout") == "1min"
        again = await make_node_login(session, node)
        assert (again.login, again.is_new) == (made.login, False)
        assert again.password != made.password
    finally:
        await session.execute(f'DROP ROLE IF EXISTS "{login_of(node)}"')
        await session.close()
    assert login_of("n" * 200) == login_of("n" * 200)
    assert len(login_of("ä" * 200).encode()) <= 63


async def drop_grants(server: TestServer, url: str, *, drop_roles: bool) -> None:
    """What was granted in this database keeps its roles from being dropped with the cluster's."""
    admin = await open_connection(server.url_of(urlsplit(url).path.strip("/")))
    try:
        roles = "accs_scheduler, accs_archive, accs_agent, accs_api, accs_gateway, accs_reader, accs_probe"
        if await admin.fetchval("SELECT to_regrole('accs_agent') IS NOT NULL"):
            await admin.execute(f"DROP OWNED BY {roles}")
            if drop_roles:
                await admin.execute(f"DROP ROLE {roles}")
    finally:
        await admin.close()
