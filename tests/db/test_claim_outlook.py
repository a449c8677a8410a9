"""agent_outlook: what a claim would find now, and in how long the next retry comes."""

from datetime import timedelta

import asyncpg
import pytest

from tests.support.cluster import Connection
from tests.support.factory import (
    claim,
    fail,
    node,
    pass_time,
    release,
    started,
    step,
    submit,
    submit_to,
    workflow,
)

NOTHING = (False, None)


async def ahead(conn: Connection, *services: str, on: str = "n1") -> dict[str, tuple[bool, timedelta | None]]:
    rows = await conn.fetch("SELECT * FROM accs.agent_outlook($1, $2)", on, list(services))
    assert len(rows) == len(services)
    return {row["service"]: (row["claimable"], row["next_due"]) for row in rows}


def about(found: timedelta | None, seconds: float) -> bool:
    """A little less may be left by now."""
    return found is not None and timedelta(seconds=seconds - 5) < found <= timedelta(seconds=seconds)


async def test_each_service_is_told_whether_something_waits_for_it(conn: Connection):
    await node(conn)
    await submit(conn, step("a"), step("b", "audio", after="a"))
    assert await ahead(conn, "render", "audio", "unknown") == {
        "render": (True, None),
        "audio": NOTHING,
        "unknown": NOTHING,
    }
    await claim(conn)
    assert await ahead(conn, "render") == {"render": NOTHING}


async def test_a_retry_is_foretold_and_then_claimable(conn: Connection):
    await node(conn)
    await submit(conn, step("a", backoff=[30]))
    await submit(conn, step("a", backoff=[90]))
    await fail(conn, *await started(conn, 2))
    claimable, due = (await ahead(conn, "render"))["render"]
    assert not claimable
    assert about(due, 30)
    await pass_time(conn, 31)
    claimable, due = (await ahead(conn, "render"))["render"]
    assert claimable, "a claim promotes what is due"
    assert about(due, 59), "the next one, in the future, so that nobody spins over what is due already"
    assert len(await claim(conn, 9)) == 1


async def test_a_node_hears_only_of_what_it_may_take(conn: Connection):
    await node(conn)
    await node(conn, "gpu", {"gpu": True})
    await submit(conn, step("a", requires={"gpu": True}), step("b", "audio", node="n1"))
    assert await ahead(conn, "render", "audio") == {"render": NOTHING, "audio": (True, None)}
    assert await ahead(conn, "render", "audio", on="gpu") == {"render": (True, None), "audio": NOTHING}


@pytest.mark.parametrize(("kind", "name"), [("service", "render"), ("node", "n1"), ("workflow", "w")])
async def test_what_is_paused_is_not_claimable(conn: Connection, kind: str, name: str):
    await node(conn)
    flow = await workflow(conn, step("a", backoff=[30]), name="w")
    await submit_to(conn, flow)
    await submit_to(conn, flow)
    await fail(conn, *await started(conn))
    await conn.execute("SELECT accs.pause($1, $2)", kind, name)
    claimable, due = (await ahead(conn, "render"))["render"]
    assert not claimable
    if kind != "workflow":
        assert due is None
    await conn.execute("SELECT accs.resume($1, $2)", kind, name)
    assert (await ahead(conn, "render"))["render"][0]


async def test_nothing_is_claimable_beyond_a_nodes_capacity_or_a_full_key(conn: Connection):
    await node(conn, render=1)
    await submit(conn, step("a"), step("b"))
    await submit(conn, step("a", "mixer", concurrency_key="k"), step("b", "mixer", concurrency_key="k"))
    assert await ahead(conn, "render", "mixer") == {"render": (True, None), "mixer": (True, None)}
    (held,) = await claim(conn, 5)
    assert len(await claim(conn, 5, "mixer")) == 1
    assert await ahead(conn, "render", "mixer") == {"render": NOTHING, "mixer": NOTHING}
    await release(conn, held)
    assert (await ahead(conn, "render"))["render"] == (True, None)


async def test_a_node_that_is_not_registered_is_told_so(conn: Connection):
    with pytest.raises(asyncpg.PostgresError, match='node "n1" is not registered'):
        await ahead(conn, "render")
