"""A workflow is checked and compiled by SQL when it is written, whoever writes it."""

import asyncio
import time
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import asyncpg
import orjson
import pytest

from accsd.errors import WorkflowInvalid
from accsd.model import WorkflowDef
from tests.conftest import Connect
from tests.support.cluster import Connection
from tests.support.factory import chain, claim, job, node, step, submit_to, tasks, workflow

GOOD = step("good", "audio")
NESTED: Any = orjson.loads("[" * 65 + "1" + "]" * 65)


def with_step(**fields: Any) -> list[Any]:
    """A good step, and one called `bad` with these fields."""
    return [GOOD, {"key": "bad", "service": "render"} | fields]


# What is wrong, the steps, and the words that the refusal must have.
REFUSED: list[tuple[str, Any, str]] = [
    ("no array", {"key": "a"}, "steps must be a JSON array"),
    ("no steps", [], "there is no step"),
    ("a step that is no object", [GOOD, "b"], "step number 2: must be a JSON object"),
    ("no key", [GOOD, {"service": "render"}], "step number 2: key is missing or empty"),
    ("an empty key", [GOOD, step("")], "step number 2: key is missing or empty"),
    ("a null key", [GOOD, {"key": None, "service": "a"}], "step number 2: key is missing or empty"),
    ("a key that is a number", [GOOD, {"key": 7, "service": "a"}], "key is missing or empty"),
    ("a key with a slash", [GOOD, step("a/b")], 'step "a/b": a key has letters'),
    ("a key that ends in a newline", [GOOD, step("a\n")], "a key has letters"),
    ("a key that begins with a dot", [GOOD, step(".a")], 'step ".a": a key has letters'),
    ("a key of 101 characters", [GOOD, step("k" * 101)], "no longer than 100"),
    ("a duplicate key", [GOOD, step("bad"), step("bad")], 'step "bad": the key is used by 2 steps'),
    ("no service", [GOOD, {"key": "bad"}], 'step "bad": service is missing or empty'),
    ("an empty service", with_step(service=""), 'step "bad": service is missing or empty'),
    ("a service that is no text", with_step(service=["a"]), 'step "bad": service is missing or empty'),
    ("a bad service name", with_step(service="a b"), 'step "bad": "a b" is no service name'),
    ("a service name of 41 characters", with_step(service="s" * 41), "is no service name"),
    ("a reserved service name", with_step(service="builder"), 'step "bad": the service name "builder" is reserved'),
    ("an unknown field", with_step(depend_on=["good"]), 'step "bad": unknown field "depend_on"'),
    ("an unknown dependency", with_step(depends_on=["x"]), 'step "bad": depends on "x", which does not exist'),
    ("itself as a dependency", with_step(depends_on=["bad"]), 'step "bad": depends on itself'),
    ("a dependency twice", with_step(depends_on=["good", "good"]), 'step "bad": names "good" more than once'),
    ("depends_on as text", with_step(depends_on="good"), 'step "bad": depends_on must be a list of step keys'),
    ("depends_on with a number", with_step(depends_on=[1]), 'step "bad": depends'),
    ("depends_on null", with_step(depends_on=None), 'step "bad": depends_on must be a list of step keys'),
    ("default_params as a list", with_step(default_params=[1]), 'step "bad": default_params must be a JSON object'),
    ("default_params null", with_step(default_params=None), 'step "bad": default_params must be a JSON object'),
    ("large default_params", with_step(default_params={"a": "x" * 100_000}), 'step "bad": default_params are larger'),
    ("deep default_params", with_step(default_params={"a": NESTED}), 'step "bad": default_params are nested deeper'),
    ("no attempt", with_step(max_attempts=0), 'step "bad": max_attempts must be a whole number'),
    ("half an attempt", with_step(max_attempts=1.5), 'step "bad": max_attempts must be a whole number'),
    ("too many attempts", with_step(max_attempts=1_000_001), 'step "bad": max_attempts must be a whole number'),
    ("null attempts", with_step(max_attempts=None), 'step "bad": max_attempts must be a whole number'),
    ("attempts as a word", with_step(max_attempts="many"), 'step "bad": max_attempts must be a whole number'),
    ("no time", with_step(timeout=0), 'step "bad": timeout must be a number of seconds above 0'),
    ("a negative timeout", with_step(timeout=-1), 'step "bad": timeout must be a number'),
    ("a timeout in words", with_step(timeout="soon"), 'step "bad": timeout must be a number'),
    ("required labels as a list", with_step(requires=["gpu"]), 'step "bad": requires must be a JSON object'),
    ("required labels null", with_step(requires=None), 'step "bad": requires must be a JSON object'),
    ("a label that is a list", with_step(requires={"gpu": [1]}), 'step "bad": requires must be a JSON object'),
    ("a label that is null", with_step(requires={"gpu": None}), 'step "bad": requires must be a JSON object'),
    ("a node that is no text", with_step(node=5), 'step "bad": node must be the name of a node'),
    ("an empty node", with_step(node=""), 'step "bad": node must be the name of a node'),
    ("a node name of 201 characters", with_step(node="n" * 201), 'step "bad": node must be the name of a node'),
    ("a key that is no text", with_step(concurrency_key=1), 'step "bad": concurrency_key must be a text'),
    ("an empty concurrency key", with_step(concurrency_key=""), 'step "bad": concurrency_key must be a text'),
    ("a long concurrency key", with_step(concurrency_key="k" * 201), 'step "bad": concurrency_key must be a text'),
    ("a limit of none", with_step(concurrency_key="k", concurrency_limit=0), 'step "bad": concurrency_limit must be'),
    ("a limit without a key", with_step(concurrency_limit=2), 'step "bad": concurrency_limit needs a concurrency_key'),
    ("an unknown strategy", with_step(backoff={"strategy": "expo"}), 'step "bad": backoff must be'),
    ("a null strategy", with_step(backoff={"strategy": None}), 'step "bad": backoff must be'),
    ("an unknown field of backoff", with_step(backoff={"strategy": "fixed", "bas": 1}), 'step "bad": backoff must be'),
    ("an empty backoff list", with_step(backoff=[]), 'step "bad": backoff must be'),
    ("a negative delay", with_step(backoff=[30, -1]), 'step "bad": backoff must be'),
    ("a delay of more than a year", with_step(backoff=[366 * 86400 + 1]), 'step "bad": backoff must be'),
    ("a delay in words", with_step(backoff=["soon"]), 'step "bad": backoff must be'),
    ("a negative base", with_step(backoff={"strategy": "fixed", "base": -1}), 'step "bad": backoff must be'),
    ("a base in words", with_step(backoff={"strategy": "fixed", "base": "1"}), 'step "bad": backoff must be'),
    ("a cap of more than a year", with_step(backoff={"cap": 366 * 86400 + 1}), 'step "bad": backoff must be'),
    ("backoff as a number", with_step(backoff=5), 'step "bad": backoff must be'),
    (
        "a cycle",
        [GOOD, step("a", after="c"), step("b", after="a"), step("c", after="b good")],
        "depends on itself in a cycle: a → b → c → a",
    ),
    ("a cycle of all", [step("a", after="b"), step("b", after="a")], "depends on itself in a cycle"),
]

