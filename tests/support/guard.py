"""Past the guard, as a bug in a verb would be: only the owner of the schema can, and on purpose."""

import re

from tests.support.cluster import Connection

# What every verb pins, and what the guard looks for.
VERB_PATH = "pg_catalog, accs, pg_temp"
_TABLES = re.compile(r"(?<![\w.])(workflows|jobs|job_tasks|task_events|task_artifacts|nodes|dead_letters)(?![\w.])")


async def past_the_guard(conn: Connection, *statements: str) -> None:
    """`public` is not in the verbs' path, so the tables of it are named in full."""
    async with conn.transaction():
        await conn.execute(f"SET LOCAL search_path = {VERB_PATH}")
        for statement in statements:
            await conn.execute(_TABLES.sub(r"public.\1", statement))
        await conn.execute("SET LOCAL search_path TO DEFAULT")
