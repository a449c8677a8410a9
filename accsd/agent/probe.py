"""The end of a quarantine: the node looks whether it could serve a shut service again, and then takes one task."""

from datetime import timedelta

from accsd.agent.node import AGENT, Node
from accsd.db.quarantine import OwnQuarantine, node_quarantines, note_probe
from accsd.log import get_logger
from accsd.planning.quarantine import Place, Quarantine, QuarantineRules, pause
from accsd.supervisor import Pass
from accsd.work.service import LocalService

_log = get_logger(role="probe")


class Probe:
    def __init__(self, node: Node) -> None:
        self._node = node

    async def run_once(self) -> Pass:
        node = self._node
        if not node.is_registered:
            return Pass()
        shut = [each for each in await node_quarantines(node.db, node.name) if each.state is Quarantine.SHUT]
        did: list[str] = []
        waits: list[timedelta] = []
        for each in shut:
            service = (node.services or {}).get(each.service)
            if service is None:
                continue  # not served now; the next agent that serves it looks
            if each.probe_in > timedelta(0):
                waits.append(each.probe_in)
            else:
                did.append(await self._probe(each, service))
        return Pass(did="; ".join(did) or None, more=bool(did), next_due=min(waits, default=None))

    async def _probe(self, shut: OwnQuarantine, service: LocalService) -> str:
        node, rules = self._node, self._node.settings.quarantine
        problem = await service.why_unfit(node)
        again = pause(shut.times + shut.probes, QuarantineRules(probe=rules.probe, longest_probe=rules.longest_probe))
        await note_probe(node.db, Place(node.name, shut.service), problem, again=again)
        if problem is None:
            _log.info("probe_passed", service=shut.service)
            node.well.add(shut.service)
            node.wake_role(f"{AGENT}{shut.service}")
            return f"{shut.service} is well again, and takes a task on trial"
        _log.warning("probe_failed", service=shut.service, problem=problem, again_in=again.total_seconds())
        return f"{shut.service} is not well yet: {problem}"
