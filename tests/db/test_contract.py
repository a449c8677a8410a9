"""The models and the DDL say the same, and both say what SPEC A2–A7 says literally."""

import re
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import asyncpg
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accsd.model import (
    JOB_TRANSITIONS,
    TASK_TRANSITIONS,
    ArtifactKind,
    AwakeState,
    EventType,
    Job,
    JobStatus,
    JobTask,
    Level,
    Node,
    TaskArtifact,
    TaskEvent,
    TaskStatus,
    WakeMethod,
    WorkflowDef,
)
from accsd.planning.backoff import backoff_seconds
from accsd.values.json import sanitise
from tests.support.cluster import Connection
from tests.support.factory import claim, done, fail, node, step, submit, workflow

pytestmark = pytest.mark.every_postgresql

# A2–A7 to the letter: name, type, NOT NULL (A5: "ts NOT NULL" and so on; keys are not null by nature).
LITERAL: dict[str, dict[str, str]] = {
    "workflows": {
        "id": "uuid", "name": "text", "version": "integer", "is_active": "boolean", "steps": "jsonb",
        "created_at": "timestamp with time zone", "updated_at": "timestamp with time zone",
    },
    "jobs": {
        "id": "uuid", "workflow_id": "uuid", "status": "text", "progress": "numeric", "current_task_key": "text",
        "priority": "integer", "order_seq": "bigint", "options": "jsonb", "scheduled_at": "timestamp with time zone",
        "error_code": "text", "error_message": "text", "created_at": "timestamp with time zone",
        "started_at": "timestamp with time zone", "finished_at": "timestamp with time zone",
        "updated_at": "timestamp with time zone",
    },
    "job_tasks": {
        "id": "uuid", "job_id": "uuid", "task_key": "text", "service_name": "text", "status": "text",
        "depends_on": "ARRAY", "attempt": "integer", "max_attempts": "integer",
        "next_attempt_at": "timestamp with time zone", "priority": "integer", "progress": "numeric",
        "params": "jsonb", "results": "jsonb", "assigned_node": "text", "claimed_by": "text",
        "claimed_at": "timestamp with time zone", "started_at": "timestamp with time zone",
        "finished_at": "timestamp with time zone", "created_at": "timestamp with time zone",
        "updated_at": "timestamp with time zone",
    },
    "task_events": {
        "id": "bigint", "job_id": "uuid", "job_task_id": "uuid", "ts": "timestamp with time zone", "source": "text",
        "level": "text", "type": "text", "message": "text", "data": "jsonb",
    },
    "task_artifacts": {
        "id": "bigint", "job_id": "uuid", "job_task_id": "uuid", "kind": "text", "bucket": "text", "key": "text",
        "size_bytes": "bigint", "content_type": "text", "checksum": "text", "created_at": "timestamp with time zone",
    },
    "nodes": {
        "name": "text", "labels": "jsonb", "last_seen": "timestamp with time zone", "awake_state": "text",
        "wake_method": "text", "mac": "text", "provider_ref": "text", "script": "text", "max_concurrency": "jsonb",
    },
}  # fmt: skip

MODELS: dict[str, Any] = {
    "workflows": WorkflowDef,
    "jobs": Job,
    "job_tasks": JobTask,
    "task_events": TaskEvent,
    "task_artifacts": TaskArtifact,
    "nodes": Node,
}

# Columns that are the database's own book-keeping, and what doors keep with a workflow: a file knows nothing of it.
INTERNAL = {"jobs": {"task_progress"}, "workflows": {"meta"}}


async def columns(conn: Connection, table: str) -> dict[str, Any]:
    rows = await conn.fetch(
        "SELECT * FROM information_schema.columns WHERE table_schema = 'public' AND table_name = $1", table
    )
    return {row["column_name"]: row for row in rows}


async def test_the_columns_of_the_spec_are_there_with_their_types_and_in_their_order(conn: Connection):
    for table, wanted in LITERAL.items():
        found = await columns(conn, table)
        assert {name: found[name]["data_type"] for name in wanted} == wanted, table
        assert [name for name in found if name in wanted] == list(wanted), table


async def test_the_models_have_the_columns_of_their_tables(conn: Connection):
    for table, model in MODELS.items():
        found = set(await columns(conn, table)) - INTERNAL.get(table, set())
        assert set(model.model_fields) == found, table


def accepts_none(annotation: Any, metadata: list[Any]) -> bool:
    if any(type(extra).__name__ == "BeforeValidator" for extra in metadata):
        return True  # JsonObject and its kin make something of NULL
    if annotation is Any:
        return True
    return get_origin(annotation) in (Union, UnionType) and NoneType in get_args(annotation)


async def test_a_column_that_may_be_null_may_be_none_in_its_model(conn: Connection):
    for table, model in MODELS.items():
        for name, column in (await columns(conn, table)).items():
            if column["is_nullable"] == "YES" and name in model.model_fields:
                field = model.model_fields[name]
                assert accepts_none(field.annotation, field.metadata), f"{table}.{name}"


