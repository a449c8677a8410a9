"""Every error that accsd raises, as one tree of four kinds. The kind says what happens next, so that a caller
decides by class and never by reading a message.

    AccsdError                      has a hint: what to do about it
    ├── UserError                   an input is wrong: fail the job or command, say why
    │   ├── ConfigError             a setting
    │   │   └── NotPermitted        this login may not do that in the database
    │   ├── WorkflowInvalid         a workflow (knows the step, where there is one)
    │   ├── DocumentInvalid         a document (knows the places of its mistakes)
    │   │   ├── ScheduleInvalid     a schedule as it is written
    │   │   ├── SchemaInvalid       a JSON Schema
    │   │   └── OptionsInvalid      the options of a job, which are not what its workflow takes
    │   ├── ExpressionInvalid       an expression, or a value that it meets (knows the expression and the place)
    │   │   └── ExpressionTooExpensive   it would hold up everything else for too long
    │   ├── InvalidValue            a name, key or argument (a ValueError too)
    │   ├── NotFound                an id or name that the database does not hold
    │   ├── VerbRefused             a verb that the state machine refused (knows why)
    │   └── SchemaMismatch          this accsd and that database are of different versions
    ├── AttemptFailed               the attempt failed: the retry policy decides, by code and permanence
    ├── Unavailable                 the world is away: back off, burn no attempt
    │   ├── DatabaseUnavailable
    │   │   ├── QueryTooSlow        it is there, but a question of a person's took too long
    │   │   └── DatabaseBusy        all connections of this process are in use
    │   ├── StorageUnavailable
    │   ├── EngineUnavailable       the engine that carries out attempts
    │   │   └── DockerUnavailable
    │   ├── TooManyWaiting          as many requests wait for a change as may
    │   ├── NameTaken               another machine is registered under this node's name
    │   └── ServiceBusy             a service that says "not now" (knows for how long)
    └── Bug                         an invariant is violated: crash the role visibly
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Self

Place = tuple[str | int, ...]


class AccsdError(Exception):
    """The root. Its text says what happened and to which id; `hint` says what to do next."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UserError(AccsdError):
    """What a person or program wrote is wrong; trying again changes nothing."""


class ConfigError(UserError):
    """A setting is missing, unknown or malformed."""


class NotPermitted(ConfigError):
    """The database refuses this call to the login of ACC_DB_URL."""


class WorkflowInvalid(UserError):
    """The user's workflow is wrong. `step` is the key of the step at fault, where one is; `complaints` are all
    mistakes, each with its place in the document, for callers that can name the line."""

    def __init__(
        self,
        message: str,
        *,
        step: str | None = None,
        hint: str | None = None,
        complaints: Sequence[tuple[Place, str]] = (),
    ) -> None:
        super().__init__(message, hint=hint)
        self.step = step
        self.complaints: tuple[tuple[Place, str], ...] = tuple(complaints)


class DocumentInvalid(UserError):
    """A document is wrong. `complaints` are all mistakes, each with its place in the document."""

    def __init__(self, message: str, *, hint: str | None = None, complaints: Sequence[tuple[Place, str]] = ()) -> None:
        super().__init__(message, hint=hint)
        self.complaints: tuple[tuple[Place, str], ...] = tuple(complaints)


class ScheduleInvalid(DocumentInvalid):
    """A schedule is wrong as it is written."""


class SchemaInvalid(DocumentInvalid):
    """A JSON Schema is wrong, or asks for more than it may."""


class OptionsInvalid(DocumentInvalid):
    """The options of a job are not what its workflow's options_schema says."""


class ExpressionInvalid(UserError):
    """An expression can't be read, or not be evaluated with the values that it meets. `position` counts its characters
    from 1; `place` is where in its document it stands, empty where it stands alone. `missing` is the path of the value
    that is not there, where that is why."""

    def __init__(
        self,
        what: str,
        *,
        expression: str,
        position: int | None = None,
        place: Place = (),
        hint: str | None = None,
        missing: Place = (),
    ) -> None:
        self.what: str = what
        self.expression: str = expression
        self.position: int | None = position
        self.place: Place = place
        self.missing: Place = missing
        super().__init__(self._sentence(), hint=hint)

    def at(self, place: Place) -> Self:
        """The same error, of an expression that stands there."""
        return type(self)(
            self.what,
            expression=self.expression,
            position=self.position,
            place=place,
            hint=self.hint,
            missing=self.missing,
        )

    def _sentence(self) -> str:
        where = ".".join(str(part) for part in self.place)
        character = f", character {self.position}" if self.position is not None else ""
        return (
            f'{where}{": " if where else ""}expression "{_shown(self.expression)}"{character}: {_shown(self.what, 400)}'
        )


