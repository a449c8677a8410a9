"""Which settings a daemon that runs takes over, and which stay as they were until it is started anew."""

from functools import reduce
from pathlib import Path
from typing import Final

from accsd.log import configure_logging, get_logger, register_secret
from accsd.settings import Settings, load_settings

_log = get_logger(component="daemon")

# What connections, the lease, the state folder and the open port were made from.
_FIXED: Final = (
    *("database", "storage", "http", "fallback"),
    *("notify_channel_prefix", "heartbeat_ttl_sec", "backoff_base_sec"),
)


# What the state folder is locked for.
_LOCKED: Final = ("name", "state_dir")


def read_settings(config: Path | None) -> Settings:
    """Whoever reads them may log: their secrets are struck out from now on."""
    settings = load_settings(config)
    for secret in settings.secrets():
        register_secret(secret)
    return settings


def before_the_start(before: Settings, after: Settings) -> tuple[Settings, list[str]]:
    """The new ones for a daemon that still waits for its database, and those that need a restart all the same."""
    left = [f"node.{name}" for name in _LOCKED if getattr(before.node, name) != getattr(after.node, name)]
    node = after.node.model_copy(update={name: getattr(before.node, name) for name in _LOCKED})
    return after.model_copy(update={"node": node}), left


def tell_reloaded(settings: Settings, left: list[str]) -> None:
    configure_logging(settings.log_level, stream="stdout", format=settings.log_format)
    _log.info("reloaded")
    if left:
        _log.warning("needs_a_restart", settings=left)


def taken_over(before: Settings, after: Settings) -> Settings:
    """The new ones, but for those that need a restart: no part of the daemon shall go by other ones than the rest."""
    node = after.node.model_copy(update={"state_dir": before.node.state_dir})
    return after.model_copy(update={name: getattr(before, name) for name in _FIXED} | {"node": node})


def left_behind(before: Settings, after: Settings) -> list[str]:
    """The dotted paths of those that have changed and are not taken over."""
    fixed = [path for path in after.paths() if path.partition(".")[0] in _FIXED] + ["node.state_dir"]
    return [path for path in fixed if _value(before, path) != _value(after, path)]


def _value(settings: Settings, path: str) -> object:
    return reduce(getattr, path.split("."), settings)