async def test_rows_in_every_state_become_models(conn: Connection):
    await node(conn, labels={"gpu": True}, render=5)
    await submit(conn, step("a", backoff=[1], timeout=5), step("b", after="a", backoff={"strategy": "fixed"}))
    await submit(conn, step("x"))
    await done(conn)
    await fail(conn, *await claim(conn), permanent=True)
    (live,) = await claim(conn)
    await conn.execute(
        "SELECT accs.record_artifact($1, $2, 'owner-1', 'log', 'media', 'k')", live["task_id"], live["attempt_id"]
    )
    await conn.execute("INSERT INTO jobs (workflow_id, options) SELECT id, NULL FROM workflows LIMIT 1")
    for table, model in MODELS.items():
        rows = await conn.fetch(f"SELECT * FROM {table}")
        assert rows, table
        for row in rows:
            model.model_validate({name: value for name, value in row.items() if name not in INTERNAL.get(table, ())})


async def test_the_words_of_the_enums_are_those_of_the_checks(conn: Connection):
    for table, column, words in [
        ("jobs", "status", JobStatus),
        ("job_tasks", "status", TaskStatus),
        ("task_events", "level", Level),
        ("task_artifacts", "kind", ArtifactKind),
        ("nodes", "awake_state", AwakeState),
        ("nodes", "wake_method", WakeMethod),
    ]:
        assert await checked_words(conn, table, column) == {word.value for word in words}, (table, column)


async def checked_words(conn: Connection, table: str, column: str) -> set[str]:
    rows = await conn.fetch(
        "SELECT pg_get_constraintdef(oid) AS text FROM pg_constraint"
        " WHERE conrelid = $1::text::regclass AND contype = 'c'"
        " AND conkey = ARRAY[(SELECT attnum FROM pg_attribute WHERE attrelid = $1::text::regclass AND attname = $2)]",
        table,
        column,
    )
    listed = [found for row in rows for found in re.findall(r"'\{?([a-z_,]+)\}?'::text", row["text"])]
    return {word for words in listed for word in words.split(",")}


async def test_the_legal_transitions_are_the_same_in_python_and_in_sql(conn: Connection):
    for entity, known in (("task", TASK_TRANSITIONS), ("job", JOB_TRANSITIONS)):
        rows = await conn.fetch(
            "SELECT from_status, to_status FROM accs.transitions WHERE entity = $1 AND via IS NULL", entity
        )
        found: set[tuple[str, str]] = {(row["from_status"], row["to_status"]) for row in rows}
        assert found == {(a.value, b.value) for a, b in known}


async def test_every_verb_that_a_transition_names_exists(conn: Connection):
    rows = await conn.fetch(
        "SELECT DISTINCT trim(v) AS verb FROM accs.transitions, unnest(string_to_array(verb, ',')) v"
        " WHERE to_regproc('accs.' || trim(v)) IS NULL"
    )
    assert rows == []


async def test_what_the_spec_says_of_keys_and_references_holds(conn: Connection):
    rows = await conn.fetch(
        "SELECT conrelid::regclass::text AS t, pg_get_constraintdef(oid) AS d FROM pg_constraint"
        " WHERE contype IN ('p', 'u', 'f') AND connamespace = 'public'::regnamespace"
        " AND conrelid::regclass::text = ANY($1)",
        list(LITERAL),
    )
    # PostgreSQL 18 has them checked by our own triggers: test_install_references.py
    found = {(row["t"], row["d"].removesuffix(" NOT ENFORCED")) for row in rows}
    assert found >= {
        ("workflows", "PRIMARY KEY (id)"),
        ("workflows", "UNIQUE (name, version)"),
        ("jobs", "PRIMARY KEY (id)"),
        ("jobs", "FOREIGN KEY (workflow_id) REFERENCES workflows(id)"),
        ("job_tasks", "PRIMARY KEY (id)"),
        ("job_tasks", "FOREIGN KEY (job_id) REFERENCES jobs(id)"),
        ("task_artifacts", "PRIMARY KEY (id)"),
        ("nodes", "PRIMARY KEY (name)"),
    }
    assert not any(table == "task_events" and "FOREIGN" in definition for table, definition in found)
    partitioned = await conn.fetchval("SELECT pg_get_partkeydef('task_events'::regclass)")
    assert partitioned == "RANGE (ts)"


async def test_the_indexes_that_the_spec_asks_for_and_that_cost_nothing_are_there(conn: Connection):
    rows = await conn.fetch("SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'")
    found = {(row["tablename"], row["indexdef"].split(" USING ")[1].removeprefix("btree ")) for row in rows}
    assert found >= {
        ("jobs", "(order_seq)"),
        ("task_events", "(job_id, ts DESC)"),
        ("task_events", "brin (ts, id) WITH (autosummarize='on')"),
        ("task_artifacts", "(job_id)"),
        ("task_artifacts", "(job_task_id)"),
    }


