"""Who gets in: tokens, sessions and one-time codes as their readers see them, and what a scope allows.

A token is `accs_<8>_<43>`: an id, which is no secret, and 256 random bits. The database knows their SHA-256 only.
"""

import base64
import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal, assert_never, cast, get_args
from uuid import UUID

from accsd.errors import InvalidValue

ActorKind = Literal["person", "service", "assistant"]
ACTOR_KINDS: Final[tuple[str, ...]] = get_args(ActorKind)
TOKEN_LIVES: Final = timedelta(days=90)  # unless its maker says otherwise
SHARE_LIVES: Final = timedelta(days=30)  # at most
NAMED: Final = ("workflows", "services", "events", "tools")  # limits that are lists of names, each may end in *
SINGLE: Final = ("door", "project")  # limits that are one text
_ID_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
_TOKEN: Final = re.compile(r"accs_([a-z0-9]{8})_[A-Za-z0-9_-]{43}")
_COOKIE: Final = re.compile(r"([a-z0-9]{8})\.[A-Za-z0-9_-]{43}")
_CODE: Final = re.compile(r"[A-Za-z0-9_-]{43}")


class Scope(StrEnum):
    """What a token may. Rights are with the token, not with its actor: one actor may come with several."""

    READ = "read"
    SUBMIT = "submit"  # make jobs and schedules, change one's own
    OPERATE = "operate"  # everybody's, and workflows and tools
    ADMIN = "admin"  # tokens, statements of conditions, topics for all
    AGENT = "agent"  # the verbs of an attempt, and nothing else


def implied(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """The scopes with what they imply."""
    return frozenset(each for scope in scopes for each in _with_implied(scope))


def _with_implied(scope: Scope) -> tuple[Scope, ...]:
    match scope:
        case Scope.READ:
            return (Scope.READ,)
        case Scope.SUBMIT:
            return (Scope.SUBMIT, Scope.READ)
        case Scope.OPERATE:
            return (Scope.OPERATE, Scope.SUBMIT, Scope.READ)
        case Scope.ADMIN:
            return (Scope.ADMIN, Scope.OPERATE, Scope.SUBMIT, Scope.READ)
        case Scope.AGENT:
            return (Scope.AGENT,)
        case _:
            assert_never(scope)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request, as the database found it."""

    actor: str  # accs.actors.name; goes into p_by of every verb
    kind: str  # person | service | assistant
    scopes: frozenset[Scope]  # with what they imply
    limits: Mapping[str, Any]  # {workflows, services, events, tools: names, each may end in *; door, project}
    token_id: str | None  # None: a session that began with a one-time code
    session_id: str | None
    subject: str | None = None  # "job:<uuid>": a share link, which shows that job only

    @property
    def shared_job(self) -> UUID | None:
        """Of a share link the job that it shows."""
        return None if self.subject is None else UUID(self.subject.removeprefix("job:"))

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes

    def reaches(self, what: str, name: str) -> bool:
        """Whether the limits leave this workflow, service, event or tool; `what` is the plural, as in `limits`."""
        patterns = self.limits.get(what)
        return patterns is None or any(_fits(pattern, name) for pattern in patterns)


def _fits(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


@dataclass(frozen=True, slots=True)
class Token:
    """A token as lists show it: all but what would let somebody in."""

    id: str
    name: str
    actor: str
    kind: str
    scopes: tuple[Scope, ...]  # as they were given
    limits: Mapping[str, Any]
    subject: str | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    last_used_at: datetime | None  # to the minute
    revoked_at: datetime | None
    revoked_by: str | None
    state: str  # live | expired | revoked | disabled (its actor is)


@dataclass(frozen=True, slots=True)
class CreatedToken:
    """`token` is shown once: nobody can find it again."""

    id: str
    token: str = field(repr=False)
    name: str
    actor: str
    scopes: tuple[Scope, ...]
    limits: Mapping[str, Any]
    expires_at: datetime | None
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """A browser's session as lists show it."""

    id: str
    actor: str
    token_id: str | None
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    user_agent: str | None


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """`cookie` goes to the browser and nowhere else."""

    cookie: str = field(repr=False)
    caller: Caller
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Credential:
    """What lets somebody in, in its three forms. `text` is for whoever is let in, `digest` for the database."""

    id: str
    text: str = field(repr=False)

    @property
    def digest(self) -> bytes:
        return digest(self.text)


def digest(text: str) -> bytes:
    """256 random bits need no salt and no slow hash: there is nothing to guess."""
    return hashlib.sha256(text.encode()).digest()


def new_token() -> Credential:
    made = new_id()
    return Credential(made, f"accs_{made}_{_secret()}")


def new_cookie() -> Credential:
    made = new_id()
    return Credential(made, f"{made}.{_secret()}")


def new_code() -> Credential:
    return Credential("", _secret())


def new_id() -> str:
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(8))


def _secret() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()


def read_token(text: str) -> Credential | None:
    """None: this can't be a token; no database has to be asked."""
    found = _TOKEN.fullmatch(text)
    return Credential(found[1], text) if found else None


def read_cookie(text: str) -> Credential | None:
    found = _COOKIE.fullmatch(text)
    return Credential(found[1], text) if found else None


def read_code(text: str) -> Credential | None:
    return Credential("", text) if _CODE.fullmatch(text) else None


def read_limits(written: Iterable[str]) -> dict[str, Any]:
    """Limits as people write them: `workflows=media-*`, more than once where there are several. Raises InvalidValue."""
    limits: dict[str, Any] = {}
    for each in written:
        what, given, value = each.partition("=")
        if not given or not value:
            raise InvalidValue(f'"{each}" is no limit: write it as workflows=media-*')
        if what in NAMED:
            limits.setdefault(what, []).append(value)
        elif what in SINGLE:
            limits[what] = value
        else:
            raise InvalidValue(f'"{what}" can\'t be limited; there are {", ".join((*NAMED, *SINGLE))}')
    return check_limits(limits)


def check_limits(limits: Mapping[str, Any]) -> dict[str, Any]:
    """Raises InvalidValue where a limit is none."""
    for what, value in limits.items():
        if what in SINGLE:
            _check_name(what, value)
        elif what in NAMED:
            if not isinstance(value, list) or not value:
                raise InvalidValue(f"{what} must be a list of names, each may end in *")
            for name in cast("list[Any]", value):
                _check_name(what, name)
        else:
            raise InvalidValue(f'"{what}" can\'t be limited; there are {", ".join((*NAMED, *SINGLE))}')
    return dict(limits)


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= 200 or "*" in name[:-1]:
        raise InvalidValue(f"{what}: {name!r} is no name: 1 to 200 characters, and a * only at its end")


def own_key(actor: str, key: str) -> str:
    """An idempotency key over HTTP, as it is stored: an actor's own. It must be plain where the name ends, or the key
    `c` of `a/b` would be the key `b/c` of `a`."""
    return f"http/{actor.replace('%', '%25').replace('/', '%2F')}/{key}"
