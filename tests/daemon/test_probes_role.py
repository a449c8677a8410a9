"""The role that measures conditions, on a real database and against real HTTP servers."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from accsd import failpoints
from accsd.builder.planner import Planner
from accsd.builder.probes import Probes, target_of
from accsd.db import Database
from accsd.db.conditions import ask_database
from accsd.db.schema import roles_sql
from accsd.errors import InvalidValue
from accsd.metrics import Metrics
from accsd.settings import ProbeSettings
from tests.support.cluster import Connection, TestServer
from tests.support.conditions import refuse_escapes, samples, standing
from tests.support.eventually import eventually
from tests.support.factory import pass_time
from tests.support.http_servers import answering, http_answer
from tests.support.library import opened, settings_of, url_as
from tests.support.schedules import outlook, row, schedule, told
from tests.support.topics import emit


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as opening:
        yield opening


@pytest.fixture
def probes(db: Database, db_url: str) -> Probes:
    return made(db, db_url)


def made(db: Database, db_url: str, **targets: Any) -> Probes:
    settings = ProbeSettings.model_validate({"targets": targets})
    silent = timedelta(seconds=60)
    return Probes(db, settings, database=settings_of(db_url), node="n1", silent=silent, metrics=Metrics())


async def condition(db: Database, conn: Connection, source: object, **how: Any) -> UUID:
    document = {"source": source, "every": "10s", **how}
    columns: dict[str, Any] = {"schedule_kind": "condition", "schedule_expr": "c", "condition": document}
    which = await schedule(conn, plan=False, overlap="allow", **columns)
    await Planner(db, node="n1").run_once()
    assert (await row(conn, which))["state_reason"] is None
    return which


async def measured(probes: Probes, conn: Connection, which: UUID) -> Any:
    """One probe: its value, or why there was none."""
    await pass_time(conn, 10)
    did = await probes.run_once()
    assert did.did is not None
    last = (await samples(conn, which))[-1]
    return last["error"] if last["value"] is None else last["value"]


async def test_a_statement_is_measured_and_fires(db: Database, conn: Connection, probes: Probes):
    """CO1, CO8 end to end: planner, probe, judgement, job."""
    await conn.execute("CREATE TABLE orders (n int); GRANT SELECT ON orders TO PUBLIC")
    which = await condition(db, conn, {"sql": "SELECT count(*) FROM orders"}, above=2)
    assert await measured(probes, conn, which) == 0
    await conn.execute("INSERT INTO orders VALUES (1), (2), (3)")
    assert await measured(probes, conn, which) == 3
    assert await told(conn, which) == [("fired", "condition")]
    assert (await probes.run_once()).next_due is not None


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELECT 1.5", 1.5),
        ("SELECT 12345678901234567890123::numeric", 12345678901234567890123.0),
        ("SELECT 10::numeric ^ 400", "not a number"),
        ("SELECT true", "of numbers"),
        ("SELECT ARRAY[1, 2]", "not a number"),
        ("SELECT '294000-01-01'::timestamptz", ""),
        ("SELECT 'x'::bytea", "not a number"),
        ("SELECT 1, 2", "2 columns"),
        ("SELECT 1 WHERE false", "no row"),
        ("SELECT generate_series(1, 10)", "more than one row"),
        ("SELECT NULL::int", "nothing"),
        ("SELECT 'NaN'::float8", "not a number"),
        ("SELECT 'many'", "not a number"),
        ("SELECT pg_sleep(9)", "statement timeout"),
        ("INSERT INTO workflows (name) VALUES ('x') RETURNING 1", "read-only"),
        ("SELECT set_config('transaction_read_only', 'off', true)", "transaction read-write mode"),
        ("SELECT 1; SELECT 2", "multiple commands"),
        ("COMMIT", "0 columns"),
        ("SELEC", "syntax error"),
        ("SELECT nobody FROM nowhere", "does not exist"),
    ],
)
async def test_a_statement_gives_one_value_or_none(
    db: Database, conn: Connection, probes: Probes, statement: str, said: object
):
    """CO9, CO5: whatever goes wrong is unknown, and the others go on."""
    which = await condition(db, conn, {"sql": statement}, above=1e30)
    found = await measured(probes, conn, which)
    assert said in found if isinstance(said, str) else found == said


async def test_a_statement_has_the_rights_of_its_own_role(db: Database, conn: Connection, probes: Probes):
    """CO9: no rights but those granted."""
    await conn.execute(roles_sql())
    await conn.execute("CREATE TABLE secrets (n int); CREATE TABLE shown (n int); GRANT SELECT ON shown TO accs_probe")
    hidden = await condition(db, conn, {"sql": "SELECT count(*) FROM secrets"}, above=1)
    assert "permission denied" in await measured(probes, conn, hidden)
    open_one = await condition(db, conn, {"sql": "SELECT count(*) FROM shown"}, above=1)
    assert await measured(probes, conn, open_one) == 0
    for table in ("public.jobs", "accs.outbox_targets"):
        which = await condition(db, conn, {"sql": f"SELECT count(*) FROM {table}"}, above=1)
        assert "permission denied" in await measured(probes, conn, which)


async def test_a_statement_of_the_control_host_runs_as_that_role(conn: Connection, server: TestServer, db_url: str):
    """CO9: and leaves nothing behind, whatever the statement did."""
    await conn.execute(roles_sql())
    settings = settings_of(url_as(server, db_url, "accs_scheduler"))
    assert await ask_database(settings, "SELECT current_user::text") == "accs_probe"
    assert await ask_database(settings, "SELECT pg_try_advisory_lock(7)") is True
    await eventually(lambda: conn.fetchval("SELECT pg_try_advisory_lock(7)"))
    assert await conn.fetchval("SELECT rolcanlogin FROM pg_roles WHERE rolname = 'accs_probe'") is False


@pytest.mark.parametrize("login", ["accs_scheduler", "the owner"])
async def test_no_statement_leaves_its_role(conn: Connection, server: TestServer, db_url: str, login: str):
    """CO9: the function lets nobody change the role while it runs, however the statement tries."""
    await conn.execute(roles_sql())
    await conn.execute("CREATE TABLE secrets AS SELECT 7 AS n; GRANT SELECT ON secrets TO accs_scheduler")
    url = db_url if login == "the owner" else url_as(server, db_url, login)
    await refuse_escapes(url)
    assert await ask_database(settings_of(url), "SELECT 2 + 2") == 4
    assert await ask_database(settings_of(url), "SELECT json_build_object('a', 1)") == {"a": 1}
    assert await ask_database(settings_of(url), "SHOW transaction_read_only") == "on"


async def test_an_expression_makes_a_value_of_an_answer(db: Database, conn: Connection, probes: Probes):
    """CO1."""
    source = {"sql": """SELECT '{"used": 30, "of": 40}'::jsonb"""}
    which = await condition(db, conn, source, expr="double(value.used) / double(value.of)", above=0.5)
    assert await measured(probes, conn, which) == 0.75
    wrong = await condition(db, conn, source, expr="value.free", above=0.5)
    assert "there is no value.free" in await measured(probes, conn, wrong)


async def test_a_value_in_an_answer_of_http(db: Database, conn: Connection, db_url: str):
    """CO1, CO9."""
    async with answering(http_answer(body='{"queues": [{"depth": 17}]}')) as server:
        base = f"http://127.0.0.1:{server.port}"
        probes = made(db, db_url, shop={"url": f"{base}/status", "allow_private": True})
        which = await condition(db, conn, {"http": {"url": f"{base}/status/q", "path": "queues.0.depth"}}, above=1e9)
        assert await measured(probes, conn, which) == 17
        assert server.requests[0].startswith("GET /status/q HTTP/1.1")
        other = await condition(db, conn, {"http": {"url": f"{base}/status", "path": "queues.1.depth"}}, above=1e9)
        assert 'no "queues.1.depth"' in await measured(probes, conn, other)
        asked = len(server.requests)
        secret = await condition(db, conn, {"http": f"{base}/admin"}, above=1)
        assert "not allowed" in await measured(probes, conn, secret)
        assert not any("/admin" in request for request in server.requests[asked:])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (http_answer("302 Found", "", "Location: http://127.0.0.1:1/"), "redirect (302)"),
        (http_answer("503 Busy", "1"), "answered 503"),
        (http_answer(body="<html>"), "not JSON"),
        (http_answer(body=" " * 70_000 + "1"), "longer than 65536"),
        (b"what?\r\n\r\n", "not HTTP"),
    ],
)
async def test_an_answer_of_http_that_is_none(db: Database, conn: Connection, db_url: str, answer: bytes, said: str):
    """CO9: no redirect, 64 KiB; CO5: unknown, never false."""
    async with answering(answer) as server:
        base = f"http://127.0.0.1:{server.port}"
        probes = made(db, db_url, shop={"url": base, "allow_private": True})
        which = await condition(db, conn, {"http": base}, below=1)
        assert said in await measured(probes, conn, which)
        assert (await standing(conn, which))["state"] == "unknown"


async def test_a_private_address_is_refused_unless_it_is_allowed(db: Database, conn: Connection, db_url: str):
    """CO9: the address checks of the outbox."""
    probes = made(db, db_url, shop={"url": "https://localhost:1"})
    which = await condition(db, conn, {"http": "https://localhost:1/x"}, above=1)
    assert "private address" in await measured(probes, conn, which)


@pytest.mark.parametrize(
    "url",
    [
        "https://shop.example.com/status/../admin",
        "https://shop.example.com/status/%2e%2e/admin",
        "https://shop.example.com/statuses",
        "https://shop.example.com@evil.example.com/status",
        "https://evil.example.com@shop.example.com/status",
        "https://shop.example.com:444/status",
        "http://shop.example.com/status",
        "https://shop.example.com:x/status",
    ],
)
def test_only_what_lies_below_a_target_is_allowed(url: str):
    """CO9."""
    settings = ProbeSettings.model_validate({"targets": {"shop": {"url": "https://shop.example.com/status"}}})
    assert target_of("https://shop.example.com/status/a?b=c", settings)
    assert target_of("https://SHOP.example.com:443/status", settings)
    with pytest.raises(InvalidValue, match="not allowed"):
        target_of(url, settings)


async def test_a_silent_server_does_not_hold_up_the_others(db: Database, conn: Connection, db_url: str):
    """CO8: a deadline of at most `every`; side by side."""
    async with answering(None) as server:
        base = f"http://127.0.0.1:{server.port}"
        probes = made(db, db_url, shop={"url": base, "allow_private": True})
        slow = await condition(db, conn, {"http": base}, above=1, every="5s")
        quick = await condition(db, conn, {"sql": "SELECT 1"}, above=1)
        await pass_time(conn, 10)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(probes.run_once())

            async def is_sampled() -> bool:
                return bool(await samples(conn, quick))

            await eventually(is_sampled)
            assert not running.done()
        assert (await samples(conn, slow))[-1]["error"] == "no answer within 5 s"


async def test_what_accsd_knows_needs_no_statement(db: Database, conn: Connection, probes: Probes):
    """CO1: builtin."""
    waiting = await condition(db, conn, {"builtin": {"waiting": "render"}}, above=1)
    assert await measured(probes, conn, waiting) == 0
    dead = await condition(db, conn, {"builtin": "dead_letters"}, above=0)
    assert await measured(probes, conn, dead) == 0
    gone = await condition(db, conn, {"builtin": {"node_away": "n7"}}, **{"is": True})
    assert 'no node "n7"' in await measured(probes, conn, gone)


@pytest.mark.parametrize("topic", ["shop.order.new", "shop.order.*", "shop.**"])
async def test_silence_counts_from_the_last_event_or_from_the_beginning(
    db: Database, conn: Connection, probes: Probes, topic: str
):
    """CO1: silence."""
    await emit(conn, "shop.order.new")
    await pass_time(conn, 1000)
    which = await condition(db, conn, {"silence": topic}, above=60)
    assert 0 <= await measured(probes, conn, which) < 60
    await pass_time(conn, 100)
    assert await measured(probes, conn, which) >= 100
    assert await told(conn, which) == [("fired", "condition")]
    await emit(conn, "shop.order.new")
    await emit(conn, "other.order.new")
    assert 0 <= await measured(probes, conn, which) < 60
    await pass_time(conn, 30)
    await emit(conn, "shoporder.new")
    assert 30 <= await measured(probes, conn, which) < 60


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"source": {"sql": "SELECT 1"}, "above": 1}, "how often"),
        ({"source": {"sql": "SELECT 1"}, "above": 1, "every": "1s"}, "5 s"),
        ({"source": {"silence": "shop.*.new"}, "above": 1, "every": "10s"}, "no topic"),
        ({"source": {"sq": "SELECT 1"}, "above": 1, "every": "10s"}, 'did you mean "sql"'),
        ({"above": 1, "clear_above": 0}, "clear_below does"),
        ({"above": 1, "clear_below": 2}, "at once"),
        ({"above": 1, "tresh": 2}, 'no "tresh"'),
        ({"above": 1, "on_unknown": "panic", "stale": 5}, "keep, raise or clear"),
        ({"source": {"builtin": {"disk": "n1"}}, "above": 1, "every": "10s"}, "disks"),
        ({"source": {"sql": "SELECT 1"}, "above": 1, "every": "10s", "expr": "value +"}, "expr"),
    ],
)
async def test_a_condition_that_is_wrong_leaves_its_schedule_broken(
    db: Database, conn: Connection, how: dict[str, Any], said: str
):
    """SQ10: an edit mends it."""
    which = await schedule(conn, plan=False, schedule_kind="condition", schedule_expr="c", condition=how)
    await Planner(db, node="n1").run_once()
    found = await row(conn, which)
    assert found["state"] == "broken"
    assert said in found["state_reason"]
    assert (await outlook(conn))["next_probe"] is None
    await conn.execute("UPDATE schedules SET condition = '{\"above\": 1}' WHERE id = $1", which)
    await Planner(db, node="n1").run_once()
    assert (await row(conn, which))["state"] == "active"


async def test_a_prober_that_is_killed_has_lost_one_sample(db: Database, conn: Connection, probes: Probes):
    """Section 13: the next one goes on."""
    which = await condition(db, conn, {"sql": "SELECT 1"}, above=1)
    await pass_time(conn, 10)
    failpoints.arm("probe.ran:raise")
    with pytest.raises(ExceptionGroup):
        await probes.run_once()
    assert await samples(conn, which) == []
    assert await measured(probes, conn, which) == 1


async def test_two_probers_share_what_is_due(db: Database, conn: Connection, db_url: str):
    """CO8: no leader."""
    which = [await condition(db, conn, {"sql": f"SELECT {i}"}, above=100) for i in range(8)]
    await pass_time(conn, 10)
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(made(db, db_url).run_once())
    assert [len(await samples(conn, each)) for each in which] == [1] * 8


async def test_a_hold_stops_the_probes(db: Database, conn: Connection, probes: Probes):
    """PA4."""
    which = await condition(db, conn, {"sql": "SELECT 1"}, above=100)
    await pass_time(conn, 10)
    await conn.execute("SELECT accs.hold_schedules('inventory')")
    assert "inventory" in ((await probes.run_once()).obstacle or "")
    assert await samples(conn, which) == []
