"""Several documents laid over each other; each value remembers where it came from."""

from collections.abc import Mapping
from typing import Any, cast

from accsd.errors import ConfigError
from accsd.settings.sources import CONCURRENCY_PREFIX
from accsd.values.names import variable_suffix

DEFAULT = "default"


class Layers:
    """The merged document, and where each of its leaves came from. A later layer wins."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}
        self.origins: dict[str, str] = {}

    def overlay(self, document: Mapping[str, Any], origin: str) -> None:
        """Lays a document over the others. Tables are merged key by key; all other values, lists too, are replaced."""
        self._merge(self.document, document, (), origin)

    def put(self, path: str, value: object, origin: str) -> None:
        *tables, leaf = path.split(".")
        table = self.document
        for name in tables:
            inner: object = table.setdefault(name, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{name} must be a table of keys and values (from {self.origin_of(name)})")
            table = cast("dict[str, Any]", inner)
        table[leaf] = value
        self._forget(path)
        self.origins[path] = origin

    def override_concurrency(self, overrides: Mapping[str, int]) -> None:
        """Applies variables to services: ACC_MAX_CONCURRENCY_AUDIO_NORM is about the service audio-norm."""
        services = self.document.get("services")
        if not isinstance(services, dict):
            return
        for name, table in cast("dict[str, Any]", services).items():
            suffix = variable_suffix(name)
            if suffix in overrides and isinstance(table, dict):
                table["concurrency"] = overrides[suffix]
                self.origins[f"services.{name}.concurrency"] = f"environment {CONCURRENCY_PREFIX}{suffix}"

    def has_table(self, *path: str) -> bool:
        """Whether this section stands there, empty or not."""
        table: object = self.document
        for name in path:
            if not isinstance(table, dict):
                return False
            table = cast("dict[str, object]", table).get(name)
        return isinstance(table, dict)

    def origin_of(self, path: str) -> str:
        return self.origins.get(path, DEFAULT)

    def nearest_origin(self, path: str) -> str:
        """The origin of the value, or of the table that it ought to stand in: where a person has to look."""
        while path and path not in self.origins:
            path = path.rpartition(".")[0]
        return self.origin_of(path)

    def _merge(self, into: dict[str, Any], layer: Mapping[str, Any], at: tuple[str, ...], origin: str) -> None:
        for key, value in layer.items():
            here = (*at, key)
            if isinstance(value, dict):
                table = into.get(key)
                if not isinstance(table, dict):
                    into[key] = table = {}
                self._merge(cast("dict[str, Any]", table), cast("dict[str, Any]", value), here, origin)
            else:
                into[key] = value
                self._forget(".".join(here))
            self.origins[".".join(here)] = origin

    def _forget(self, path: str) -> None:
        """Forgets the origins of a replaced table's former keys."""
        for known in [known for known in self.origins if known.startswith(f"{path}.")]:
            del self.origins[known]
