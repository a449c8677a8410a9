"""Tokens, browser sessions and one-time codes: made, checked, ended. The gateway asks here who makes a request.

A check is a read, so that a read-only connection can make it; that a credential was used is noted by a verb of its own,
at most once a minute. The digests are compared in SQL and never leave the database. Equality is enough there: who
could measure it would learn how a SHA-256 begins, and nothing about the 256 random bits behind it.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from accsd.db.answers import Verdict
from accsd.db.pool import Database, Record
from accsd.errors import InvalidValue, NotFound, Unavailable, VerbRefused
from accsd.model.access import (
    SHARE_LIVES,
    TOKEN_LIVES,
    ActorKind,
    Caller,
    CreatedToken,
    Credential,
    OpenedSession,
    Scope,
    Session,
    Token,
    check_limits,
    implied,
    new_code,
    new_cookie,
    new_token,
    read_code,
    read_cookie,
    read_token,
)

_HINTS: Final = {
    "actor_disabled": "that actor is disabled; give the token to another one with --actor",
    "actor_of_another_kind": "that actor is there, of another kind: leave the kind away, or name another actor",
}


# Who makes a request


async def caller_of_token(db: Database, token: str, *, verbs: Database | None = None) -> Caller | None:
    """Who comes with this token. None: unknown, expired, revoked, or its actor is disabled. `db` may be read-only;
    `verbs` then notes that the token was used."""
    if (given := read_token(token)) is None:
        return None
    row = await db.fetchrow("SELECT * FROM accs.check_token($1, $2)", given.id, given.digest, repeatable=True)
    if row is None:
        return None
    if row["is_stale"]:
        await _touch(verbs or db, "SELECT accs.touch_token($1)", given.id)
    return _caller(row, token_id=given.id, session_id=None)


async def caller_of_session(db: Database, cookie: str, *, verbs: Database | None = None) -> Caller | None:
    """Who comes with this cookie. Its session lives on by it."""
    if (given := read_cookie(cookie)) is None:
        return None
    row = await db.fetchrow("SELECT * FROM accs.check_session($1, $2)", given.id, given.digest, repeatable=True)
    if row is None:
        return None
    if row["is_stale"]:
        await _touch(verbs or db, "SELECT accs.touch_session($1)", given.id)
    return _caller(row, token_id=row["token_id"], session_id=given.id)


async def _touch(verbs: Database, sql: str, which: str) -> None:
    """Who was let in stays in, whether that can be noted or not: the next request notes it."""
    with suppress(Unavailable):
        await verbs.fetch(sql, which, repeatable=True)


def _caller(row: Record, *, token_id: str | None, session_id: str | None) -> Caller:
    scopes = implied(Scope(scope) for scope in row["scopes"])
    return Caller(row["actor"], row["kind"], scopes, row["limits"], token_id, session_id, row["subject"])


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts. `limits`: schedules, max_priority, runs_per_hour, least_interval_sec, tools."""

    name: str
    kind: str
    limits: Mapping[str, Any]


async def actors_named(db: Database, names: Iterable[str]) -> dict[str, Actor]:
    """By name. Who has never had a token, and was not put on record, is missing."""
    rows = await db.fetch(
        "SELECT name, kind, limits FROM accs.actors WHERE name = ANY ($1)", sorted(set(names)), repeatable=True
    )
    return {row["name"]: Actor(**row) for row in rows}


@dataclass(frozen=True, slots=True)
class ActorRow:
    """An actor as lists show it."""

    id: UUID
    name: str
    kind: str
    limits: Mapping[str, Any]
    created_at: datetime
    disabled_at: datetime | None


async def actors(db: Database, *, ids: Iterable[UUID] | None = None) -> list[ActorRow]:
    """The newest first; all of them, or these."""
    rows = await db.fetch(
        """SELECT id, name, kind, limits, created_at, disabled_at FROM accs.actors
            WHERE $1::uuid[] IS NULL OR id = ANY ($1) ORDER BY created_at DESC, name""",
        None if ids is None else list(ids),
        repeatable=True,
    )
    return [ActorRow(**row) for row in rows]


