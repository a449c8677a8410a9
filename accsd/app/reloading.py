"""Which settings a daemon that runs takes over, and which stay as they were until it is started anew."""

from functools import reduce
from typing import Final

from accsd.settings import Settings

# What connections, the lease, the state folder and the open port were made from.
_FIXED: Final = (
    *("database", "storage", "http", "fallback"),
    *("notify_channel_prefix", "heartbeat_ttl_sec", "backoff_base_sec"),
)


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
