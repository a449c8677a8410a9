"""Installs the schema, says what is there, and upgrades it while workers run.

Each step is one transaction under a lock that belongs to the transaction, so that of two installers at once one does
the work, behind a pooler too.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from accsd.db.failures import EXISTS_ALREADY, FAILURES, ROLLED_BACK, translated, translating
from accsd.db.pool import Connection, Database, Session
from accsd.db.schema import SCHEMA_VERSION, Migration, read_migrations, roles_sql, schema_sql
from accsd.errors import Bug, ConfigError, DatabaseUnavailable, SchemaMismatch

# A lock of the schema's own table: a login that may only read can't hold it. Where no schema is there yet, the second
# of two installers waits in CREATE SCHEMA and hears that it exists.
_LOCK: Final = "LOCK TABLE accs.schema_versions IN SHARE ROW EXCLUSIVE MODE"
# A migration waits this long for a lock, so that live workers are never queued behind it for longer.
_LOCK_TIMEOUT: Final = "SET LOCAL lock_timeout = '2s'"
_TRIES: Final = 30
_PAUSE_SEC: Final = 0.5
# Scripts may take long on a large database, and so may another installer's script before them: calls have no deadline.
_SCRIPT_SEC: Final = 6 * 3600.0
_HERE: Final = "the database"

# PUBLIC may call a new function until that right is revoked; schema.sql does so for its own functions.
_CLOSE_NEW_FUNCTIONS: Final = """
DO $$
DECLARE
  v_function text;
BEGIN
  FOR v_function IN SELECT oid::regprocedure FROM pg_proc
                     WHERE pronamespace = 'accs'::regnamespace AND has_function_privilege('public', oid, 'EXECUTE') LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', v_function);
  END LOOP;
END $$"""
_HAS_ROLES: Final = (
    "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = 'accs_agent' AND has_schema_privilege(oid, 'accs', 'USAGE'))"
)

# Indexes on columns that change all the time, where people want them: docs/decisions/0001 says what they cost.
_LITERAL_INDEXES: Final = (
    "CREATE INDEX IF NOT EXISTS jobs_status_scheduled_at ON public.jobs (status, scheduled_at)",
    "CREATE INDEX IF NOT EXISTS job_tasks_service_status ON public.job_tasks (service_name, status, job_id)",
    "CREATE INDEX IF NOT EXISTS job_tasks_job_status ON public.job_tasks (job_id, status)",
    "CREATE INDEX IF NOT EXISTS task_events_task ON public.task_events (job_task_id, ts DESC)",
)


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The schema of a database, beside the one that this accsd needs."""

    found: int | None
    expected: int
    channel_prefix: str | None = None
    event_partitions: int = 0
    literal_indexes: bool = False

    @property
    def is_current(self) -> bool:
        return self.found == self.expected


async def installed_version(connection: Connection) -> int | None:
    if await connection.fetchval("SELECT to_regclass('accs.schema_versions')") is None:
        return None
    return await connection.fetchval("SELECT max(version) FROM accs.schema_versions")


async def install(
    connection: Session,
    *,
    channel_prefix: str = "accs_",
    backoff_base_sec: float = 15.0,
    with_roles: bool = False,
    literal_indexes: bool = False,
) -> bool:
    """Makes the schema where there is none; returns True if this call made it. Settings that live in the database are
    brought up to date in either case. An older or newer schema is refused: `upgrade` is for that."""
    with translating(_HERE):
        try:
            made = await _make_schema(connection)
        except EXISTS_ALREADY:  # another installer has just made it; or it is not ours, and the second try says so
            made = await _make_schema(connection)
        async with connection.transaction():
            await connection.execute(_LOCK, timeout=_SCRIPT_SEC)
            await _store_setting(connection, "channel_prefix", "text", channel_prefix)
            await _store_setting(connection, "backoff_base", "double precision", str(float(backoff_base_sec)))
            for index in _LITERAL_INDEXES if literal_indexes else ():
                await connection.execute(index, timeout=_SCRIPT_SEC)
            if with_roles:
                await connection.execute(roles_sql())
    return made


async def _make_schema(connection: Session) -> bool:
    """Returns whether this call made the schema."""
    found = await installed_version(connection)
    if found is None:
        async with connection.transaction():
            await connection.execute(schema_sql(), timeout=_SCRIPT_SEC)
    elif found != SCHEMA_VERSION:
        raise SchemaMismatch(found=found, expected=SCHEMA_VERSION)
    return found is None


