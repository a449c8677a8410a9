"""The studio's machines: they take what waits, are woken for it, and sleep when there is nothing more."""

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

from accsd.builder.resolver import Resolver
from tests.support.factory import Row
from tests.support.studio.catalogue import MACHINES, Machine
from tests.support.studio.stage import Script, Stage
from tests.support.studio.work import LEASE, Ending, attempt

_IDLE = 11 * 60  # seconds until a machine sleeps
_TRIES = 3
# What an attempt lasts, and how it fails, if the day has decided that.
Fate = Callable[[Row], tuple[float | None, Ending | None]]


class Crew:
    def __init__(self, stage: Stage, fate: Fate) -> None:
        self._stage = stage
        self._fate = fate
        self._resolver = Resolver(stage.db)
        self._awake: set[str] = set()
        self._coming: set[str] = set()
        self._busy: dict[str, list[str]] = {machine.name: [] for machine in MACHINES}
        self._last_busy = {machine.name: stage.now for machine in MACHINES}
        self._drained: set[str] = set()
        self._looks = False

    async def arrive(self) -> None:
        """All of them say what they have; those that may sleep go to sleep again."""
        for machine in MACHINES:
            await self._register(machine)
            if machine.boot is not None:
                await self._sleep(machine, "nothing waits for it")

    async def stay(self) -> None:
        """A sign of life of each that is there."""
        for name in sorted(self._awake):
            await self._seen(name)
        await self._count()

    async def _seen(self, name: str) -> None:
        await self._stage.conn.fetch("SELECT FROM accs.heartbeat($1, $1, '{}', '{}', $2)", name, LEASE)

    async def _count(self) -> None:
        await self._stage.conn.fetch("SELECT FROM accs.count_events(20000)")

    def drain(self, name: str) -> None:
        self._drained.add(name)

    def look_soon(self) -> None:
        """Something has changed: whoever is free takes what waits."""
        if not self._looks:
            self._looks = True
            self._stage.enter(self._look(), self._stage.now + timedelta(seconds=0.8))

    async def _look(self) -> Script:
        self._looks = False
        while (await self._resolver.run_once()).did:
            pass
        for service in await self._waiting():
            for machine in (each for each in MACHINES if service in each.slots):
                await self._take(machine, service)
        for service in await self._waiting():
            self._wake_for(service)
        return
        yield  # it is a script, and needs no time

    async def _waiting(self) -> list[str]:
        rows = await self._stage.conn.fetch(
            "SELECT DISTINCT t.service_name AS service FROM accs.waiting w JOIN job_tasks t ON t.id = w.task_id"
            " WHERE w.hold IS NULL OR w.due_at <= accs.clock() ORDER BY 1"
        )
        return [row["service"] for row in rows]

    async def _take(self, machine: Machine, service: str) -> None:
        free = machine.slots[service] - self._busy[machine.name].count(service)
        if machine.name not in self._awake or machine.name in self._drained or free <= 0:
            return
        await self._seen(machine.name)
        claimed = await self._stage.conn.fetch(
            "SELECT * FROM accs.claim_tasks($1, $2, $2, $3, $4)", service, machine.name, free, LEASE
        )
        for each in claimed:
            self._stage.enter(self._work(machine, each))

    async def _work(self, machine: Machine, claimed: Row) -> Script:
        self._busy[machine.name].append(claimed["service_name"])
        await self._count()
        seconds, fails = self._fate(claimed)
        async for pause in attempt(self._stage, machine.name, claimed, seconds=seconds, fails=fails):
            yield pause
        self._busy[machine.name].remove(claimed["service_name"])
        self._last_busy[machine.name] = self._stage.now
        await self._count()
        self.look_soon()
        if fails is not None and not fails.permanent:
            yield 61  # a failure is tried again by then
            self.look_soon()
        if machine.boot is not None:
            self._stage.enter(self._nod_off(machine), self._stage.now + timedelta(seconds=_IDLE))

    # Waking and sleeping

    def _wake_for(self, service: str) -> None:
        able = [each for each in MACHINES if service in each.slots and each.name not in self._drained]
        if any(each.name in self._coming for each in able if each.wakes):
            return
        for machine in able:
            if machine.boot is not None and machine.name not in self._awake | self._coming and machine.wakes:
                self._coming.add(machine.name)
                self._stage.enter(self._come(machine))
                return

    async def _come(self, machine: Machine) -> Script:
        await self._call(machine)
        yield 2.2 + float(machine.boot or 0)
        await self._register(machine)
        self._coming.discard(machine.name)
        self._last_busy[machine.name] = self._stage.now
        self.look_soon()

    async def in_vain(self, name: str) -> Script:
        """A machine that is called and does not come, until it counts as failed."""
        machine = next(each for each in MACHINES if each.name == name)
        for _ in range(_TRIES):
            await self._call(machine)
            yield 150
        last = await self._stage.conn.fetchval("SELECT try_id FROM accs.power WHERE node = $1", name)
        because = f"it did not come after {_TRIES} calls; it is called again at 15:18"
        await self._stage.conn.fetch(
            "SELECT accs.note_not_woken($1, $2, $3, $4, '2 min')", [name], [last], [True], [because]
        )

    async def _call(self, machine: Machine) -> None:
        conn = self._stage.conn
        row = await conn.fetchrow(
            "SELECT n.last_seen, w.try_id, accs.new_id() AS fresh FROM nodes n JOIN accs.power w ON w.node = n.name"
            " WHERE n.name = $1",
            machine.name,
        )
        assert row is not None
        job = await self._wanted_by(machine)
        await conn.fetchval(
            "SELECT accs.claim_wake($1, $2, 'wol', $3, $4)", machine.name, row["fresh"], row["try_id"], row["last_seen"]
        )
        said = f"magic packet sent to {machine.name}"
        data = {"method": "wol", "mac": machine.mac}
        await conn.fetchval(
            "SELECT accs.record_wake($1, $2, true, $3, $4, $5)", machine.name, row["fresh"], job, said, data
        )

    async def _wanted_by(self, machine: Machine) -> UUID | None:
        return await self._stage.conn.fetchval(
            "SELECT t.job_id FROM accs.waiting w JOIN job_tasks t ON t.id = w.task_id"
            " WHERE t.service_name = ANY ($1) ORDER BY w.rank, w.order_seq LIMIT 1",
            list(machine.slots),
        )

    async def _register(self, machine: Machine) -> None:
        self._awake.add(machine.name)
        method = None if machine.boot is None else "wol"
        await self._stage.conn.fetch(
            "SELECT FROM accs.register_node($1, $2, $3, $4, $5, p_watts => $6)",
            *(machine.name, machine.labels, machine.slots, method, machine.mac, machine.watts or {}),
        )

    async def _nod_off(self, machine: Machine) -> Script:
        rested = (self._stage.now - self._last_busy[machine.name]).total_seconds() >= _IDLE
        if machine.name in self._awake and not self._busy[machine.name] and rested:
            await self._sleep(machine, "it was idle for 11 min")
        return
        yield

    async def _sleep(self, machine: Machine, because: str) -> None:
        await self._seen(machine.name)
        await self._stage.conn.fetchval("SELECT accs.node_leaves($1, 'sleep', $2)", machine.name, because)
        self._awake.discard(machine.name)
