"""One run: faults under load, then quiet, then clean deaths, then the verdict. `python -m tests.chaos --help`."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos import verdict
from tests.chaos.faults import DECK, Adversary, plan
from tests.chaos.fleet import LEASE, SLOTS, Fleet, Member, fleet
from tests.chaos.load import Load
from tests.chaos.verdict import Story
from tests.support.eventually import eventually

_SETTLED = 120.0  # so long all jobs may take to end once nothing is wrong any more
_TIDY = 30.0  # and so long nothing may be left on the nodes
_NEWS = 5.0


@dataclass(frozen=True, slots=True)
class Order:
    """What to do. `gap` is the mean time between faults, `slack` what a reclaim may take beyond the lease."""

    seed: int
    seconds: float
    postgres: str = "pg18"
    agents: int = 4
    containers: bool = True
    deck: Sequence[str] = DECK
    gap: float = 2.5
    deaths: int = 4
    restarts: int = 3
    slack: float = 2.0
    submitters: int = 2
    pause: float = 0.9  # of each submitter, between two submissions


@dataclass(frozen=True, slots=True)
class Outcome:
    verdict: dict[str, list[str]]
    figures: dict[str, str]

    @property
    def is_sound(self) -> bool:
        return not any(self.verdict.values())

    def __str__(self) -> str:
        return f"{verdict.table(self.figures)}\n\n{verdict.told(self.verdict)}"


async def run(order: Order, root: Path, say: Callable[[str], None] = print) -> Outcome:
    async with fleet(root, postgres=order.postgres, agents=order.agents, containers=order.containers) as made:
        load, adversary = Load(made, order.seed), Adversary(made)
        faults = plan(made, order.seed, seconds=order.seconds, gap=order.gap, deck=order.deck)
        for reason in made.left_out:
            say(f"left out: {reason}")
        await load.prepare()
        await made.start()
        say(f"seed {order.seed}, {order.postgres}: {len(faults)} faults in {order.seconds:.0f} s")
        async with _watched(made, load, adversary, say):
            async with _at_work(load, order):
                await adversary.carry_out(faults)
            say("no more faults: everything ends")
            await _settle(made, load)
            left = await _left(made)
            say("clean deaths, then clean restarts of PostgreSQL")
            reclaims, missing = await _clean_deaths(made, load, order)
            returns = [await _clean_restart(made, load) for _ in range(order.restarts)]
            await _settle(made, load)
            for what, found in (await _left(made)).items():
                left[what] += [each for each in found if each not in left[what]]
        await asyncio.gather(*(member.drain() for member in made.members))
        story = await Story.read(made, load)
        story.reclaims, story.not_reclaimed, story.returns, story.left_idle = reclaims, missing, returns, left
        story.left_after = _processes_after(made)
        return Outcome(await verdict.judge(story), await verdict.figures(story, adversary.done))


@asynccontextmanager
async def _at_work(load: Load, order: Order) -> AsyncGenerator[None]:
    """Submitters and operators for as long as the block lasts; at its end each has its last answer."""
    users = [asyncio.create_task(load.submit_on(n, pause=order.pause)) for n in range(order.submitters)]
    users.append(asyncio.create_task(load.operate_on(pause=0.7)))
    try:
        yield
    finally:
        for user in users:
            user.cancel()
        ended = await asyncio.gather(*users, return_exceptions=True)
    for each in ended:
        if isinstance(each, Exception):
            raise each


@asynccontextmanager
async def _watched(made: Fleet, load: Load, adversary: Adversary, say: Callable[[str], None]) -> AsyncGenerator[None]:
    """Looks at the backlog, revives whoever ended by itself, and says how it goes."""

    async def watch() -> None:
        began, said = time.monotonic(), 0.0
        while True:
            with suppress(OSError, TimeoutError):
                await load.look()
            await made.revive()
            if time.monotonic() - said >= _NEWS:
                said = time.monotonic()
                doing = ", ".join(map(str, adversary.under_way)) or "nothing wrong"
                executed = sum(each.notes.read_text().count("begin") for each in made.agents if each.notes.exists())
                say(
                    f"{said - began:5.0f} s  {len(load.acknowledged)} jobs, {executed} executions,"
                    f" {load.open_tasks} tasks open, {adversary.done.total()} faults; now: {doing}"
                )
            await asyncio.sleep(0.5)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def _settle(made: Fleet, load: Load) -> None:
    """The rule says what has not ended, if anything."""
    await load.settle()
    with suppress(AssertionError):
        await eventually(load.is_over, within=_SETTLED, interval=0.2)


async def _left(made: Fleet) -> dict[str, list[str]]:
    """What is still there after a while in which nothing happened."""

    def found() -> dict[str, list[str]]:
        return {
            "folder": made.folders_left(),
            "execution": made.executions_left(),
            "container": made.containers_left(),
        }

    async def nothing() -> bool:
        return not any((await asyncio.to_thread(found)).values())

    with suppress(AssertionError):
        await eventually(nothing, within=_TIDY, interval=0.3)
    return await asyncio.to_thread(found)


async def _clean_deaths(made: Fleet, load: Load, order: Order) -> tuple[list[float], list[str]]:
    """Agents die while nothing else is wrong: seconds until each of their tasks is taken back, and what is too late."""
    reclaims, missing = list[float](), list[str]()
    for number in range(order.deaths):
        victim = made.agents[number % len(made.agents)]
        await load.submit_long(SLOTS * len(made.agents), work=LEASE.total_seconds() + 2)
        await eventually(lambda victim=victim: _held(made, victim), within=60, interval=0.1)
        async with victim.lock:
            died = datetime.now(UTC)
            victim.kill()
            held = await _held(made, victim)
            limit = LEASE.total_seconds() + order.slack
            for task, attempt in held:
                seconds = await _reclaimed_after(made, task, attempt, died, within=limit + 20)
                reclaims += [seconds] if seconds is not None else []
                if seconds is None or seconds > limit:
                    missing.append(f"{task}.{attempt} of {victim.name}: {seconds} s, {limit} s are allowed")
            await victim.start()
    return reclaims, missing


async def _held(made: Fleet, agent: Member) -> list[tuple[object, int]]:
    rows = await made.desk.insist("SELECT task_id, attempt_id FROM accs.live WHERE node = $1", agent.name)
    return [(row["task_id"], row["attempt_id"]) for row in rows]


async def _reclaimed_after(made: Fleet, task: object, attempt: int, died: datetime, *, within: float) -> float | None:
    async def found() -> datetime | None:
        rows = await made.desk.insist(
            "SELECT ts FROM task_events WHERE job_task_id = $1 AND attempt_id = $2 AND data ->> 'outcome' = 'lost'",
            task,
            attempt,
        )
        return rows[0]["ts"] if rows else None

    with suppress(AssertionError):
        at = await eventually(found, within=within, interval=0.1)
        return (at - died).total_seconds() if at is not None else None
    return None


async def _clean_restart(made: Fleet, load: Load) -> float:
    """Seconds from the moment when PostgreSQL takes connections again to the first claim."""
    await load.submit_long(3 * SLOTS * len(made.agents), work=0.5)
    async with made.postgres_lock:
        await asyncio.to_thread(made.postgres.crash)
        await asyncio.to_thread(made.postgres.start)
    ready = datetime.now(UTC)

    async def claimed() -> datetime | None:
        [row] = await made.desk.insist(
            "SELECT min(ts) AS ts FROM task_events WHERE ts > $1 AND data ->> 'to' = 'starting'", ready
        )
        return row["ts"]

    at = await eventually(claimed, within=60, interval=0.1)
    assert at is not None
    return (at - ready).total_seconds()


def _processes_after(made: Fleet) -> list[str]:
    return [f"process {pid} of {member.name}" for member in made.members for pid in member.processes()]