async def _store_setting(connection: Session, name: str, sql_type: str, value: str) -> None:
    """Stores a setting as the body of a function: a constant to the planner, and no session can set it."""
    stored = await connection.fetchval(f"SELECT accs.{name}()::text")
    if stored == value or (sql_type == "double precision" and float(stored) == float(value)):
        return
    body: str = await connection.fetchval("SELECT format('SELECT %L::' || $1::text, $2::text)", sql_type, value)
    await connection.execute(
        f"CREATE OR REPLACE FUNCTION accs.{name}() RETURNS {sql_type} LANGUAGE sql IMMUTABLE AS $body$ {body} $body$"
    )


async def read_status(connection: Connection) -> SchemaStatus:
    with translating(_HERE):
        found = await installed_version(connection)
        if found is None:
            return SchemaStatus(found=None, expected=SCHEMA_VERSION)
        row = await connection.fetchrow(
            """SELECT accs.channel_prefix() AS prefix,
                      (SELECT count(*) FROM pg_inherits WHERE inhparent = 'public.task_events'::regclass) AS partitions,
                      to_regclass('public.job_tasks_job_status') IS NOT NULL AS literal"""
        )
    assert row is not None
    return SchemaStatus(found, SCHEMA_VERSION, row["prefix"], row["partitions"], row["literal"])


async def pending_migrations(connection: Session, migrations: Sequence[Migration] | None = None) -> list[Migration]:
    """The migrations that `upgrade` would apply, in order."""
    with translating(_HERE):
        found = await installed_version(connection)
    if found is None:
        raise SchemaMismatch(found=None, expected=SCHEMA_VERSION)
    available = read_migrations() if migrations is None else migrations
    target = max([SCHEMA_VERSION, *(migration.version for migration in available)])
    if found > target:
        raise SchemaMismatch(found=found, expected=SCHEMA_VERSION)
    steps = [migration for migration in available if migration.version > found]
    if [step.version for step in steps] != list(range(found + 1, target + 1)):
        raise Bug(f"no chain of migrations leads from version {found} to {target}")
    return steps


async def upgrade(connection: Session, migrations: Sequence[Migration] | None = None) -> list[Migration]:
    """Applies missing migrations, one transaction each, and returns them. Safe with live workers and a second upgrade
    beside it: a step that does not get its locks at once lets the workers pass and tries again."""
    steps = await pending_migrations(connection, migrations)
    with translating(_HERE):
        applied = [step for step in steps if await _apply(connection, step)]
        if applied and await connection.fetchval(_HAS_ROLES):
            await connection.execute(roles_sql())  # so that roles may use new tables and functions
    return applied


async def _apply(connection: Session, step: Migration) -> bool:
    for _ in range(_TRIES):
        try:
            async with connection.transaction():
                await connection.execute(_LOCK, timeout=_SCRIPT_SEC)
                if await installed_version(connection) != step.version - 1:
                    return False  # another upgrade was here first
                await connection.execute(_LOCK_TIMEOUT)
                await connection.execute(step.sql, timeout=_SCRIPT_SEC)
                await connection.execute(_CLOSE_NEW_FUNCTIONS)
                await connection.execute("INSERT INTO accs.schema_versions (version) VALUES ($1)", step.version)
            return True
        except ROLLED_BACK:
            await asyncio.sleep(_PAUSE_SEC)
        except FAILURES as error:
            told = translated(error, _HERE)
            if isinstance(told, (ConfigError, DatabaseUnavailable)):
                raise told from error
            raise Bug(f"migration {step.version} ({step.name}) failed and was undone: {error}") from error
    raise DatabaseUnavailable(
        f"migration {step.version} ({step.name}) did not get its locks in {_TRIES} tries",
        hint="look for a long transaction in pg_stat_activity, then run `accsd db upgrade` again",
    )


async def require_schema(db: Database) -> None:
    """Raises unless the schema is the one that this accsd knows. Every process that works on a database calls it
    first."""
    async with db.acquire() as connection:
        found = await installed_version(connection)
    if found != SCHEMA_VERSION:
        raise SchemaMismatch(found=found, expected=SCHEMA_VERSION)
