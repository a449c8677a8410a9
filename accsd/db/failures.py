"""Errors of PostgreSQL and the network as our errors: by class and SQLSTATE, never by reading a message."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import asyncpg

from accsd.db.schema import SCHEMA_VERSION
from accsd.errors import (
    AccsdError,
    Bug,
    ConfigError,
    DatabaseUnavailable,
    InvalidValue,
    NameTaken,
    NotFound,
    NotPermitted,
    SchemaMismatch,
    VerbRefused,
    WorkflowInvalid,
)

# All errors that asyncpg and the network raise. (TimeoutError is an OSError.)
FAILURES: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
# The server has certainly rolled the call back.
ROLLED_BACK: Final = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.LockNotAvailableError,
)
# Another session has made it meanwhile: which of the two errors comes depends on the moment.
EXISTS_ALREADY: Final = (asyncpg.DuplicateSchemaError, asyncpg.UniqueViolationError)
# Rolled back, too: a migration changed a table that a function returns rows of, after the call had been planned.
OVERTAKEN: Final = (asyncpg.InvalidFunctionDefinitionError, asyncpg.DatatypeMismatchError)


@contextmanager
def translating(address: str) -> Generator[None]:
    """Raises our errors instead of theirs, with theirs as the cause."""
    try:
        yield
    except FAILURES as error:
        raise translated(error, address) from error


def translated(error: Exception, address: str) -> AccsdError:
    match error:
        case asyncpg.PostgresError():
            return _of_server(error, address)
        case TimeoutError():
            return DatabaseUnavailable(f"{address} did not answer in time", hint="see whether it is overloaded")
        case asyncpg.ClientConfigurationError():
            return ConfigError(f"{address}: {error}", hint="correct ACC_DB_URL")
        case OSError() | asyncpg.TargetServerAttributeNotMatched():
            return _unreachable(error, address)
        case asyncpg.InterfaceError() if type(error) is asyncpg.InterfaceError:  # the connection or the pool is closed
            return _unreachable(error, address)
        case asyncpg.InternalClientError():
            # The server has ended the session, and its last message was read before the end of the connection.
            return _unreachable(error, address)
        case _:
            return Bug(f"{address}: {error}")


def _unreachable(error: Exception, address: str) -> AccsdError:
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
        case "AC006":
            return ConfigError(said, hint=hint)
        case "AC007":
            return NameTaken(said, hint=hint)
        case "28000" | "28P01":
            return ConfigError(
                f"{address} refuses this user: {said}", hint="correct the user or password in ACC_DB_URL"
            )
        case "3D000":
            return ConfigError(f"{address}: {said}", hint="create it (createdb), or correct ACC_DB_URL")
        case "3F000" | "42P01" | "42883":
            return SchemaMismatch(found=None, expected=SCHEMA_VERSION)
        case "42P06" | "42P07":
            return ConfigError(f"{address}: {said}", hint="accsd needs a database of its own")
        case "42501":
            return NotPermitted(f"{address}: {said}", hint="`accsd db install --roles` grants the roles what they need")
        case "25006":
            return DatabaseUnavailable(f"{address} is read-only: {said}", hint="name the primary in ACC_DB_URL")
        case state:
            return _of_class(state[:2], f"{address}: {said}", said, hint)


def _of_class(sql_class: str, located: str, said: str, hint: str | None) -> AccsdError:
    match sql_class:
        case "08" | "40" | "53" | "55" | "57" | "58":  # connection, rollback, resources, locks, operator, system
            return DatabaseUnavailable(located, hint=hint)
        case "22" | "23" | "54":  # data, constraints, limits
            return InvalidValue(said, hint=hint)
        case _:
            return Bug(located, hint=hint)
