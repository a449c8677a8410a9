"""Saved views, bounded counts, search: what people see beside the lists."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from accsd.db import Database, Pausable, pause
from accsd.db.answers import Verdict
from accsd.db.lists import ViewAnswer, cursor_key, drop_view, save_view, views
from accsd.db.views import counts
from accsd.db.views.counts import BoundedCount, motion
from accsd.db.views.dead_letters import LetterFilter, letter_groups, list_letters
from accsd.db.views.search import MOST, Hit, search
from accsd.errors import ConfigError, InvalidValue
from tests.support.cluster import Connection
from tests.support.factory import chain, fail, node, started, step, submit_to, workflow
from tests.support.library import opened
from tests.support.many import Explained, as_if_large, finished
from tests.support.roles import As
from tests.support.roles import connect_as as connect_as
from tests.support.roles import roles as roles


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as db:
        yield db


# Views


async def test_a_view_is_ones_own_or_shared(db: Database):
    query: dict[str, Any] = {"q": "status:error"}
    assert await save_view(db, "mine", query, owner="anna", by="anna") == ViewAnswer(Verdict.ACCEPTED, None, 1)
    assert await save_view(db, "mine", query, owner="anna", by="anna") == ViewAnswer(Verdict.REPEATED, None, 1)
    await save_view(db, "all", query, owner=None, by="ben")
    await save_view(db, "mine", {}, owner=None, by="ben")
    assert [(view.name, view.owner) for view in await views(db, "anna")] == [
        ("all", None),
        ("mine", "anna"),
        ("mine", None),
    ]
    assert [(view.name, view.owner) for view in await views(db, "ben")] == [("all", None), ("mine", None)]
    assert await drop_view(db, "mine", owner="anna", by="anna") is Verdict.ACCEPTED
    assert await drop_view(db, "mine", owner="anna", by="anna") is Verdict.REPEATED
    assert len(await views(db, "anna")) == 2


async def test_nobodys_change_of_a_view_is_lost(db: Database):
    async def save(query: dict[str, Any], revision: int | None) -> ViewAnswer:
        return await save_view(db, "v", query, owner=None, by="anna", if_revision=revision)

    assert (await save({"a": 1}, 3)).reason == "not_found"
    assert (await save({"a": 1}, 0)).verdict is Verdict.ACCEPTED
    assert await save({"a": 2}, 0) == ViewAnswer(Verdict.REFUSED, "revised", 1), "somebody else made it"
    assert await save({"a": 2}, 1) == ViewAnswer(Verdict.ACCEPTED, None, 2)
    assert await save({"a": 3}, 1) == ViewAnswer(Verdict.REFUSED, "revised", 2)
    assert await save({"a": 2}, 1) == ViewAnswer(Verdict.REPEATED, None, 2), "the answer to the same call got lost"
    assert await save({"a": 4}, None) == ViewAnswer(Verdict.ACCEPTED, None, 3)
    with pytest.raises(InvalidValue):
        await save_view(db, "", {}, owner=None, by="anna")
    with pytest.raises(InvalidValue):
        await save_view(db, "v", {"x": "y" * 20_000}, owner=None, by="anna")


@pytest.mark.usefixtures("roles")
async def test_only_a_gateway_gets_the_key_of_the_cursors(connect_as: As):
    api = await connect_as("accs_api")
    assert len(await cursor_key(api)) == 32
    for role in ("accs_api", "accs_reader", "accs_scheduler"):
        with pytest.raises(ConfigError):
            await (await connect_as(role)).fetch("SELECT * FROM accs.cursor_keys")
    with pytest.raises(ConfigError):
        await cursor_key(await connect_as("accs_reader"))


# Counts


async def test_what_is_in_motion_is_counted_by_what_holds_it(
    db: Database, conn: Connection, monkeypatch: pytest.MonkeyPatch
):
    await node(conn)
    plain = await workflow(conn, *chain("a", "b"), name="plain")
    keyed = await workflow(conn, step("a", "audio", concurrency_key="k"), name="keyed")
    await conn.fetch("SELECT accs.set_concurrency_limit('k', 1)")
    stopped = await workflow(conn, step("a", "audio"), name="stopped")
    for flow in (plain, plain, plain, keyed, keyed, keyed, stopped):
        await submit_to(conn, flow)
    await conn.execute("INSERT INTO jobs (workflow_id, scheduled_at) VALUES ($1, 'infinity')", plain)
    (first, _) = await started(conn, 2)
    await fail(conn, first)
    await pause(db, Pausable.WORKFLOW, "stopped")
    found = await motion(db)
    assert (str(found.queued), str(found.running), str(found.dead_letters)) == ("1", "7", "0")
    by_service = {each.service: each for each in found.services}
    none, one, two = BoundedCount(0, False), BoundedCount(1, False), BoundedCount(2, False)
    render, audio = by_service["render"], by_service["audio"]
    assert (render.claimable, render.in_backoff, render.live, render.paused) == (one, one, one, none)
    assert (audio.claimable, audio.held_by_key, audio.paused, audio.live) == (one, two, one, none)
    # and no further than so many
    for name in ("_JOBS", "_TASKS"):
        text = getattr(counts, name).replace("LIMIT 10001", "LIMIT 2").replace("> 10000", "> 1")
        monkeypatch.setattr(counts, name, text)
    monkeypatch.setattr(counts, "COUNTED", 1)
    few = await motion(db)
    assert str(few.running) == "1+"
    assert {each.service: str(each.held_by_key) for each in few.services} == {"audio": "1+", "render": "0"}


# Search


async def test_one_field_finds_ids_keys_and_names(db: Database, conn: Connection):
    await node(conn, "media-box", render=1)
    media = await workflow(conn, step("a", "media-cut"), name="media")
    await workflow(conn, step("a"), name="remedial")
    job = await submit_to(conn, media, key="order-1")
    other = await submit_to(conn, media, key="http/anna/order-2")
    await conn.execute(
        """INSERT INTO schedules (name, schedule_kind, schedule_expr, timezone, workflow)
           VALUES ('Media nightly', 'cron', '30 2 * * *', 'UTC', 'media')"""
    )

    async def hits(text: str, **how: Any) -> list[tuple[str, str]]:
        return [(hit.kind, hit.id) for hit in (await search(db, text, **how)).hits]

    assert await hits("MEDI") == [
        ("workflow", "media"),
        ("workflow", "remedial"),
        ("service", "media-cut"),
        ("node", "media-box"),
        ("schedule", "Media nightly"),
    ]
    assert (await search(db, "order-1")).hits == [Hit("job", str(job), "media", "key")]
    assert await hits("order-2") == []
    assert await hits("order-2", actor="anna") == [("job", str(other))]
    for text in (str(job), str(job)[-8:], str(job).upper()[-8:], f" {str(job)[:-2]} "):
        assert ("job", str(job)) in await hits(text)
    assert await hits(str(job), within=["other-*"]) == []
    assert await hits("medi", within=["remedial"]) == [
        ("workflow", "remedial"),
        *[found for found in await hits("MEDI") if found[0] != "workflow"],
    ]
    assert await hits("%") == await hits("  ") == await hits("0000-ffff-000") == []


async def test_a_search_has_few_hits_and_says_that_there_are_more(db: Database, conn: Connection):
    media = await workflow(conn, name="media-0000")
    for number in range(9):
        await node(conn, f"media-{number}")
        await submit_to(conn, media)
    found = await search(db, "media")
    assert len([hit for hit in found.hits if hit.kind == "node"]) == 6
    assert (len(found.hits) <= MOST, found.complete) == (True, False)
    assert (await search(db, "media-7")).complete
    whole = await conn.fetchval("SELECT id FROM jobs LIMIT 1")
    jobs = (await search(db, str(whole)[:4])).hits
    assert len(jobs) == 6


async def test_counts_and_search_read_no_jobs_from_end_to_end(conn: Connection):
    await finished(conn, 500)
    await node(conn)
    await submit_to(conn, await workflow(conn, step("a", max_attempts=1)))
    await fail(conn, *await started(conn))
    await as_if_large(conn)
    spy = Explained.over(conn)
    await motion(spy)
    await search(spy, "abcd1234")
    await list_letters(spy, LetterFilter(service="x"))
    await letter_groups(spy, LetterFilter())
    text = "\n".join(spy.plans)
    for table in ("jobs", "job_tasks", "dead_letters"):
        assert f"Seq Scan on {table}" not in text, text
