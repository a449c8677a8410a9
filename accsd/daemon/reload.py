"""Which settings a running daemon takes over, and which stay as they were until it is restarted."""

from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Final, cast

from pydantic import BaseModel

from accsd.log import configure_logging, get_logger, register_secret
from accsd.settings import Settings, load_settings

_log = get_logger(component="daemon")

# Sections and settings that need a restart, and what was made from them when the daemon began.
NEEDS_RESTART: Final[Mapping[str, str]] = {
    "database": "the connections",
    "storage": "the object store",
    "http": "the open port",
    "gateway": "the open port of the API",
    "fallback": "which ways are switched off",
    "secrets": "which secrets steps are given here",
    "tools": "the addresses that tools call",
    "notify_channel_prefix": "the channels that are listened to",
    "heartbeat_ttl_sec": "the leases",
    "backoff_base_sec": "the pauses between attempts",
    "node.name": "the leases, and the lock of the state folder",
    "node.state_dir": "the lock of the state folder",
}
# Settings of the state folder's lock, which is made before the database is there. A running agent refuses another name.
_NAME: Final = "node.name"
_LOCK: Final = (_NAME, "node.state_dir")


def read_settings(config: Path | None) -> Settings:
    """Reads the settings; their secrets are struck out of logs from now on."""
    settings = load_settings(config)
    for secret in settings.secret_texts():
        register_secret(secret)
    return settings


def before_the_start(before: Settings, after: Settings) -> tuple[Settings, list[str]]:
    """The new settings for a daemon that still waits for its database, and the paths of those that need a restart."""
    return _with(after, before, _LOCK), [path for path in _LOCK if _value(before, path) != _value(after, path)]


def tell_reloaded(settings: Settings, left: list[str]) -> None:
    configure_logging(settings.log_level, stream="stdout", format=settings.log_format)
    _log.info("reloaded")
    if left:
        _log.warning("needs_a_restart", settings=left)


def taken_over(before: Settings, after: Settings) -> Settings:
    """The new settings without those that need a restart: all parts of the daemon must go by the same settings."""
    return _with(after, before, [path for path in NEEDS_RESTART if path != _NAME])


def left_behind(before: Settings, after: Settings) -> list[str]:
    """The dotted paths of settings that have changed and are not taken over."""
    fixed = [path for path in after.paths() if path != _NAME and _needs_restart(path)]
    return [path for path in fixed if _value(before, path) != _value(after, path)]


def _needs_restart(path: str) -> bool:
    return path in NEEDS_RESTART or path.partition(".")[0] in NEEDS_RESTART


def _with(settings: Settings, others: Settings, paths: Iterable[str]) -> Settings:
    """The settings, with the values of the others at these paths."""
    changed: dict[str, object] = {}
    for path in paths:
        section, _, name = path.partition(".")
        if name:
            table = changed.get(section, getattr(settings, section))
            assert isinstance(table, BaseModel), path
            changed[section] = table.model_copy(update={name: _value(others, path)})
        else:
            changed[section] = getattr(others, section)
    return settings.model_copy(update=changed)


def _value(settings: Settings, path: str) -> object:
    return reduce(_part, path.split("."), cast("object", settings))


def _part(whole: object, name: str) -> object:
    return cast("dict[str, object]", whole).get(name) if isinstance(whole, dict) else getattr(whole, name, None)