class ExpressionTooExpensive(ExpressionInvalid):
    """An expression would take too long, or make something too large. Such work belongs into a step."""


class InvalidValue(UserError, ValueError):
    """A name, key or argument is not acceptable. It is a ValueError, so that Pydantic can say where."""


class NotFound(UserError):
    """The database holds nothing under that id or name."""


class VerbRefused(UserError):
    """The state machine said no. For callers that want an exception where the verb answers `refused`."""

    def __init__(
        self,
        verb: str,
        reason: str,
        *,
        subject: str | None = None,
        held: Mapping[str, object] | None = None,
        hint: str | None = None,
    ) -> None:
        self.verb = verb
        self.reason = reason
        self.subject = subject
        self.held: dict[str, object] = dict(held or {})
        super().__init__(self._sentence(), hint=hint)

    def _sentence(self) -> str:
        target = f" of {self.subject}" if self.subject else ""
        holds = ", ".join(f"{column}={value}" for column, value in self.held.items())
        return f"{self.verb}{target} refused: {self.reason}" + (f" (the database holds {holds})" if holds else "")


class SchemaMismatch(UserError):
    """The schema is not the one that this accsd works with; `found` is None where there is none."""

    def __init__(self, *, found: int | None, expected: int) -> None:
        self.found = found
        self.expected = expected
        super().__init__(self._sentence(), hint=self._next_step())

    @property
    def is_too_new(self) -> bool:
        return self.found is not None and self.found > self.expected

    @property
    def is_too_old(self) -> bool:
        return self.found is not None and self.found < self.expected

    def _sentence(self) -> str:
        if self.found is None:
            return f"the database holds no accsd schema; this accsd needs version {self.expected}"
        age = "newer" if self.is_too_new else "older"
        return f"the database has schema version {self.found}, {age} than {self.expected} of this accsd"

    def _next_step(self) -> str:
        if self.found is None:
            return "run `accsd db install`"
        return "upgrade accsd on this machine" if self.is_too_new else "run `accsd db upgrade`"


class AttemptFailed(AccsdError):
    """One attempt at a task failed. `code` goes to error_code; a permanent failure is not tried again."""

    def __init__(self, code: str, message: str, *, permanent: bool = False, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.permanent = permanent

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class Unavailable(AccsdError):
    """Something outside does not answer. It may come back by itself: no attempt is spent on it."""


class DatabaseUnavailable(Unavailable):
    """PostgreSQL refuses connections, is starting or stopping, or did not answer in time."""


class QueryTooSlow(DatabaseUnavailable):
    """A list or a search was given up, so that it costs the work nothing."""


class DatabaseBusy(DatabaseUnavailable):
    """All connections of this process are in use, and none came free in time: it is not sent again at once."""


class StorageUnavailable(Unavailable):
    """The object store does not answer."""


class EngineUnavailable(Unavailable):
    """The engine that carries out attempts does not answer. A new kind of engine has a class of its own here."""


class DockerUnavailable(EngineUnavailable):
    """The Docker engine or its compose plugin does not answer."""


class TooManyWaiting(Unavailable):
    """The gateway holds as many requests that wait for a change as it may."""


class NameTaken(Unavailable):
    """Another machine is registered under this node's name, and was seen lately. It may go, or get another name."""


class ServiceBusy(Unavailable):
    """A service answers that it takes no task now. No work was begun, so nothing is lost. `again_in` is when it wants
    to be asked again, as far as it says."""

    def __init__(self, message: str, *, again_in: timedelta = timedelta(0), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.again_in = again_in


class Bug(AccsdError):
    """Something that cannot happen did. The role that meets it stops, visibly."""


def _shown(text: str, most: int = 120) -> str:
    """On one line, and short."""
    line = " ".join(text.split())
    printable = "".join(character if character.isprintable() else "?" for character in line)
    return printable if len(printable) <= most else printable[: most - 1] + "…"
