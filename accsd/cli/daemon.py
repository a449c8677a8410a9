"""`accsd --role …`: the daemon."""

from pathlib import Path

import uvloop

from accsd.app.daemon import RoleChoice, run_daemon


def run(role: str, config: str | None) -> None:
    uvloop.run(run_daemon(RoleChoice(role), None if config is None else Path(config)))
