"""The judge, who notices bad nodes and bad steps, and the node's own probing, which is the way out."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import cast

import anyio
import pytest

from accsd.agent.probe import Probe
from accsd.builder.judge import Judge
from accsd.db import Database
from accsd.db.answers import Verdict
from accsd.db.quarantine import end_trial, health_evidence, lift_quarantine, node_quarantines, quarantine
from accsd.metrics import Metrics
from accsd.planning.quarantine import Judgement, QuarantineRules, judge
from accsd.planning.quarantine import Quarantine as State
from accsd.settings import QuarantineSettings
from accsd.supervisor import Pass
from accsd.work.service import LocalService
from tests.conftest import Connect
from tests.support.attempts import node_of
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import done, fail, node, pass_time, started, step, submit_to, workflow
from tests.support.library import opened

SETTINGS = QuarantineSettings(probe=timedelta(seconds=30))


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as opening:
        yield opening


async def judged(db: Database, settings: QuarantineSettings = SETTINGS, metrics: Metrics | None = None) -> str:
    """By a judge of its own, who has not looked just now."""
    return (await Judge(db, settings, metrics=metrics or Metrics()).run_once()).did or ""


async def judgement(db: Database) -> Judgement:
    """What a builder has judged, and not carried out yet."""
    return judge(await health_evidence(db, window=SETTINGS.window), QuarantineRules())


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
        self.node = node_of(db)
        self.node.services = {"render": cast("LocalService", self)}
        self.role = Probe(self.node)

    async def why_unfit(self, _context: object) -> str | None:
        return self.problem

    async def look(self) -> Pass:
        return await self.role.run_once()


async def test_a_node_that_fails_where_others_pass_is_shut_with_the_reason(db: Database, conn: Connection):
    await fall_ill(conn)
    metrics = Metrics()
    assert await judged(db, metrics=metrics) == "render on n1 put into quarantine"
    assert b'accsd_quarantines{state="shut"} 1.0' in metrics.render()
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
    assert machine.node.well == {"render"}
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


async def on_trial(db: Database, conn: Connection) -> None:
    await fall_ill(conn)
    await judged(db)
    await pass_time(conn, 31)
    await Machine(db).look()


async def test_who_has_judged_before_a_node_was_resumed_by_hand_does_not_shut_it(db: Database, conn: Connection):
    await fall_ill(conn)
    (late,) = (await judgement(db)).shut
    await judged(db)  # by another builder
    assert await lift_quarantine(db, node="n1", because="resumed", by="ops")
    assert await quarantine(db, late) is Verdict.REFUSED
    assert await node_quarantines(db, "n1") == []


async def test_a_judgement_that_waits_for_a_resume_sees_what_it_has_forgiven(
    db: Database, conn: Connection, connect: Connect
):
    await fall_ill(conn)
    (late,) = (await judgement(db)).shut
    await judged(db)
    operator = await connect()
    answers: list[Verdict] = []

    async def shut() -> None:
        answers.append(await quarantine(db, late))

    async with anyio.create_task_group() as group, operator.transaction():  # committed while the judgement waits
        await operator.fetch("SELECT * FROM accs.lift_quarantine('n1', NULL, 'resumed', 'ops')")
        group.start_soon(shut)
        await eventually(lambda: waits_for_a_lock(conn))
    assert answers == [Verdict.REFUSED]
    assert await node_quarantines(db, "n1") == []


async def waits_for_a_lock(conn: Connection) -> bool:
    return await conn.fetchval(
        "SELECT EXISTS (SELECT FROM pg_stat_activity"
        " WHERE query LIKE '%accs.quarantine(%' AND wait_event = 'transactionid')"
    )


async def test_who_has_judged_before_something_passed_does_not_shut_it_but_more_failures_change_nothing(
    db: Database, conn: Connection
):
    await fall_ill(conn)
    (late,) = (await judgement(db)).shut
    await done(conn, 1)
    assert await quarantine(db, late) is Verdict.REFUSED
    await fail(conn, *await started(conn, 3))
    await done(conn, 4, on="n2")
    (again,) = (await judgement(db)).shut
    await fail(conn, *await started(conn, 1))
    assert await quarantine(db, again) is Verdict.ACCEPTED


async def test_a_trial_is_judged_once_and_by_its_last_word(db: Database, conn: Connection):
    await on_trial(db, conn)
    await done(conn, 1)
    (lift,) = (await judgement(db)).lift
    await fail(conn, *await started(conn, 1))
    assert not await end_trial(db, lift, because="its trial passed"), "it has failed since"
    (shut,) = (await judgement(db)).shut
    assert await quarantine(db, shut) is Verdict.ACCEPTED
    await pass_time(conn, 120)
    await Machine(db).look()  # on trial again
    assert await quarantine(db, shut) is Verdict.REFUSED, "of the trial before"
    assert not await end_trial(db, lift, because="its trial passed")
    assert [(ill.state, ill.times) for ill in await node_quarantines(db, "n1")] == [(State.TRIAL, 2)]


async def test_a_judge_who_has_just_looked_waits_a_moment(db: Database, conn: Connection):
    role = Judge(db, SETTINGS, metrics=Metrics())
    await role.run_once()
    await fall_ill(conn)
    soon = await role.run_once()
    assert soon.did is None
    assert soon.next_due is not None


async def kept(conn: Connection) -> int:
    return await conn.fetchval("SELECT count(*) FROM accs.conclusions")


async def test_nothing_is_kept_of_a_failure_that_has_become_too_old(db: Database, conn: Connection):
    await fleet(conn)
    await fail(conn, *await started(conn, 1))
    role = Judge(db, SETTINGS, metrics=Metrics())
    await role.run_once()
    assert await kept(conn) == 1
    await pass_time(conn, 7200)

    async def is_forgotten() -> bool:
        await role.run_once()
        return not await kept(conn)

    await eventually(is_forgotten, within=5)


async def test_switched_off_it_lets_everybody_work_and_still_forgets(db: Database, conn: Connection):
    await fall_ill(conn)
    assert await judged(db) == "render on n1 put into quarantine"
    off = QuarantineSettings(is_on=False)
    assert await judged(db, off) == "render on n1 out of quarantine"
    assert len(await started(conn, 4)) == 4
    await pass_time(conn, 7200)
    assert await judged(db, off) == ""
    assert await kept(conn) == 0
