"""To pause and to resume services, workflows and nodes: the same over HTTP as by a command."""

from starlette.requests import Request
from starlette.responses import Response

from accsd.db import Database, Pausable, Verdict, pause, resume
from accsd.db.quarantine import lift_quarantine
from accsd.gateway.answers import answer
from accsd.gateway.bodies import Reason
from accsd.gateway.context import caller_of
from accsd.gateway.routes.verbs import done
from accsd.planning.quarantine import Place


async def pause_thing(request: Request, kind: Pausable, name: str, asked: Reason, *, dry_run: bool) -> Response:
    by = caller_of(request).actor

    async def work(db: Database) -> Verdict:
        return await pause(db, kind, name, reason=asked.reason, by=by)

    verdict = await done(request, work, dry_run=dry_run)
    return answer({"answer": verdict, "kind": kind, "name": name} | ({"dry_run": True} if dry_run else {}))


async def resume_thing(request: Request, kind: Pausable, name: str, asked: Reason, *, dry_run: bool) -> Response:
    """A node or service comes out of quarantine, too."""
    by = caller_of(request).actor

    async def work(db: Database) -> tuple[Verdict, list[Place]]:
        verdict = await resume(db, kind, name, by=by, reason=asked.reason)
        because = asked.reason or "somebody resumed it"
        match kind:
            case Pausable.NODE:
                return verdict, await lift_quarantine(db, node=name, because=because, by=by)
            case Pausable.SERVICE:
                return verdict, await lift_quarantine(db, service=name, because=because, by=by)
            case Pausable.WORKFLOW:
                return verdict, []

    verdict, lifted = await done(request, work, dry_run=dry_run)
    places = [{"service": place.service, "node": place.node} for place in lifted]
    said = {"answer": verdict, "kind": kind, "name": name, "out_of_quarantine": places}
    return answer(said | ({"dry_run": True} if dry_run else {}))
