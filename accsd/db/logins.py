"""Gives a node a login of its own, in the role accs_agent: a password that one machine leaks harms no other node."""

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Final

from accsd.db.failures import translating
from accsd.db.pool import Session
from accsd.errors import ConfigError, InvalidValue
from accsd.values.names import NODE_NAME

_HERE: Final = "the database"
_PREFIX: Final = "accs_node_"
_LONGEST: Final = 63  # bytes that PostgreSQL keeps of a name
_ROUNDS: Final = 4096
# Settings of a database role do not reach its members, so they are copied from it.
_TIMEOUTS: Final = """
SELECT format('ALTER ROLE %I SET %I = %L', $1::text, split_part(s, '=', 1), substr(s, strpos(s, '=') + 1))
  FROM pg_db_role_setting, unnest(setconfig) s WHERE setrole = 'accs_agent'::regrole AND setdatabase = 0"""


@dataclass(frozen=True, slots=True)
class NodeLogin:
    login: str
    password: str
    is_new: bool


async def make_node_login(connection: Session, node: str) -> NodeLogin:
    """Makes the login, or gives it a new password, and makes it the node's."""
    if not re.fullmatch(NODE_NAME, node):
        raise InvalidValue(f"{node!r} is no name of a node", hint="letters, digits, '.', '_' and '-', as in node.name")
    login = login_of(node)
    password = secrets.token_urlsafe(24)
    with translating(_HERE):
        if await connection.fetchval("SELECT to_regrole('accs_agent')") is None:
            raise ConfigError("the role accs_agent is not there", hint="run `accsd db install --roles` first")
        async with connection.transaction():
            is_new = await connection.fetchval("SELECT to_regrole(quote_ident($1)) IS NULL", login)
            verb = "CREATE ROLE %I LOGIN IN ROLE accs_agent PASSWORD %L" if is_new else "ALTER ROLE %I PASSWORD %L"
            # the server, its log and its statistics never see the password
            await connection.execute(
                await connection.fetchval(f"SELECT format('{verb}', $1::text, $2::text)", login, _scram(password))
            )
            for row in await connection.fetch(_TIMEOUTS, login):
                await connection.execute(row[0])
            await connection.execute("UPDATE public.nodes SET login = $2 WHERE name = $1", node, login)
    return NodeLogin(login, password, is_new)


def login_of(node: str) -> str:
    name = _PREFIX + node
    if len(name.encode()) <= _LONGEST:
        return name
    return _PREFIX + hashlib.sha256(node.encode()).hexdigest()[:32]


def _scram(password: str) -> str:
    """The verifier that PostgreSQL stores for a password (RFC 5803)."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ROUNDS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    salt64, stored64, server64 = (base64.b64encode(part).decode() for part in (salt, stored, server))
    return f"SCRAM-SHA-256${_ROUNDS}:{salt64}${stored64}:{server64}"