async def actor_ids(db: Database, names: Iterable[str]) -> dict[str, UUID]:
    """The ids of actors by their names; who was never put on record is missing."""
    rows = await db.fetch("SELECT name, id FROM accs.actors WHERE name = ANY ($1)", sorted(set(names)), repeatable=True)
    return {row["name"]: row["id"] for row in rows}


async def put_actor(
    db: Database,
    name: str,
    *,
    kind: str = "service",
    limits: Mapping[str, Any] | None = None,
    disabled: bool = False,
    by: str | None = None,
    reason: str | None = None,
) -> UUID:
    """Puts an actor on record, or writes anew what is there of it. A disabled one's tokens let nobody in."""
    return await db.fetchval(
        "SELECT accs.put_actor($1, $2, $3, $4, $5, $6)",
        name,
        kind,
        dict(limits or {}),
        disabled,
        by,
        reason,
        repeatable=True,
    )


# Tokens


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
    wanted = _ordered(scopes)
    _check_name("a token", name)
    if actor is not None:
        _check_name("an actor", actor)
    if lives is not None and lives <= timedelta(0):
        raise InvalidValue("a token lives longer than that: write 90d, or never")
    narrowed, made = check_limits(limits or {}), new_token()
    row = await db.fetchrow(
        "SELECT * FROM accs.create_token($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        made.id,
        made.digest,
        name,
        [scope.value for scope in wanted],
        actor,
        kind,
        narrowed,
        lives,
        by,
        reason,
        repeatable=True,
    )
    _refused("create_token", row, subject=actor or name)
    return CreatedToken(made.id, made.text, name, actor or name, wanted, narrowed, _of(row)["expires_at"])


@dataclass(frozen=True, slots=True)
class Exchanged:
    """`token` is shown once. `expires_in` None: it never does."""

    token: str = field(repr=False)
    actor: str
    scopes: tuple[Scope, ...]
    expires_in: timedelta | None


async def exchange_token(db: Database, token: str, *, lives: timedelta, actor: UUID | None = None) -> Exchanged | None:
    """Another token for whoever comes with this one: of the same actor and scopes, for a while, and no longer than this
    one lasts. None: this one lets nobody in, or it is of another actor than the one that is named."""
    if (given := read_token(token)) is None:
        return None
    made = new_token()
    row = await db.fetchrow(
        "SELECT * FROM accs.exchange_token($1, $2, $3, $4, $5, $6)",
        made.id,
        made.digest,
        given.id,
        given.digest,
        lives,
        actor,
        repeatable=True,
    )
    if row is None:
        return None
    return Exchanged(made.text, row["actor"], tuple(Scope(scope) for scope in row["scopes"]), row["expires_in"])


async def create_share(
    db: Database,
    job_id: UUID,
    *,
    lives: timedelta,
    artifacts: bool = False,
    by: str,
    reason: str | None = None,
    of_token: str | None = None,
) -> CreatedToken:
    """A token that shows one job to whoever has it, no longer than the one that it is made with (`of_token`, an id)
    lasts. Raises VerbRefused, NotFound, InvalidValue."""
    if not timedelta(0) < lives <= SHARE_LIVES:
        raise InvalidValue(f"a share lives for {SHARE_LIVES.days} days at most")
    made = new_token()
    row = await db.fetchrow(
        "SELECT * FROM accs.create_share($1, $2, $3, $4, $5, $6, $7, $8)",
        made.id,
        made.digest,
        job_id,
        lives,
        artifacts,
        by,
        reason,
        of_token,
        repeatable=True,
    )
    if _of(row)["reason"] == "not_found":
        raise NotFound(f"there is no job {job_id}")
    _refused("create_share", row, subject=by)
    limits = {"artifacts": True} if artifacts else {}
    name = f"share of job {str(job_id)[-8:]}"
    return CreatedToken(
        made.id, made.text, name, by, (Scope.READ,), limits, _of(row)["expires_at"], subject=f"job:{job_id}"
    )