ACCEPTED: list[tuple[str, Any]] = [
    ("the least", [{"key": "a", "service": "s"}]),
    ("a dependency that is written later", [step("b", after="a"), step("a")]),
    ("names at their limits", [step("k" * 100, "s" * 40, node="n" * 200, concurrency_key="k" * 200)]),
    ("nulls where nothing is meant", with_step(timeout=None, node=None, concurrency_key=None, concurrency_limit=None)),
    ("no backoff", with_step(backoff=None)),
    ("a backoff of defaults", with_step(backoff={})),
    ("a backoff with nulls", with_step(backoff={"strategy": "linear", "base": None, "cap": None})),
    ("a backoff list", with_step(backoff=[0, 30.5, 366 * 86400])),
    ("a cap alone", with_step(backoff={"cap": 366 * 86400})),
    ("the most attempts", with_step(max_attempts=1_000_000, concurrency_key="k", concurrency_limit=1_000_000)),
    ("a long timeout", with_step(timeout=1e12)),
    ("a short timeout", with_step(timeout=1e-9)),
    ("labels of every kind", with_step(requires={"gpu": True, "zone": "eu", "cores": 16, "load": 0.5})),
    ("a label too long for an index", with_step(requires={"licence": "".join(chr(33 + i % 90) for i in range(9000))})),
    ("many small parameters", with_step(default_params={"frames": list(range(10)) * 600})),
    ("parameters of 60 KiB", with_step(default_params={"text": "x" * 60_000})),
    ("parameters 64 levels deep", with_step(default_params={"a": NESTED[0][0]})),
]


