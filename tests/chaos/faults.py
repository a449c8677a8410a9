"""The faults: which kinds there are, which of them a seed draws, and how each is carried out from outside.

Kinds are dealt like cards, so that every one of them comes up; the last fault is always an outage of the database that
outlasts the leases, after which nothing may be left behind. A fault holds its target's lock, mends what it broke, and
returns.
"""

import asyncio
import errno
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.fleet import LEASE, Fleet, Member, Span, boot_clock, executing, with_slots
from tests.support.eventually import eventually

_BEYOND = (LEASE.total_seconds() + 1, LEASE.total_seconds() + 3)
_STATEMENTS = ("claim_tasks", "start_tasks", "finish_tasks", "heartbeat", "adopt_tasks", "release_tasks")


@dataclass(frozen=True, slots=True)
class Fault:
    """One that a seed has drawn. `roll` seeds what can only be chosen on the spot."""

    at: float  # seconds from the beginning
    kind: str
    target: str
    length: float
    roll: int

    @property
    def rng(self) -> random.Random:
        return random.Random(self.roll)

    def __str__(self) -> str:
        return f"{self.kind} ({self.target}, {self.length:.1f} s)"


# What a fault does to its target while that is locked; it sleeps for `length` itself.
OnMember = Callable[[Fleet, Member, Fault], Awaitable[None]]
OnFleet = Callable[[Fleet, Fault], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Kind:
    """`often` is how many of it are in a deck, `lengths` from which to which length in seconds."""

    often: int
    lengths: tuple[float, float]
    do: OnMember | None = None
    on: str = "agents"  # whom `do` harms: agents, builders, members (both), small
    do_all: OnFleet | None = None  # what is everybody's: PostgreSQL, the submitters' cable


# Daemons


async def _kill(_: Fleet, member: Member, fault: Fault) -> None:
    member.kill()
    await asyncio.sleep(fault.length)
    await member.start()


async def _cut_power(fleet: Fleet, member: Member, fault: Fault) -> None:
    """The daemon first, or it would see the others die."""
    member.kill()
    fleet.killed.update(executing(f"{member.folder}/").values())
    for pid in member.processes():
        _send(pid, signal.SIGKILL)
    await asyncio.sleep(fault.length)
    await member.start()


async def _stop(_: Fleet, member: Member, fault: Fault) -> None:
    member.pause()
    await asyncio.sleep(fault.length)
    member.resume()


async def _suspend(_: Fleet, member: Member, fault: Fault) -> None:
    """All that the node runs stands still, and no packet comes through. When it is back, the network takes its time.
    Most begin when an attempt has its envelope and is about to start."""
    if fault.rng.random() < 0.8:
        await asyncio.to_thread(_wait_for_envelope, member.attempts, 3.0)
    member.pause()
    member.cable.fall_silent()
    stopped = _signal_all(member, signal.SIGSTOP)
    stopped |= _signal_all(member, signal.SIGSTOP)  # what was just being forked
    await asyncio.sleep(fault.length)
    for pid in stopped:
        _send(pid, signal.SIGCONT)
    member.resume()
    await asyncio.sleep(fault.rng.uniform(0, 1.5))
    member.cable.flow_again()


def _wait_for_envelope(attempts: Path, seconds: float) -> bool:
    """Looks without a pause: from the envelope to the command it takes milliseconds."""
    known, deadline = set(os.listdir(attempts)), time.monotonic() + seconds
    while time.monotonic() < deadline:
        for name in set(os.listdir(attempts)) - known:
            if (attempts / name / "task.json").exists():
                return True
        time.sleep(0.0005)
    return False


async def _drain(_: Fleet, member: Member, fault: Fault) -> None:
    await member.drain()
    await asyncio.sleep(fault.length)
    await member.start()


async def _reload(_: Fleet, member: Member, fault: Fault) -> None:
    await _with_config(member, with_slots(member.config, fault.rng.randint(2, 6)), fault.length)


async def _reload_broken(_: Fleet, member: Member, fault: Fault) -> None:
    broken = fault.rng.choice(['"this is [no TOML', "node.labels = 7", member.config.replace("command", "comand")])
    await _with_config(member, broken, fault.length)


async def _with_config(member: Member, text: str, length: float) -> None:
    if not member.has_started:
        return  # without its database it reads nothing again
    for config in (text, member.config):
        member.process.config.write_text(config)
        member.process.signal(signal.SIGHUP)
        await asyncio.sleep(length)


# Networks


async def _cut(_: Fleet, member: Member, fault: Fault) -> None:
    for _again in range(fault.rng.randint(1, 3)):
        member.cable.cut()
        await asyncio.sleep(fault.length)


async def _fall_silent(_: Fleet, member: Member, fault: Fault) -> None:
    outage = _outage(member)
    member.cable.fall_silent()
    await asyncio.sleep(fault.length)
    member.cable.flow_again()
    outage.end = boot_clock()


async def _refuse(_: Fleet, member: Member, fault: Fault) -> None:
    outage = _outage(member)
    member.cable.refuse()
    member.cable.cut()
    await asyncio.sleep(fault.length)
    await _accept_again(member)
    outage.end = boot_clock()


async def _accept_again(member: Member) -> None:
    """Meanwhile somebody's outgoing connection may have been given our port."""

    async def accepts() -> bool:
        try:
            await member.cable.accept()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        return True

    await eventually(accepts, within=30, interval=0.2)


async def _lose_answers(fleet: Fleet, member: Member, fault: Fault) -> None:
    member.cable.lose_answer_to(fault.rng.choice(_STATEMENTS), times=fault.rng.randint(1, 3))
    await asyncio.sleep(fault.length)
    member.cable.left_to_lose = 0


def _outage(member: Member) -> Span:
    member.outages.append(Span(boot_clock()))
    return member.outages[-1]


async def _harm_submitters(fleet: Fleet, fault: Fault) -> None:
    """The server may have done what they asked for, and they never hear of it."""
    fleet.submitting.lose_answer_to(fault.rng.choice(["INSERT INTO jobs", "accs.submit("]), times=2)
    await asyncio.sleep(fault.length / 2)
    fleet.submitting.cut()
    await asyncio.sleep(fault.length / 2)
    fleet.submitting.left_to_lose = 0


# A node's disk and its tasks


async def _fill_disk(_: Fleet, member: Member, fault: Fault) -> None:
    ballast = member.state / "ballast"
    await asyncio.to_thread(_fill, ballast)
    await asyncio.sleep(fault.length)
    ballast.unlink()


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as growing, suppress(OSError):
        while growing.write(b"x" * 65536):
            pass


async def _kill_tasks(fleet: Fleet, member: Member, fault: Fault) -> None:
    found = executing(f"{member.folder}/")
    for pid in fault.rng.sample(sorted(found), min(len(found), 2)):
        fleet.killed.add(found[pid])
        _send(pid, signal.SIGKILL)


async def _kill_shims(fleet: Fleet, member: Member, fault: Fault) -> None:
    shims = [pid for pid in member.processes() if "shim.py" in _arguments(pid)]
    for pid in fault.rng.sample(shims, min(len(shims), 2)):
        _send(pid, signal.SIGKILL)


async def _remove_container(fleet: Fleet, member: Member, fault: Fault) -> None:
    node = fleet.composed[member.name]
    with suppress(subprocess.SubprocessError):
        found = await asyncio.to_thread(node.ours, member.name)
        for container in fault.rng.sample(found, min(len(found), 1)):
            await asyncio.to_thread(node.docker, "rm", "-f", container)


# PostgreSQL


async def _crash(fleet: Fleet, fault: Fault) -> None:
    """-m immediate: no checkpoint; recovery at the next start."""
    outages = [_outage(member) for member in fleet.members]
    await asyncio.to_thread(fleet.postgres.crash)
    await asyncio.sleep(fault.length)
    await asyncio.to_thread(fleet.postgres.start)
    for outage in outages:
        outage.end = boot_clock()


async def _kill_backend(fleet: Fleet, fault: Fault) -> None:
    """The postmaster takes all others down and recovers."""
    _send(fault.rng.choice(_backends(fleet)), signal.SIGKILL)
    await asyncio.sleep(fault.length)
    await fleet.desk.insist("SELECT 1")


async def _terminate_backends(fleet: Fleet, fault: Fault) -> None:
    found = _backends(fleet)
    for pid in fault.rng.sample(found, len(found) // 2):
        _send(pid, signal.SIGTERM)
    await asyncio.sleep(fault.length)


async def _freeze_backends(fleet: Fleet, fault: Fault) -> None:
    """Some of them hold locks."""
    found = _backends(fleet)
    frozen = fault.rng.sample(found, len(found) // 2)
    for pid in frozen:
        _send(pid, signal.SIGSTOP)
    await asyncio.sleep(fault.length)
    for pid in frozen:
        _send(pid, signal.SIGCONT)


def _backends(fleet: Fleet) -> list[int]:
    """Those that serve somebody over TCP."""
    postmaster = fleet.postgres.now.postmaster_pid
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    return [int(pid) for pid in children if "127.0.0.1(" in _arguments(int(pid))]


def _arguments(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


def _signal_all(member: Member, number: signal.Signals) -> set[int]:
    found = set(member.processes()) - {member.process.pid}
    for pid in found:
        _send(pid, number)
    return found


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


DATABASE_AWAY = "database away beyond the lease"
KINDS = {
    "agent killed": Kind(4, (0, 2), _kill),
    "agent dead beyond its lease": Kind(2, _BEYOND, _kill),
    "power cut": Kind(2, (0, 8), _cut_power),
    "agent stopped": Kind(1, (0.5, 3), _stop),
    "agent stopped beyond its lease": Kind(2, _BEYOND, _stop),
    "node suspended": Kind(4, _BEYOND, _suspend),
    "agent drained": Kind(2, (0, 2), _drain),
    "reload": Kind(1, (0.3, 1), _reload),
    "reload of a broken file": Kind(1, (0.3, 1), _reload_broken),
    "builder killed": Kind(2, (0, 3), _kill, "builders"),
    "builder stopped": Kind(1, (1, 8), _stop, "builders"),
    "builder drained": Kind(1, (0, 1), _drain, "builders"),
    "connections cut": Kind(3, (0.1, 0.5), _cut, "members"),
    "black hole": Kind(2, (0.5, 4), _fall_silent, "members"),
    "black hole beyond the lease": Kind(3, _BEYOND, _fall_silent),
    "connections refused": Kind(2, (0.5, 8), _refuse, "members"),
    "answers lost": Kind(3, (0.5, 3), _lose_answers, "members"),
    "submitters cut off": Kind(2, (1, 3), do_all=_harm_submitters),
    "disk full": Kind(2, (1, 4), _fill_disk, "small"),
    "tasks killed": Kind(3, (0, 0), _kill_tasks),
    "shims killed": Kind(2, (0, 0), _kill_shims),
    "container removed": Kind(2, (0, 0), _remove_container, "composed"),
    "postgres -m immediate": Kind(2, (0, 3), do_all=_crash),
    DATABASE_AWAY: Kind(1, _BEYOND, do_all=_crash),
    "backend kill -9": Kind(1, (0.2, 1), do_all=_kill_backend),
    "backends terminated": Kind(1, (0.2, 1), do_all=_terminate_backends),
    "half of the backends frozen": Kind(1, (0.5, 6), do_all=_freeze_backends),
}
DECK = tuple(name for name, kind in KINDS.items() for _ in range(kind.often))


def plan(fleet: Fleet, seed: int, *, seconds: float, gap: float, deck: Sequence[str]) -> list[Fault]:
    """What a seed does to this fleet, `gap` seconds apart on average; `deck` is dealt again and again."""
    rng, at, left, drawn = random.Random(seed), 0.0, list[str](), list[Fault]()
    possible = [name for name in deck if _targets(fleet, KINDS[name])]
    while (at := at + rng.expovariate(1 / gap)) < seconds:
        left = left or rng.sample(possible, len(possible))
        drawn.append(_draw(fleet, rng, at, left.pop()))
    return [*drawn, _draw(fleet, rng, seconds, DATABASE_AWAY)]


def _draw(fleet: Fleet, rng: random.Random, at: float, name: str) -> Fault:
    kind = KINDS[name]
    return Fault(at, name, rng.choice(_targets(fleet, kind)), rng.uniform(*kind.lengths), rng.getrandbits(32))


def _targets(fleet: Fleet, kind: Kind) -> list[str]:
    if kind.do_all is not None:
        return ["postgres"]
    groups: dict[str, Sequence[Member]] = {
        "agents": fleet.agents,
        "builders": fleet.builders,
        "members": fleet.members,
        "small": [fleet.small] if fleet.small is not None else [],
        "composed": [fleet.member(name) for name in fleet.composed],
    }
    return [each.name for each in groups[kind.on]]


class Adversary:
    """Carries a plan out. Faults of one target come one after the other, others at once."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet: Fleet = fleet
        self.done: Counter[str] = Counter()
        self.under_way: list[Fault] = []

    async def carry_out(self, faults: Sequence[Fault]) -> None:
        """The last one when all others are over."""
        began, (*most, last) = time.monotonic(), faults
        async with asyncio.TaskGroup() as group:
            for fault in most:
                await asyncio.sleep(max(0.0, began + fault.at - time.monotonic()))
                group.create_task(self._do(fault))
        await asyncio.sleep(max(0.0, began + last.at - time.monotonic()))
        await self._do(last)

    async def _do(self, fault: Fault) -> None:
        kind = KINDS[fault.kind]
        lock = self._fleet.postgres_lock if kind.do_all else self._fleet.member(fault.target).lock
        async with lock:
            self.under_way.append(fault)
            if kind.do_all is not None:
                await kind.do_all(self._fleet, fault)
            elif kind.do is not None:
                await kind.do(self._fleet, self._fleet.member(fault.target), fault)
            self.under_way.remove(fault)
            self.done[fault.kind] += 1