async def tokens(db: Database) -> list[Token]:
    """All of them, the newest first, without what would let anybody in."""
    rows = await db.fetch("SELECT * FROM accs.list_tokens()", repeatable=True)
    return [_token(dict(row)) for row in rows]


def _token(fields: dict[str, Any]) -> Token:
    fields["scopes"] = tuple(Scope(scope) for scope in fields["scopes"])
    return Token(**fields)


async def any_tokens(db: Database) -> bool:
    """Whether a token is live that is no share: without one the gateway serves this machine only."""
    return await db.fetchval("SELECT accs.any_tokens()", repeatable=True)


async def revoke_token(db: Database, token_id: str, *, by: str | None = None, reason: str | None = None) -> Verdict:
    """Ends a token, and its sessions with it. Raises NotFound."""
    row = _of(await db.fetchrow("SELECT * FROM accs.revoke_token($1, $2, $3)", token_id, by, reason, repeatable=True))
    if row["reason"] == "not_found":
        raise NotFound(f'there is no token "{token_id}"', hint="`accsd tokens list` shows those that there are")
    return Verdict(row["answer"])


# Sessions


async def create_code(db: Database, *, actor: str, scopes: Iterable[Scope], by: str | None = None) -> str:
    """A code that opens one session, within 60 s. Raises VerbRefused."""
    made = new_code()
    named = [scope.value for scope in _ordered(scopes)]
    row = await db.fetchrow(
        "SELECT * FROM accs.create_code($1, $2, $3, $4)", made.digest, actor, named, by, repeatable=True
    )
    _refused("create_code", row, subject=actor)
    return made.text


async def open_session(
    db: Database, *, token: str | None = None, code: str | None = None, user_agent: str | None = None
) -> OpenedSession | None:
    """A session for a token, or for a one-time code, which is spent by it. None: neither lets anybody in."""
    by_token = None if token is None else read_token(token)
    by_code = None if code is None else read_code(code)
    if by_token is None and by_code is None:
        return None
    made = new_cookie()
    row = await db.fetchrow(
        "SELECT * FROM accs.open_session($1, $2, $3, $4, $5, $6)",
        made.id,
        made.digest,
        None if by_token is None else by_token.id,
        _digest(by_token),
        _digest(by_code),
        None if user_agent is None else user_agent[:200],
    )
    if row is None:
        return None
    caller = _caller(row, token_id=row["token_id"], session_id=made.id)
    return OpenedSession(made.text, caller, row["expires_at"])


async def sessions(db: Database) -> list[Session]:
    """The sessions that are open, the newest first."""
    return [Session(**row) for row in await db.fetch("SELECT * FROM accs.list_sessions()", repeatable=True)]


async def end_session(db: Database, session_id: str, *, by: str | None = None, reason: str | None = None) -> Verdict:
    """Ends a session. `by`: who ends it, where that is not the one whose it is."""
    return Verdict(await db.fetchval("SELECT accs.end_session($1, $2, $3)", session_id, by, reason, repeatable=True))


async def forget_access(db: Database) -> int:
    """Upkeep: removes codes and sessions that let nobody in any more, and tokens that have been dead for 400 days."""
    return await db.fetchval("SELECT accs.forget_access()", repeatable=True)


def _digest(credential: Credential | None) -> bytes | None:
    return None if credential is None else credential.digest


def _ordered(scopes: Iterable[Scope]) -> tuple[Scope, ...]:
    wanted = set(scopes)
    if not wanted:
        raise InvalidValue(f"name a scope: {', '.join(Scope)}")
    return tuple(scope for scope in Scope if scope in wanted)


def _check_name(what: str, name: str) -> None:
    if not 1 <= len(name) <= 200 or not name.isprintable():
        raise InvalidValue(f"{what} has a name of 1 to 200 printable characters")


def _of(row: Record | None) -> Record:
    assert row is not None, "the verb always answers"
    return row


def _refused(verb: str, row: Record | None, *, subject: str) -> None:
    if (why := _of(row)["reason"]) is not None:
        raise VerbRefused(verb, why, subject=subject, hint=_HINTS.get(why))