async def write(conn: Connection, steps: Any, name: str = "media") -> UUID:
    return await conn.fetchval("INSERT INTO workflows (name, steps) VALUES ($1, $2) RETURNING id", name, steps)


def refused_by_python(document: Any) -> bool:
    try:
        WorkflowDef.model_validate(document)
    except WorkflowInvalid:
        return True
    return False


async def test_an_invalid_document_is_refused_by_a_message_that_names_the_step(conn: Connection):
    for what, steps, words in REFUSED:
        with pytest.raises(asyncpg.PostgresError) as refused:
            await write(conn, steps)
        assert refused.value.sqlstate == "AC001", (what, refused.value)
        assert words in str(refused.value), what
        assert str(refused.value).startswith('workflow "media": '), what
    assert await conn.fetchval("SELECT count(*) FROM workflows") == 0
    assert await conn.fetchval("SELECT count(*) FROM accs.steps") == 0


async def test_python_refuses_what_sql_refuses_and_sql_takes_what_python_takes(conn: Connection):
    for what, steps, _ in REFUSED:
        assert refused_by_python({"name": "media", "steps": steps}), what
    for what, steps in ACCEPTED:
        document = WorkflowDef.model_validate({"name": what, "steps": steps})
        await write(conn, document.steps_document(), what)
        # and as it was written, without the model in between
        await write(conn, steps, f"{what}, raw")


@pytest.mark.parametrize("name", ["", "n" * 201])
async def test_python_and_sql_refuse_the_same_names_of_workflows(conn: Connection, name: str):
    with pytest.raises(asyncpg.CheckViolationError):
        await write(conn, [GOOD], name)
    assert refused_by_python({"name": name, "steps": [GOOD]})
    assert await write(conn, [GOOD], "Überblick / 2 " + "n" * 186)


async def test_the_first_of_several_problems_is_reported(conn: Connection):
    with pytest.raises(asyncpg.PostgresError, match='step "a": depends on "x"'):
        await write(conn, [step("a", after="x"), step("a"), step("b", "b b")])


async def test_steps_are_checked_again_when_they_are_changed(conn: Connection):
    made = await workflow(conn, *chain("a", "b"), name="media")
    with pytest.raises(asyncpg.PostgresError, match='workflow "media": step "b": depends on "x"'):
        await conn.execute("UPDATE workflows SET steps = $1", [step("b", after="x")])

    assert await conn.fetchval("SELECT jsonb_array_length(steps) FROM workflows WHERE id = $1", made) == 2
    assert await conn.fetchval("SELECT count(*) FROM accs.steps") == 2


async def test_changed_steps_are_compiled_anew_and_running_jobs_keep_theirs(conn: Connection):
    made = await workflow(conn, *chain("a", "b"))
    old = await submit_to(conn, made)
    await conn.execute(
        "UPDATE workflows SET steps = $1",
        [step("x", "audio", requires={"gpu": True}, concurrency_key="k", concurrency_limit=2)],
    )
    new = await submit_to(conn, made)

    assert await tasks(conn, old) == {"a": "queued", "b": "queued"}
    assert await tasks(conn, new) == {"x": "queued"}
    assert (await job(conn, new))["current_task_key"] == "x"
    lanes = await conn.fetch("SELECT service, requires, node FROM accs.lanes ORDER BY id")
    assert lanes == [("render", {}, None), ("audio", {"gpu": True}, None)]
    assert await conn.fetch("SELECT key, max_running FROM accs.concurrency_keys") == [("k", 2)]
    updated = await conn.fetchval("SELECT updated_at > created_at FROM workflows")
    assert updated


async def test_the_limit_that_a_workflow_gives_its_key_frees_what_waited_for_it(conn: Connection):
    await node(conn)
    made = await workflow(conn, step("a", concurrency_key="k"))
    for _ in range(3):
        await submit_to(conn, made)
    assert len(await claim(conn, 3)) == 1

    await conn.execute("UPDATE workflows SET steps = $1", [step("a", concurrency_key="k", concurrency_limit=3)])
    assert len(await claim(conn, 3)) == 2


