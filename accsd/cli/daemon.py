"""`accsd --role …`: the daemon."""

import sys
from collections.abc import Callable
from pathlib import Path

import uvloop

from accsd.daemon.daemon import RoleChoice, run_daemon
from accsd.settings import environment


def run(
    role: str,
    config: str | None,
    *,
    log_format: str | None = None,
    is_strict: bool | None = None,
    when_up: Callable[[], None] = lambda: None,
) -> None:
    """On a terminal a wrong service ends the daemon, because a person is there to correct it. Under systemd it serves
    what it can."""
    if log_format is not None:
        environment()["ACC_LOG_FORMAT"] = log_format
    strict = sys.stdout.isatty() if is_strict is None else is_strict
    path = None if config is None else Path(config)
    uvloop.run(run_daemon(RoleChoice(role), path, is_strict=strict, when_up=when_up))
