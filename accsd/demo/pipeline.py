"""The workflow and the services that the demo plays: a copy of one of the examples in the demo's own folder."""

import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import accsd
from accsd.errors import ConfigError
from accsd.sdk.vendor import vendor


@dataclass(frozen=True, slots=True)
class Pipeline:
    folder: Path
    services: dict[str, dict[str, Any]]  # as in [services.NAME], with absolute paths

    @property
    def workflow(self) -> Path:
        return self.folder / "workflow.yaml"

    @property
    def config(self) -> Path:
        return self.folder / "accsd.toml"


def copy_pipeline(place: Path, name: str) -> Pipeline:
    """A copy of the example, with what its services import of accsd: the package itself may be read-only."""
    folder = place / name
    without = shutil.ignore_patterns("__pycache__", "work")
    shutil.copytree(_example(name), folder, dirs_exist_ok=True, ignore=without)
    vendor(folder / "services", force=True)
    settings = tomllib.loads((folder / "accsd.toml").read_text(encoding="utf-8"))
    services: dict[str, dict[str, Any]] = settings["services"]
    return Pipeline(folder, {name: _absolute(folder, service) for name, service in services.items()})


def _example(name: str) -> Path:
    """In the package (a wheel has a copy), or beside it (a clone)."""
    package = Path(accsd.__file__).parent
    for folder in (package / "demo" / name, package.parent / "examples" / name):
        if (folder / "accsd.toml").is_file():
            return folder
    raise ConfigError("the demo's services are not here", hint="run it from a clone: make demo")


def _absolute(folder: Path, service: dict[str, Any]) -> dict[str, Any]:
    words: list[str] = service["command"]
    command = [str(folder / word) if (folder / word).is_file() else word for word in words]
    if command[0] == "python3":
        command[0] = sys.executable
    return service | {"command": command}