async def test_a_workflow_is_compiled_to_who_waits_for_whom(conn: Connection):
    made = await workflow(
        conn,
        step("late", after="b a", default_params={"x": 1}, max_attempts=5, timeout=2.5, backoff=[1, 2], node="n9"),
        step("a", "audio"),
        step("b", "audio"),
    )
    rows = await conn.fetch("SELECT * FROM accs.steps WHERE workflow_id = $1 ORDER BY step_no", made)

    late, a, b = rows
    assert (late["task_key"], late["depends_on"], late["dependants"]) == ("late", ["b", "a"], None)
    assert (late["params"], late["max_attempts"], late["timeout_sec"]) == ({"x": 1}, 5, 2.5)
    assert (late["backoff"], late["node"]) == ([1, 2], "n9")
    assert (a["dependants"], b["dependants"], a["params"], a["max_attempts"]) == ([1], [1], {}, 3)
    assert a["lane"] == b["lane"] != late["lane"]
    assert await conn.fetchrow("SELECT step_count, first_key FROM accs.plans") == (3, "a")


async def test_a_name_and_version_exist_once(conn: Connection):
    await workflow(conn, name="media")
    await workflow(conn, name="media", version=2)
    with pytest.raises(asyncpg.UniqueViolationError):
        await workflow(conn, name="media", version=2)


async def test_a_hundred_thousand_steps_are_checked_in_seconds_and_one_more_is_refused(conn: Connection):
    wide = [step(f"s{i}", after=[f"s{i - 1}", f"s{i // 2}"] if i > 2 else []) for i in range(100_000)]
    began = time.monotonic()
    made = await workflow(conn, *wide)
    assert time.monotonic() - began < 30  # 3 s on an idle machine
    assert await conn.fetchval("SELECT step_count FROM accs.plans WHERE workflow_id = $1", made) == 100_000

    with pytest.raises(asyncpg.PostgresError, match="100001 steps are more than the 100,000"):
        await workflow(conn, *wide, step("one-more"))


async def test_a_cycle_through_many_steps_is_found(conn: Connection):
    ring = [step(f"s{i}", after=[f"s{i - 1}"] if i else ["s19999"]) for i in range(20_000)]
    with pytest.raises(asyncpg.PostgresError, match=r'step "s[0-9]+" depends on itself in a cycle'):
        await workflow(conn, *ring)


async def test_two_workflows_with_the_same_keys_and_services_are_written_at_once(conn: Connection, connect: Connect):
    """In whatever order they name them, neither waits for the other for ever."""

    def steps(order: Iterable[int]) -> list[dict[str, Any]]:
        return [step(f"s{i}", f"service{i}", concurrency_key=f"k{i}") for i in order]

    sessions = [await connect() for _ in range(2)]
    for turn in range(10):
        numbers = range(turn * 50, turn * 50 + 50)
        await asyncio.gather(
            workflow(sessions[0], *steps(numbers)),
            workflow(sessions[1], *steps(reversed(numbers))),
        )
    assert await conn.fetchval("SELECT count(*) FROM workflows") == 20


async def test_a_workflow_that_is_retired_takes_no_job_until_it_is_written_again(conn: Connection):
    await workflow(conn, step("a"), name="w", version=1)
    latest = await workflow(conn, step("a"), name="w", version=2)
    waiting = await submit_to(conn, latest)
    first = await conn.fetchrow("SELECT * FROM accs.retire_workflow('w', 'ada', 'no more')")
    again = await conn.fetchrow("SELECT * FROM accs.retire_workflow('w')")
    unknown = await conn.fetchrow("SELECT * FROM accs.retire_workflow('nothing')")
    assert [tuple(row) for row in (first, again, unknown) if row] == [
        ("accepted", None), ("repeated", None), ("refused", "not_found")
    ]  # fmt: skip
    with pytest.raises(asyncpg.PostgresError, match="no active workflow"):
        await conn.execute("SELECT accs.submit('w')")
    assert (await job(conn, waiting))["status"] == "running", "what was submitted goes on"
    audited = await conn.fetch(
        "SELECT actor, detail ->> 'is_active' AS active FROM accs.audit WHERE reason = 'no more'"
    )
    assert {tuple(row) for row in audited} == {("ada", "false")}
    await conn.execute(
        'SELECT accs.apply_workflow(\'{"name": "w", "version": 2, "steps": [{"key": "a", "service": "s"}]}\')'
    )
    await conn.execute("SELECT accs.submit('w')")
