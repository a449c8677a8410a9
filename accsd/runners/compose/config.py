"""Asking compose what the node's file means."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import orjson

from accsd.errors import ConfigError
from accsd.runners.compose.declared import Declarations, read_declarations
from accsd.runners.compose.docker import Docker
from accsd.settings.model import ComposeSettings, ServiceSettings


async def declared_services(
    docker: Docker, compose: ComposeSettings, settings: Mapping[str, ServiceSettings]
) -> Declarations:
    """What the compose file labels or the settings name. Needs no engine. Raises ConfigError for the file as a whole,
    DockerUnavailable where docker or its plugin is missing."""
    file = compose_file(compose)
    named = ["--project-name", compose.project] if compose.project else []
    called = await docker.call("compose", *named, "-f", str(file), "--profile", "*", "config", "--format", "json")
    if called.code:
        await docker.check_plugin()
        raise ConfigError(
            f"the compose file {file} is not valid: {called.said}", hint=f"docker compose -f {file} config"
        )
    # The answer is itself a compose file: each "$" in it is written twice.
    document = orjson.loads(called.stdout.replace(b"$$", b"$"))
    return read_declarations(cast("dict[str, Any]", document), settings)


def compose_file(compose: ComposeSettings) -> Path:
    if compose.file is None:
        raise ConfigError("no compose file is configured", hint="set compose.file, or ACC_COMPOSE_FILE")
    file = compose.file.absolute()
    if not file.is_file():
        raise ConfigError(f"the compose file {file} does not exist", hint="correct compose.file (ACC_COMPOSE_FILE)")
    return file
