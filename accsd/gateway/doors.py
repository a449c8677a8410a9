"""Doors: what the clients of other systems call, each a small application of its own beside the native API.

A door is a thin client of the verbs. It is open if its section of the settings is there, and its libraries are loaded
only then.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response
from starlette.types import ASGIApp

from accsd.errors import ConfigError
from accsd.roles import Role

if TYPE_CHECKING:
    from accsd.gateway.context import GatewayContext

NAMES: Final = ("joblib", "seqpulse", "judge", "ordinaut", "mcp")  # each a package beside this module


@dataclass(frozen=True, slots=True)
class Door:
    name: str
    serves: Callable[[str], bool]  # whether a path, below the base path, is this door's
    app: ASGIApp
    largest: Callable[[str, str], int | None] = lambda _, __: None  # bytes of a body, by method and path; None: as all
    speaks_websocket: bool = False
    tell: Callable[[Exception], Response] | None = None  # an error of the entrance, as its clients read it
    roles: tuple[Role[Any], ...] = ()  # of the gateway's table: what has to run beside it


def open_doors(context: "GatewayContext") -> tuple[Door, ...]:
    """Those that the settings want."""
    return tuple(_opened(name, context) for name in NAMES if getattr(context.settings.gateway, name) is not None)


def _opened(name: str, context: "GatewayContext") -> Door:
    try:
        package = import_module(f"accsd.gateway.{name}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the door gateway.{name} needs the package {error.name}, which is not installed",
            hint="pip install 'accsd[doors]', or take the section out of the settings",
        ) from None
    return package.make_door(context)
