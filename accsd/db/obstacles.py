"""What keeps a node from a service that it offers, told to the database so that `why`, `nodes` and `top` can name it.

The table has one text: the reason, and below it what to do about it, where somebody knows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from accsd.db.pool import Database
from accsd.log import redact
from accsd.values.json import sanitise

_LONGEST: Final = 500
_THEN: Final = "\n→ "


@dataclass(frozen=True, slots=True)
class Obstacle:
    reason: str
    hint: str | None = None

    @classmethod
    def read(cls, text: str) -> "Obstacle":
        reason, _, hint = text.partition(_THEN)
        return cls(reason, hint or None)


@dataclass(frozen=True, slots=True)
class Hindered:
    """A node that is awake, and the services that it takes no tasks of, all for the same reason."""

    node: str
    services: list[str]
    obstacle: Obstacle


def together(obstacles: Iterable[tuple[str, str, str]]) -> list[Hindered]:
    """Of (node, service, text): one engine that is away hinders all its services."""
    found: dict[tuple[str, str], list[str]] = {}
    for node, service, text in obstacles:
        found.setdefault((node, text), []).append(service)
    return [Hindered(node, services, Obstacle.read(text)) for (node, text), services in found.items()]


async def note_obstacle(db: Database, *, node: str, service: str, reason: str | None, hint: str | None = None) -> None:
    """None: nothing does. Since when is kept while the words change."""
    said = None if reason is None else _written(reason, hint)
    await db.fetchval("SELECT accs.note_obstacle($1, $2, $3)", node, service, said, repeatable=True)


def _written(reason: str, hint: str | None) -> str:
    """The hint is whole: it is a command."""
    then = f"{_THEN}{sanitise(hint, scrub=redact)}" if hint else ""
    said = sanitise(reason, scrub=redact).replace(_THEN, " ")
    return said[: max(0, _LONGEST - len(then))] + then
