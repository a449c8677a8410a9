"""Log lines, and `log_event`, which writes such a line and can also write into task_events.

One event is one line with a stable `action` and the values bound to the context: job, task, attempt, service. It is
JSON for programs; a person at a terminal gets the same in words. Lines pass through the same sanitiser as the
database's JSON, and registered secrets are struck out of every text in them. This module knows no database: the
application binds a sink that does.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from urllib.parse import quote
from uuid import UUID

import orjson

from accsd.model.state import EventType, Level
from accsd.values.json import sanitise

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from structlog.typing import FilteringBoundLogger

Stream = Literal["stdout", "stderr"]
Format = Literal["auto", "json", "text"]

MAX_LINE_BYTES: Final = 64 * 1024
_STRUCK_OUT: Final = "***"
# Striking out every "a" would make logs unreadable and protect no secret.
_SHORTEST_SECRET: Final = 4
_THRESHOLDS: Final = {
    Level.DEBUG: logging.DEBUG,
    Level.INFO: logging.INFO,
    Level.WARN: logging.WARNING,
    Level.ERROR: logging.ERROR,
}
_LEVELS_ELSEWHERE: Final = {"warning": Level.WARN, "critical": Level.ERROR, "exception": Level.ERROR}

# For text lines: the keys that name the speaker, those that hold the message, and those of no use to a person.
_SPEAKERS: Final = ("role", "component", "source")
_SENTENCES: Final = ("did", "error", "reason", "problem", "message")
_NOT_FOR_EYES: Final = ("took_ms", "type")
_COLOURS: Final = {Level.DEBUG: "2", Level.INFO: "36", Level.WARN: "33", Level.ERROR: "31"}
_MARGIN: Final = " " * 15  # below the first word after time and level

_secrets: set[str] = set()
_struck_order: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoggedEvent:
    """What the sink gets: a row of task_events without its id and its time, which the database gives."""

    job_id: UUID
    job_task_id: UUID | None
    source: str
    level: Level
    type: str
    message: str
    data: Any


EventSink = Callable[[LoggedEvent], None]
_sink: EventSink | None = None


def configure_logging(level: Level | str = Level.INFO, stream: Stream = "stderr", format: Format = "auto") -> None:  # noqa: A002 - so the setting is called
    """Called by the composition root. A daemon logs to stdout; a command, whose stdout is its answer, to stderr.
    `auto`: text where the stream is a terminal, JSON where it is a file, a pipe or systemd's journal."""
    import structlog

    global _line_of
    out = sys.stdout if stream == "stdout" else sys.stderr
    is_text = out.isatty() if format == "auto" else format == "text"
    has_colour = out.isatty() and not os.environ.get("NO_COLOR")
    _line_of = (lambda record: text_line(record, colour=has_colour)) if is_text else encode_line
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            _render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_THRESHOLDS[known_level(level)]),
        logger_factory=lambda *_: _LineWriter(stream),
        cache_logger_on_first_use=False,
    )


def log_loop_errors(loop: "AbstractEventLoop") -> None:
    """Errors that asyncio can't raise anywhere, such as an exception that was never retrieved, become log lines."""
    loop.set_exception_handler(_loop_error)


def _loop_error(_: "AbstractEventLoop", context: dict[str, Any]) -> None:
    about = context.get("task") or context.get("future") or context.get("handle")
    get_logger(component="asyncio").error(
        "loop_error", message=context.get("message"), about=repr(about), exc_info=context.get("exception")
    )


def get_logger(**bound: object) -> "FilteringBoundLogger":
    """A logger whose first argument is the action: `log.info("task_claimed", job_id=…)`."""
    import structlog  # not above: it takes 50 ms, and commands that only read have nothing to log

    return cast("FilteringBoundLogger", structlog.get_logger(**bound))


def register_secret(value: str) -> None:
    """Strikes this text, and its form inside a URL, out of every line and event from now on."""
    global _struck_order
    for form in (value, quote(value, safe="")):
        if len(form) >= _SHORTEST_SECRET:
            _secrets.add(form)
    # Longest first: a URL is struck out as a whole, before its password alone would be.
    _struck_order = tuple(sorted(_secrets, key=len, reverse=True))


def redact(text: str) -> str:
    """The text without registered secrets."""
    for secret in _struck_order:
        if secret in text:
            text = text.replace(secret, _STRUCK_OUT)
    return text


def bind_event_sink(sink: EventSink | None) -> None:
    """Sets where `log_event` puts events beside stdout; None for nowhere. The sink must return at once."""
    global _sink
    _sink = sink


