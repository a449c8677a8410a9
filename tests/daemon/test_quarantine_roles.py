"""The judge, who notices bad nodes and bad steps, and the node's own probing, which is the way out."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from accsd.db import Database
from accsd.db.quarantines import node_quarantines
from accsd.planning.quarantine import Quarantine as State
from accsd.planning.quarantine import Rules
from accsd.roles.judge import Judge
from accsd.roles.passes import Pass
from accsd.roles.probing import Probing
from accsd.settings import Quarantine
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import done, fail, node, pass_time, started, step, submit_to, workflow
from tests.support.library import opened

SETTINGS = Quarantine(probe=timedelta(seconds=30))


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as opening:
        yield opening


async def judged(db: Database, settings: Quarantine = SETTINGS) -> str:
    """By a judge of its own, who has not looked just now."""
    return (await Judge(db, settings).run_once()).did or ""


async def fleet(conn: Connection, jobs: int = 12) -> None:
    await node(conn, "n1", render=4)
    await node(conn, "n2", render=4)
    flow = await workflow(conn, step("a", backoff=[0]))
    for _ in range(jobs):
        await submit_to(conn, flow)


async def fall_ill(conn: Connection) -> None:
    await fleet(conn)
    failed = await started(conn, 3)
    await fail(conn, *failed)
    await done(conn, 4, on="n2")


class Machine:
    """A node that is asked whether it is well."""

    def __init__(self, db: Database) -> None:
        self.problem: str | None = None
        self.recovered: list[str] = []
        self.role = Probing(
            db,
            node="n1",
            rules=Rules,
            probes=lambda: {"render": self._probe},
            when_well=self.recovered.append,
            is_registered=lambda: True,
        )

    async def _probe(self) -> str | None:
        return self.problem

    async def look(self) -> Pass:
        return await self.role.run_once()


async def test_a_node_that_fails_where_others_pass_is_shut_with_the_reason(db: Database, conn: Connection):
    await fall_ill(conn)
    assert await judged(db) == "render on n1 put into quarantine"
    (ill,) = await node_quarantines(db, "n1")
    assert ill.state is State.SHUT
    assert '3 tasks of step "a" in a row failed here, while 4 passed on 1 other node' in ill.reason
    assert await judged(db) == ""
    await check(conn)


async def test_a_node_comes_back_by_itself_when_its_probe_and_its_trial_pass(db: Database, conn: Connection):
    await fall_ill(conn)
    await judged(db)
    machine = Machine(db)
    assert timedelta(seconds=20) < ((await machine.look()).next_due or timedelta(0)) <= timedelta(seconds=30)
    await pass_time(conn, 31)
    machine.problem = "the mount is gone"
    assert (await machine.look()).did == "render is not well yet: the mount is gone"
    assert (await machine.look()).next_due is not None
    machine.problem = None
    await pass_time(conn, 61)
    assert (await machine.look()).did == "render is well again, and takes a task on trial"
    assert machine.recovered == ["render"]
    await done(conn, 1)
    assert await judged(db) == "render on n1 out of quarantine"
    assert await node_quarantines(db, "n1") == []
    assert await judged(db) == ""
    await check(conn)


async def test_a_trial_that_fails_shuts_it_again_for_longer(db: Database, conn: Connection):
    await fall_ill(conn)
    await judged(db)
    await pass_time(conn, 31)
    await Machine(db).look()
    await fail(conn, *await started(conn, 1), message="still broken")
    assert await judged(db) == "render on n1 put into quarantine"
    (ill,) = await node_quarantines(db, "n1")
    assert ill.reason == "its trial failed: boom: still broken"
    assert (ill.times, ill.state) == (2, State.SHUT)
    assert ill.probe_in > timedelta(seconds=55)


async def test_a_step_that_fails_everywhere_is_marked_until_it_passes(db: Database, conn: Connection):
    await fleet(conn)
    await fail(conn, *await started(conn, 3))
    await fail(conn, *await started(conn, 3, on="n2"))
    assert await judged(db) == 'step "a" fails everywhere'
    assert await conn.fetchval("SELECT count(*) FROM accs.quarantines") == 0
    await done(conn, 1)
    assert await judged(db) == 'step "a" does not fail everywhere any more'


async def test_a_judge_who_has_just_looked_waits_a_moment(db: Database, conn: Connection):
    judge = Judge(db, SETTINGS)
    await judge.run_once()
    await fall_ill(conn)
    soon = await judge.run_once()
    assert soon.did is None
    assert soon.next_due is not None


async def kept(conn: Connection) -> int:
    return await conn.fetchval("SELECT count(*) FROM accs.conclusions")


async def test_nothing_is_kept_of_a_failure_that_has_become_too_old(db: Database, conn: Connection):
    await fleet(conn)
    await fail(conn, *await started(conn, 1))
    judge = Judge(db, SETTINGS)
    await judge.run_once()
    assert await kept(conn) == 1
    await pass_time(conn, 7200)

    async def is_forgotten() -> bool:
        await judge.run_once()
        return not await kept(conn)

    await eventually(is_forgotten, within=5)


async def test_switched_off_it_lets_everybody_work_and_still_forgets(db: Database, conn: Connection):
    await fall_ill(conn)
    assert await judged(db) == "render on n1 put into quarantine"
    off = Quarantine(is_on=False)
    assert await judged(db, off) == "render on n1 out of quarantine"
    assert len(await started(conn, 4)) == 4
    await pass_time(conn, 7200)
    assert await judged(db, off) == ""
    assert await kept(conn) == 0
