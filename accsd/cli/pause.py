"""To pause and to resume nodes (which are drained), services and workflows: new work waits, what runs goes on."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import click

from accsd.cli.output import say
from accsd.cli.session import operator, with_database
from accsd.db import Pausable, Verdict, pause, resume
from accsd.db.pool import Database
from accsd.db.quarantine import lift_quarantine
from accsd.explain.fleet import Paused
from accsd.planning.quarantine import Place


@dataclass(frozen=True, slots=True)
class Subject:
    """A kind of thing that can be paused, with its words. `look` finds one by its name, or raises NotFound."""

    kind: Pausable
    look: Callable[[Database, str], Awaitable[Paused]]
    paused: str = "paused"
    idle: str = "nothing of it runs"
    again: str = "goes on"
    resumes: str = "lets it go on"


def pause_one(ctx: click.Context, subject: Subject, name: str, reason: str | None) -> None:
    async def work(db: Database) -> tuple[Verdict, Paused]:
        await subject.look(db, name)
        verdict = await pause(db, subject.kind, name, reason=reason, by=operator())
        return verdict, await subject.look(db, name)

    verdict, now = with_database(ctx, work)
    if verdict is Verdict.REPEATED:
        say(f"{subject.kind} {name} was {subject.paused} already, {now}")
        return
    left = f"{now.busy} tasks go on to their end" if now.busy else subject.idle
    then = f"`accsd {subject.kind}s resume {name}` {subject.resumes}"
    say(f"{subject.kind} {name} is {subject.paused}: {left}. {then}")


def resume_one(ctx: click.Context, subject: Subject, name: str, reason: str | None) -> None:
    async def work(db: Database) -> tuple[Verdict, list[Place]]:
        await subject.look(db, name)
        verdict = await resume(db, subject.kind, name, reason=reason, by=operator())
        return verdict, await _lift(db, subject.kind, name, reason or "somebody resumed it")

    verdict, lifted = with_database(ctx, work)
    for place in lifted:
        say(f"service {place.service} on node {place.node} is out of quarantine")
    if verdict is Verdict.ACCEPTED or not lifted:
        ended = verdict is Verdict.ACCEPTED
        say(f"{subject.kind} {name} {subject.again if ended else f'was not {subject.paused}'}")


async def _lift(db: Database, kind: Pausable, name: str, because: str) -> list[Place]:
    by = operator()
    match kind:
        case Pausable.NODE:
            return await lift_quarantine(db, node=name, because=because, by=by)
        case Pausable.SERVICE:
            return await lift_quarantine(db, service=name, because=because, by=by)
        case Pausable.WORKFLOW:
            return []
