"""Accounts of the judge: names and hashes of passwords in the settings; a login gives a token of the shared store.

`python -m accsd.gateway.judge.accounts` reads a password from the terminal, or a line of stdin, and prints its hash.
"""

import base64
import getpass
import hashlib
import hmac
import secrets
import sys
from typing import Any, Final

import anyio.to_thread

from accsd.db import Database
from accsd.db.access import create_token
from accsd.gateway.judge.refusals import Refusal
from accsd.model.access import Scope
from accsd.settings.doors import JudgeSettings

DOOR: Final = "judge"
SHORTEST_PASSWORD: Final = 6
_COST: Final = 2**14  # 16 MiB and some tens of milliseconds
_BLOCK: Final = 8
_DEAREST: Final = 2**18  # of a hash that stands in the settings
_NOBODY: Final = f"scrypt${_COST}${_BLOCK}$1${'A' * 22}${'A' * 43}"  # fits no password


def hashed(password: str) -> str:
    salt = secrets.token_bytes(16)
    return "$".join(
        ("scrypt", str(_COST), str(_BLOCK), "1", _text(salt), _text(_digest(password, salt, _COST, _BLOCK, 1)))
    )


def fits(password: str, known: str) -> bool:
    _, cost, block, lanes, salt, digest = known.split("$")
    try:
        given = _digest(password, _bytes(salt), min(int(cost), _DEAREST), int(block), int(lanes))
    except ValueError:
        return False
    return hmac.compare_digest(given, _bytes(digest))


def _digest(password: str, salt: bytes, cost: int, block: int, lanes: int) -> bytes:
    room = 256 * cost * block
    return hashlib.scrypt(password.encode(), salt=salt, n=cost, r=block, p=lanes, maxmem=room, dklen=32)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def refuse_registration(settings: JudgeSettings, username: str) -> Refusal:
    """Accounts are made by whoever writes the settings: this says only whether the name is taken (OJ-5)."""
    if username in settings.accounts:
        return Refusal("CONFLICT", "that name is taken")
    return Refusal("FORBIDDEN", "accounts are made in the settings of this judge: ask who runs it")


async def login(db: Database, settings: JudgeSettings, username: str, password: str) -> dict[str, Any]:
    """A token that submits problems, and nothing else of accsd; an admin's writes problems, too (OJ-6)."""
    known = settings.accounts.get(username, _NOBODY)  # a name that is not known takes as long as a wrong password
    if not await anyio.to_thread.run_sync(fits, password, known):
        raise Refusal("UNAUTHORIZED", "name or password is wrong")
    made = await create_token(
        db,
        f"judge login of {username}",
        [Scope.ADMIN if username in settings.admins else Scope.SUBMIT],
        actor=username,
        limits={"door": DOOR, "workflows": ["judge.*"]},
        lives=settings.login,
        by=username,
    )
    number = list(settings.accounts).index(username) + 1
    return {"token": made.token, "username": username, "user_id": number, "expires_at": made.expires_at}


if __name__ == "__main__":
    given = getpass.getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    if len(given) < SHORTEST_PASSWORD:
        sys.exit(f"a password has at least {SHORTEST_PASSWORD} characters")
    sys.stdout.write(hashed(given) + "\n")
