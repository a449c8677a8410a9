"""What PostgreSQL and the network say, as our errors: by class and SQLSTATE, never by reading a message."""

from typing import Final

import asyncpg

from accsd.db.schema import SCHEMA_VERSION
from accsd.errors import (
    AccsdError,
    Bug,
    ConfigError,
    DatabaseUnavailable,
    InvalidValue,
    NotFound,
    SchemaMismatch,
    VerbRefused,
    WorkflowInvalid,
)

# Nothing, or nothing certain, is known of the call.
UNREACHABLE: Final = (
    OSError,  # TimeoutError is one
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)
# The server has certainly undone the call.
ROLLED_BACK: Final = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.LockNotAvailableError,
)


def translated(error: BaseException, address: str) -> AccsdError:
    """The error of ours for what came from below, ready for `raise … from`."""
    if isinstance(error, AccsdError):
        return error
    if isinstance(error, asyncpg.PostgresError):
        return _of_server(error, address)
    if isinstance(error, TimeoutError):
        return DatabaseUnavailable(f"{address} did not answer in time", hint="see whether it is overloaded")
    return DatabaseUnavailable(
        f"{address} can't be reached: {error or type(error).__name__}",
        hint="start PostgreSQL, or correct ACC_DB_URL",
    )


def _of_server(error: asyncpg.PostgresError, address: str) -> AccsdError:
    said = error.args[0] if error.args else type(error).__name__
    hint: str | None = getattr(error, "hint", None)
    match error.sqlstate:
        case "AC001":
            return WorkflowInvalid(said, hint=hint)
        case "AC002" | "AC005":
            return VerbRefused("write", said, hint=hint)
        case "AC004":
            return NotFound(said, hint=hint)
        case "28000" | "28P01":
            return ConfigError(
                f"{address} refuses this user: {said}", hint="correct the user or password in ACC_DB_URL"
            )
        case "3D000":
            return ConfigError(f"{address}: {said}", hint="create it (createdb), or correct ACC_DB_URL")
        case "3F000" | "42P01" | "42883":
            return SchemaMismatch(found=None, expected=SCHEMA_VERSION)
        case "42501":
            return ConfigError(f"{address}: {said}", hint="`accsd db install --roles` grants the roles what they need")
        case "55000" | "57014":
            return DatabaseUnavailable(f"{address}: {said}")
        case _ if isinstance(error, (*UNREACHABLE, *ROLLED_BACK)):
            return DatabaseUnavailable(f"{address}: {said}", hint=hint)
        case state if state[:2] in ("22", "23"):
            return InvalidValue(said, hint=hint)
        case _:
            return Bug(f"{address}: {said} (SQLSTATE {error.sqlstate})", hint=hint)