async def test_no_index_covers_a_column_that_changes_at_a_transition(conn: Connection):
    """Otherwise no update would be HOT, at 0.4 of the speed."""
    rows = await conn.fetch(
        "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)"
        " WHERE i.indrelid IN ('jobs'::regclass, 'job_tasks'::regclass)"
    )
    never_change = {"id", "order_seq", "idempotency_key", "job_id", "task_key", "parent", "item_no"}
    assert {row["attname"] for row in rows} == never_change


async def test_the_defaults_make_a_plain_insert_complete(conn: Connection):
    await conn.execute('INSERT INTO workflows (name, steps) VALUES (\'w\', \'[{"key": "a", "service": "s"}]\')')
    row = await conn.fetchrow("SELECT * FROM workflows")
    assert row is not None
    assert (row["version"], row["is_active"]) == (1, True)
    await conn.execute("INSERT INTO jobs (workflow_id) SELECT id FROM workflows")
    await conn.execute("INSERT INTO jobs (workflow_id) SELECT id FROM workflows")
    first, second = await conn.fetch("SELECT * FROM jobs ORDER BY order_seq")
    assert (first["status"], first["priority"], first["progress"], first["options"]) == ("queued", 0, 0, {})
    assert first["order_seq"] < second["order_seq"]
    assert first["created_at"] is not None
    assert first["updated_at"] is not None
    defaults = {name: column["column_default"] for name, column in (await columns(conn, "job_tasks")).items()}
    assert (defaults["depends_on"], defaults["attempt"], defaults["max_attempts"]) == ("'{}'::text[]", "0", "3")
    assert (defaults["status"], defaults["priority"]) == ("'queued'::text", "0")


async def test_an_unknown_word_is_refused_everywhere(conn: Connection):
    await workflow(conn)
    await node(conn)
    for statement in (
        "INSERT INTO jobs (workflow_id, status) SELECT id, 'paused' FROM workflows",
        "INSERT INTO task_events (job_id, source, level, type) VALUES (gen_random_uuid(), 's', 'fatal', 'log')",
        "UPDATE nodes SET wake_method = 'shout'",
    ):
        with pytest.raises(asyncpg.CheckViolationError):
            await conn.execute(statement)


async def test_the_types_of_events_that_the_verbs_write_are_known(conn: Connection):
    source = await conn.fetchval(
        "SELECT string_agg(prosrc, ' ') FROM pg_proc WHERE pronamespace = 'accs'::regnamespace"
    )
    written = set(re.findall(r"'(?:debug|info|warn|error)'(?: END)?,\s+'([a-z]+)'", source))
    written -= {status.value for status in TaskStatus}  # lists of states look alike
    assert written
    assert written <= {word.value for word in EventType}
    assert issubclass(EventType, StrEnum)


async def test_the_backoff_of_sql_is_the_backoff_of_python(conn: Connection):
    specs: list[Any] = [None, {}, [7], [30, 120, 300], [0], [0.5, 1.25]]
    specs += [{"strategy": s} for s in ("exponential", "linear", "fixed")]
    specs += [
        {"strategy": s, "base": base, "cap": cap}
        for s in ("exponential", "linear", "fixed")
        for base in (None, 0, 1e-12, 0.001, 1, 15, 4000, 366 * 86400)
        for cap in (None, 0, 10, 5000.5, 366 * 86400)
    ]
    cases = [
        (spec, attempt, base) for spec in specs for attempt in (1, 2, 3, 7, 64, 65, 66, 999_999) for base in (None, 2.5)
    ]
    found = await conn.fetch(
        "SELECT accs.backoff_seconds(c.spec, c.attempt, c.base) AS s"
        " FROM unnest($1::text[]::jsonb[], $2::int[], $3::float8[]) WITH ORDINALITY AS c (spec, attempt, base, n)"
        " ORDER BY n",
        [None if spec is None else orjson.dumps(spec).decode() for spec, _, _ in cases],
        [attempt for _, attempt, _ in cases],
        [base for _, _, base in cases],
    )
    for (spec, attempt, base), row in zip(cases, found, strict=True):
        wanted = backoff_seconds(spec, attempt) if base is None else backoff_seconds(spec, attempt, base)
        assert row["s"] == pytest.approx(wanted), (spec, attempt, base)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.datetimes()
    | st.characters(codec=None),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.none(), inner) | st.tuples(inner),
    max_leaves=20,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(anything, min_size=1, max_size=20))
async def test_whatever_was_sanitised_is_accepted_by_jsonb(conn: Connection, values: list[Any]):
    clean = [orjson.dumps(sanitise(value)).decode() for value in values]
    kept = await conn.fetch("SELECT v::jsonb FROM unnest($1::text[]) AS u (v)", clean)
    assert len(kept) == len(clean)
