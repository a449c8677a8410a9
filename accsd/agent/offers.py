"""The tools that the services of this node declare, as its registration tells them. They become tools when an operator
accepts them, who checks them then: here only what could keep the node from registering is left out."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, cast

import orjson
import yaml

from accsd.errors import ConfigError
from accsd.log import get_logger
from accsd.values.json import is_too_deep, sanitise
from accsd.work.service import LocalService

_MOST: Final = 50  # as accs.note_offers has it, which raises for more and leaves out what is larger
_LARGEST: Final = 64 * 1024
_SCHEMAS: Final = ("input_schema", "output_schema")
_log = get_logger(role="registration")


def offered_tools(services: Iterable[LocalService]) -> list[dict[str, Any]]:
    """Reads the files that describe the tools. One that can't be read is told in the log; its service is served."""
    found: list[dict[str, Any]] = []
    for service in services:
        if service.tool is None:
            continue
        try:
            found.append(_offer(service.name, service.tool, service.tool_schema))
        except ConfigError as error:
            _log.error("tool_not_offered", service=service.name, tool=service.tool, error=str(error))
    for left in found[_MOST:]:
        _log.error("tool_not_offered", service=left["service"], tool=left["name"], error=f"a node offers {_MOST} tools")
    return found[:_MOST]


def _offer(service: str, tool: str, file: Path | None) -> dict[str, Any]:
    document = {} if file is None else _read(file)
    for part in (*({name: document.get(name)} for name in _SCHEMAS), _besides(document)):
        if len(orjson.dumps(part)) > _LARGEST:
            raise ConfigError(f"{file}: a schema, and what is besides the schemas, has at most 64 KiB")
    return {**document, "name": tool, "service": service}


def _besides(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in _SCHEMAS}


def _read(file: Path) -> dict[str, Any]:
    """YAML or JSON. Aliases are refused: a few of them can stand for gigabytes."""
    try:
        with file.open("rb") as opened:
            text = opened.read(3 * _LARGEST + 1)
        if len(text) > 3 * _LARGEST:
            raise ConfigError(f"{file} is too large: a schema has at most 64 KiB")
        events = cast("Iterator[object]", yaml.parse(text, yaml.SafeLoader))
        if any(isinstance(event, yaml.AliasEvent) for event in events):
            raise ConfigError(f"{file} has aliases (*name), which are not read here: write it out")
        document: object = yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{file} can't be read: {error}") from error
    if not isinstance(document, dict) or is_too_deep(cast("object", document)):
        raise ConfigError(f"{file} must be an object with input_schema and output_schema")
    return cast("dict[str, Any]", sanitise(cast("object", document)))
