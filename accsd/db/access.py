"""Tokens, browser sessions and one-time codes: made, checked, ended. The gateway asks here who makes a request.

A check is a read, so that a read-only connection can make it: the verb compares digests and gives none out. Equality in
SQL is enough: who could measure it would learn how a SHA-256 begins, and nothing about the 256 random bits behind it.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from accsd.db.answers import Verdict
from accsd.db.pool import Database
from accsd.model.access import TOKEN_LIVES, ActorKind, Caller, CreatedToken, OpenedSession, Scope, Session, Token

__all__ = ["Caller", "CreatedToken", "OpenedSession", "Scope", "Session", "Token"]


async def caller_of_token(db: Database, token: str, *, verbs: Database | None = None) -> Caller | None:
    """Who comes with this token. None: unknown, expired, revoked, or its actor is disabled. `db` may be read-only;
    `verbs` then notes, at most once a minute, that the token was used."""
    raise NotImplementedError


async def caller_of_session(db: Database, cookie: str, *, verbs: Database | None = None) -> Caller | None:
    """Who comes with this cookie; its session lives on, which `verbs` (or `db`) notes at most once a minute."""
    raise NotImplementedError


async def create_token(
    db: Database,
    name: str,
    scopes: Iterable[Scope],
    *,
    actor: str | None = None,
    kind: ActorKind | None = None,
    limits: Mapping[str, Any] | None = None,
    lives: timedelta | None = TOKEN_LIVES,
    by: str | None = None,
    reason: str | None = None,
) -> CreatedToken:
    """Makes a token, and its actor where there is none: by default one with the token's name, of kind service.
    `lives` None: it never expires. Raises VerbRefused, InvalidValue."""
    raise NotImplementedError


async def create_share(
    db: Database, job_id: UUID, *, lives: timedelta, artifacts: bool = False, by: str, reason: str | None = None
) -> CreatedToken:
    """A token that shows one job to whoever has it. Raises VerbRefused, NotFound."""
    raise NotImplementedError


async def tokens(db: Database) -> list[Token]:
    """All of them, the newest first, without what would let anybody in."""
    raise NotImplementedError


async def any_tokens(db: Database) -> bool:
    """Whether a token is live: without one the gateway serves this machine only."""
    raise NotImplementedError


async def revoke_token(db: Database, token_id: str, *, by: str | None = None, reason: str | None = None) -> Verdict:
    """Its sessions end with it. Raises NotFound."""
    raise NotImplementedError


async def create_code(db: Database, *, actor: str, scopes: Iterable[Scope], by: str | None = None) -> str:
    """A code that opens one session within 60 s."""
    raise NotImplementedError


async def open_session(
    db: Database, *, token: str | None = None, code: str | None = None, user_agent: str | None = None
) -> OpenedSession | None:
    """A session for a token or for a one-time code, which is spent. None: neither lets anybody in."""
    raise NotImplementedError


async def sessions(db: Database) -> list[Session]:
    """The sessions that are open, the newest first."""
    raise NotImplementedError


async def end_session(db: Database, session_id: str) -> Verdict:
    raise NotImplementedError
