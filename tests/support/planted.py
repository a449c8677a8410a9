"""Bugs to plant in a database, to show that the tests would see them: a function's text is changed, or a row is written
past the guard."""

import re
from dataclasses import dataclass

from tests.support.cluster import Connection


@dataclass(frozen=True)
class Change:
    """In one function of schema accs, one piece of text for another, everywhere it occurs."""

    function: str
    old: str
    new: str


@dataclass(frozen=True)
class Bug:
    name: str
    changes: tuple[Change, ...]

    async def plant(self, conn: Connection) -> None:
        for change in self.changes:
            before = await definition(conn, change.function)
            after = before.replace(change.old, change.new)
            assert after != before, f"accs.{change.function} has no {change.old!r}: {self.name!r} is not planted"
            await conn.execute(after)
            assert await definition(conn, change.function) == after


async def definition(conn: Connection, function: str) -> str:
    return await conn.fetchval("SELECT pg_get_functiondef($1::regproc)", f"accs.{function}")


def with_its_job(old: str) -> str:
    joined = "JOIN public.job_tasks t ON t.id = w.task_id JOIN public.jobs j ON j.id = t.job_id"
    return old.replace("accs.waiting w", f"accs.waiting w {joined}")


ONE_LANE = "SELECT w.ctid FROM accs.waiting w WHERE w.lane"
SOME_LANES = "SELECT w.ctid FROM accs.waiting w\n         WHERE w.task_id"

NO_FENCE = Bug("the fence is dropped", (Change("finish_tasks", "t.attempt_id = s.attempt_id AND ", ""),))
NO_LEASE = Bug("the lease is not checked", (Change("finish_tasks", "t.lease_until > v_now AND ", ""),))
# As when the event is a statement of its own and the agent dies between the two.
NO_EVENT = Bug(
    "the event is written outside the transaction",
    (
        Change(
            "finish_tasks",
            """'{"from": "running", "to": "done"}'::jsonb, attempt_id FROM moved""",
            """'{"from": "running", "to": "done"}'::jsonb, attempt_id FROM moved WHERE false""",
        ),
    ),
)
LOCKED_JOB = Bug(
    "the claim locks the job's row",
    (
        Change("claim_tasks", ONE_LANE, with_its_job(ONE_LANE)),
        Change("claim_tasks", "FOR UPDATE SKIP LOCKED", "FOR UPDATE OF w, j SKIP LOCKED"),
        Change("take", SOME_LANES, with_its_job(SOME_LANES)),
        Change("take", "FOR UPDATE SKIP LOCKED", "FOR UPDATE OF w, j SKIP LOCKED"),
    ),
)
SKIPPED_BLOCKS = Bug(
    "a skipped step is counted as unsatisfied",
    (Change("skip", "accs.unblock(v_moved.dependants)", "accs.unblock('{}')"),),
)
OLD_RANK = Bug(
    "a changed priority does not reach what waits",
    (Change("change_jobs", "PERFORM accs.unqueue(v_tasks);", "v_tasks := '{}';"),),
)

EARLY_JOIN = Bug(
    "a join waits for one task too few",
    (
        Change(
            "fan_out",
            "t.remaining + cardinality(v_fresh || v_again)",
            "t.remaining + cardinality(v_fresh || v_again) - 1",
        ),
    ),
)
COUNTED_TWICE = Bug(
    "a task of an item counts twice for its join",
    (Change("fan_out", "nullif(v_below, '{}'), v_step.requires", "nullif(v_below || v_below, '{}'), v_step.requires"),),
)
STALE_RESOLVER = Bug(
    "what was found before a retry is taken after it",
    (
        Change("lock_unresolved", " AND u.generation = t.generation", ""),
        Change("resolve_tasks", " AND t.generation = u.generation", ""),
    ),
)
NO_LIMIT_OF_ITEMS = Bug(
    "max_parallel is ignored", (Change("fan_out", "IF p_parallel IS NOT NULL THEN", "IF false THEN"),)
)
FAILED_RESULT = Bug(
    "a step takes the result of a task that failed", (Change("result_of", "s.status = 'done' AND ", ""),)
)
# Shown by their stories alone: the machine seldom looks for a result when the only one is too old, retries a step of
# whose input there is one, or one that was multiplied, to skip it then.
OLD_RESULT = Bug(
    "a step takes a result that is too old",
    (Change("result_of", " AND s.finished_at > accs.clock() - make_interval(secs => p_seconds)", ""),),
)
CACHED_RETRY = Bug(
    "a step that is retried is done from the cache",
    (Change("why_not_cached", "p_task.attempt_id > 0", "false"),),
)
OLD_ITEMS_RUN = Bug(
    "the tasks of an earlier list run although their step is skipped",
    (
        Change("skip", "v_keys := accs.drop_items(p_task_ids, p_source);", ""),
        Change("resolve_tasks", "s.verdict <> 'error'", "false"),
    ),
)

BUGS = [
    NO_FENCE,
    NO_LEASE,
    NO_EVENT,
    LOCKED_JOB,
    SKIPPED_BLOCKS,
    OLD_RANK,
    EARLY_JOIN,
    COUNTED_TWICE,
    STALE_RESOLVER,
    NO_LIMIT_OF_ITEMS,
    FAILED_RESULT,
]


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
