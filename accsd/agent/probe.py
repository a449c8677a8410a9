"""The way out of quarantine: the node looks whether it could serve a shut service again, and then takes one task."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

from accsd.db import Database
from accsd.db.quarantines import OwnQuarantine, node_quarantines, note_probe
from accsd.log import get_logger
from accsd.passes import Pass
from accsd.planning.quarantine import Place, Quarantine, QuarantineRules, pause

_log = get_logger(role="probing")
Probe = Callable[[], Awaitable[str | None]]


class Probing:
    """`probes` are those of the services that are served here: what keeps each from working, or None. `when_well` is
    told which service may try."""

    def __init__(
        self,
        db: Database,
        *,
        node: str,
        rules: Callable[[], QuarantineRules],
        probes: Callable[[], Mapping[str, Probe]],
        when_well: Callable[[str], None],
        is_registered: Callable[[], bool],
    ) -> None:
        self._db: Database = db
        self._node: str = node
        self._rules: Callable[[], QuarantineRules] = rules
        self._probes: Callable[[], Mapping[str, Probe]] = probes
        self._when_well: Callable[[str], None] = when_well
        self._is_registered: Callable[[], bool] = is_registered

    async def run_once(self) -> Pass:
        if not self._is_registered():
            return Pass()
        shut = [each for each in await node_quarantines(self._db, self._node) if each.state is Quarantine.SHUT]
        probes = self._probes()
        did: list[str] = []
        waits: list[timedelta] = []
        for each in shut:
            if each.service not in probes:
                continue  # not served now; the next agent that serves it looks
            if each.probe_in > timedelta(0):
                waits.append(each.probe_in)
            else:
                did.append(await self._probe(each, probes[each.service]))
        return Pass(did="; ".join(did) or None, more=bool(did), next_due=min(waits, default=None))

    async def _probe(self, shut: OwnQuarantine, probe: Probe) -> str:
        problem = await probe()
        again = pause(shut.times + shut.probes, self._rules())
        await note_probe(self._db, Place(self._node, shut.service), problem, again=again)
        if problem is None:
            _log.info("probe_passed", service=shut.service)
            self._when_well(shut.service)
            return f"{shut.service} is well again, and takes a task on trial"
        _log.warning("probe_failed", service=shut.service, problem=problem, again_in=again.total_seconds())
        return f"{shut.service} is not well yet: {problem}"