def log_event(
    level: Level | str,
    type: EventType | str,  # noqa: A002 - A16 names it
    message: str,
    data: Any = None,
    job_id: UUID | str | None = None,
    job_task_id: UUID | str | None = None,
    source: str = "service:render",
) -> None:
    """Writes a line on stdout, always; an event in task_events too where a sink is bound and the job is known."""
    line: dict[str, Any] = {"level": known_level(level), "type": type, "source": source, "message": message}
    optional = {"data": data, "job_id": job_id, "job_task_id": job_task_id}
    line |= {name: value for name, value in optional.items() if value is not None}
    _write("stdout", _line_of(line))
    if _sink is not None and job_id is not None:
        _hand_over(_sink, line)


def known_level(level: Level | str) -> Level:
    """The level. Logging must not fail over a word: other libraries' names are translated, unknown ones are info."""
    try:
        return Level(level)
    except ValueError:
        return _LEVELS_ELSEWHERE.get(str(level).lower(), Level.INFO)


def encode_line(record: Mapping[str, Any]) -> str:
    """One line of JSON for any record: sanitised, bounded, without secrets, stamped with the time."""
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    return orjson.dumps(sanitise({"ts": now, **record}, max_bytes=MAX_LINE_BYTES, scrub=redact)).decode()


def text_line(record: Mapping[str, Any], *, colour: bool = False) -> str:
    """The same record for a person: local time, speaker and message, the hint on a line of its own."""
    fields = cast("dict[str, Any]", sanitise(dict(record), max_bytes=MAX_LINE_BYTES, scrub=redact))
    level = known_level(fields.pop("level", Level.INFO))
    speakers = [fields.pop(name) for name in _SPEAKERS if name in fields]
    action, hint, trace = (fields.pop(name, None) for name in ("action", "hint", "exception"))
    sentences = [str(fields.pop(name)) for name in _SENTENCES if fields.get(name)]
    what = [] if action in (None, "pass") else [str(action).replace("_", " ")]
    rest = "  ".join(f"{name}={_shown(value)}" for name, value in fields.items() if name not in (*_NOT_FOR_EYES, "ts"))
    paint = _painted if colour else _plain
    said = _printable(": ".join([*map(str, speakers[:1]), *what, *sentences]))
    lines = [
        f"{datetime.now().astimezone():%H:%M:%S} {paint(_COLOURS[level], f'{level:<5}')} {said}"
        + (f"  {paint('2', _printable(rest))}" if rest else "")
    ]
    lines += [f"{_MARGIN}→ {_printable(str(hint))}"] if hint else []
    lines += [_MARGIN + _printable(line) for line in str(trace or "").splitlines()]
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _painted(code: str, text: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"


def _plain(_: str, text: str) -> str:
    return text


def _printable(text: str) -> str:
    """The text on one line, without characters that a terminal would obey."""
    return "".join(c if c.isprintable() else " " if c.isspace() else f"\\x{ord(c):02x}" for c in text)


_line_of: Callable[[Mapping[str, Any]], str] = encode_line


def _hand_over(sink: EventSink, line: Mapping[str, Any]) -> None:
    try:
        event = LoggedEvent(
            job_id=_uuid(line["job_id"]),
            job_task_id=_uuid(line["job_task_id"]) if "job_task_id" in line else None,
            source=_bounded_text(line["source"], 200),
            level=line["level"],
            type=_bounded_text(line["type"], 100),
            message=_bounded_text(line["message"], MAX_LINE_BYTES),
            data=sanitise(line.get("data"), scrub=redact),
        )
        sink(event)
    except Exception as failure:  # noqa: BLE001 - work must not fail because its log could not be kept
        _write(
            "stdout",
            _line_of({"level": Level.ERROR, "action": "event_sink_failed", "error": repr(failure)}),
        )


def _bounded_text(value: object, max_bytes: int) -> str:
    return sanitise(str(value), max_bytes=max_bytes, scrub=redact)


def _uuid(value: UUID | str) -> UUID:
    return value if isinstance(value, UUID) else UUID(value)


def _render(_: object, method: str, record: MutableMapping[str, Any]) -> str:
    action = record.pop("event", None)
    return _line_of({"level": known_level(method), "action": action, **record})


@dataclass(frozen=True)
class _LineWriter:
    """structlog's last link. It looks the stream up at each line, so that a redirected one is found."""

    stream: Stream

    def _line(self, line: str) -> None:
        _write(self.stream, line)

    debug = info = warning = error = critical = exception = fatal = log = msg = _line


def _write(stream: Stream, line: str) -> None:
    out = sys.stdout if stream == "stdout" else sys.stderr
    try:
        # One write, so that the lines of several threads don't mix.
        out.write(line + "\n")
        out.flush()
    except (OSError, ValueError):
        # The reader has gone or the stream is closed: there is nowhere left to say so, and work goes on.
        return
