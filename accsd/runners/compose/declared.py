"""Which services this node's compose file offers, and how: `docker compose config` is asked what the file means, and
the labels `accs.*` are read from its answer.

One badly labelled service is a problem of its own; the others are served.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, cast

import orjson
from pydantic import ValidationError

from accsd.errors import ConfigError, InvalidValue
from accsd.runners.compose.docker import Docker
from accsd.settings.model import ComposeSettings, Limits, ServiceSettings
from accsd.values.labels import Label
from accsd.values.names import check_service_name
from accsd.values.validation import did_you_mean, problems

_PREFIX: Final = "accs."
MODE: Final = "accs.mode"
WORKDIR: Final = "accs.workdir"
PORT: Final = "accs.port"
# label → where its value stands in the settings of a service
_SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "accs.command": ("command",),
    "accs.concurrency": ("concurrency",),
    "accs.idle-stop": ("idle_stop",),
    "accs.timeout": ("timeout",),
    "accs.stop-grace": ("stop_grace",),
    "accs.requires": ("requires",),
    "accs.tool": ("tool",),
    "accs.tool.schema": ("tool_schema",),
    "accs.limits.memory": ("limits", "memory"),
    "accs.limits.pids": ("limits", "pids"),
    "accs.limits.output": ("limits", "output"),
}
_KNOWN: Final = (MODE, WORKDIR, PORT, *_SETTINGS)
_HIGHEST_PORT: Final = 65535
_MODES: Final = "it is exec (into the running service), run (a container per task) or http (a request to the service)"
COMPLETED: Final = "service_completed_successfully"


class Mode(StrEnum):
    EXEC = "exec"  # a command inside the running service
    RUN = "run"  # a container for each task
    HTTP = "http"  # a request to the running service


@dataclass(frozen=True, slots=True)
class Declared:
    """How this node runs one service of its compose file."""

    service: str
    mode: Mode
    image: str
    command: Sequence[str] | None = None
    concurrency: int = 1
    idle_stop: timedelta | None = None
    timeout: timedelta | None = None
    stop_grace: timedelta = timedelta(seconds=10)
    limits: Limits = field(default_factory=Limits)
    requires: Mapping[str, Label] = field(default_factory=dict[str, Label])
    workdir: str | None = None  # as the task calls it
    workdir_source: Path | None = None  # where that lies on this machine, if it is mounted from there
    is_built: bool = False
    depends_on: Mapping[str, str] = field(default_factory=dict[str, str])  # service → condition
    tool: str | None = None  # that it offers to do
    tool_schema: Path | None = None  # the tool's types, a file beside the compose file
    port: int | None = None  # in the container, where a service of mode http is asked


@dataclass(frozen=True, slots=True)
class Declarations:
    """What a compose file says, good and bad."""

    project: str
    services: Mapping[str, Declared]
    problems: Sequence[ConfigError]


async def declared_services(
    docker: Docker, compose: ComposeSettings, settings: Mapping[str, ServiceSettings]
) -> Declarations:
    """Reads which services the compose file labels or the settings name. It needs no engine. Raises ConfigError for the
    file as a whole, DockerUnavailable where docker or its plugin is missing."""
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


def read_declarations(document: Mapping[str, Any], settings: Mapping[str, ServiceSettings]) -> Declarations:
    """`document` is the answer of `docker compose config`; settings win over labels."""
    project: str = document["name"]
    services: dict[str, Declared] = {}
    wrong: list[ConfigError] = []
    for name, entry in _offered(document.get("services") or {}, settings):
        try:
            services[name] = _declared(project, name, entry, settings.get(name))
        except ConfigError as error:
            wrong.append(error)
    for name, service in settings.items():
        if service.runner == "compose" and name not in (document.get("services") or {}):
            wrong.append(_problem(name, "is in the settings, but not in the compose file"))
    return Declarations(project, services, tuple(wrong))


def _offered(
    entries: Mapping[str, Mapping[str, Any]], settings: Mapping[str, ServiceSettings]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The services that bear a label of ours or are named in the settings, unless the settings run them as plain
    processes."""
    for name, entry in entries.items():
        labels: Mapping[str, str] = entry.get("labels") or {}
        ours = any(label.startswith(_PREFIX) for label in labels)
        if settings[name].runner == "compose" if name in settings else ours:
            yield name, entry


def _declared(project: str, name: str, entry: Mapping[str, Any], settings: ServiceSettings | None) -> Declared:
    labels: Mapping[str, str] = entry.get("labels") or {}
    try:
        check_service_name(name)
    except InvalidValue as error:
        raise _problem(name, f"cannot be served: {error}") from None
    _refuse_unknown(name, labels)
    said = _labelled(name, labels)
    workdir = _workdir(name, labels)
    declared = Declared(
        service=name,
        mode=_mode(name, labels, settings),
        image=entry.get("image") or f"{project}-{name}",
        **{field: getattr(said, field) for field in _FROM_SETTINGS},
        workdir=workdir,
        workdir_source=_mounted_from(entry.get("volumes") or [], workdir) if workdir else None,
        is_built="build" in entry,
        depends_on=_dependencies(entry.get("depends_on") or {}),
        port=_port(name, labels),
    )
    return _checked(with_settings(declared, settings) if settings else declared)


_FROM_SETTINGS: Final = (
    "command",
    "concurrency",
    "idle_stop",
    "timeout",
    "stop_grace",
    "limits",
    "requires",
    "tool",
    "tool_schema",
)


def with_settings(declared: Declared, settings: ServiceSettings) -> Declared:
    """What [services.NAME] says wins over the labels; what it leaves out stays as the labels say."""
    said = {name: getattr(settings, name) for name in _FROM_SETTINGS if name in settings.model_fields_set}
    if "limits" in said:
        given = {name: getattr(settings.limits, name) for name in settings.limits.model_fields_set}
        said["limits"] = declared.limits.model_copy(update=given)
    return replace(declared, **said)


def _checked(declared: Declared) -> Declared:
    if declared.mode is Mode.HTTP and declared.port is None:
        raise _problem(
            declared.service, "has accs.mode http and therefore needs accs.port", hint='such as accs.port: "8080"'
        )
    if declared.mode is Mode.HTTP and declared.command:
        raise _problem(
            declared.service,
            "has accs.mode http and a command for its tasks, which nobody would run",
            hint="the service itself listens: `command` of the compose file starts it",
        )
    if declared.mode is Mode.EXEC and not declared.command:
        raise _problem(
            declared.service,
            "has accs.mode exec and therefore needs accs.command",
            hint="""such as accs.command: '["python", "-m", "render"]'""",
        )
    return declared


def _mode(name: str, labels: Mapping[str, str], settings: ServiceSettings | None) -> Mode:
    written = labels.get(MODE)
    if written in tuple(Mode):
        return Mode(written)
    if written is None and settings is not None:
        # Only the settings name it: a command is meant for the running service.
        return Mode.EXEC if settings.command else Mode.RUN
    what = "has no accs.mode" if written is None else f'has accs.mode "{written[:40]}"'
    raise _problem(name, what, hint=_MODES)


def _refuse_unknown(name: str, labels: Mapping[str, str]) -> None:
    for label in labels:
        if label.startswith(_PREFIX) and label not in _KNOWN:
            raise _problem(name, f'has an unknown label "{label[:60]}"{did_you_mean(label, _KNOWN)}')


def _labelled(name: str, labels: Mapping[str, str]) -> ServiceSettings:
    """The labels, checked by the same model as the settings."""
    document: dict[str, Any] = {}
    for label, place in _SETTINGS.items():
        if label in labels:
            table = document.setdefault("limits", {}) if len(place) > 1 else document
            table[place[-1]] = _command(name, labels[label]) if label == "accs.command" else labels[label]
    try:
        return ServiceSettings.model_validate(document)
    except ValidationError as error:
        found = problems(error, ServiceSettings)
        said = "; ".join(f"{_PREFIX}{each.path.replace('_', '-')} {each.what}" for each in found)
        raise _problem(name, f"is badly labelled: {said}") from None


def _command(name: str, written: str) -> Any:
    try:
        command = orjson.loads(written)
    except orjson.JSONDecodeError:
        command = None
    if not isinstance(command, list):
        raise _problem(name, "is badly labelled: accs.command must be a JSON list", hint="""'["python", "x.py"]'""")
    return command  # pyright: ignore[reportUnknownVariableType]


def _port(name: str, labels: Mapping[str, str]) -> int | None:
    written = labels.get(PORT)
    if written is None:
        return None
    if not (re.fullmatch(r"[0-9]{1,5}", written) and 0 < int(written) <= _HIGHEST_PORT):
        raise _problem(name, f"is badly labelled: accs.port must be a number from 1 to {_HIGHEST_PORT}")
    return int(written)


def _workdir(name: str, labels: Mapping[str, str]) -> str | None:
    written = labels.get(WORKDIR)
    if written is None:
        return None
    if not written.startswith("/") or ".." in written.split("/") or posixpath.normpath(written) in ("/", "//"):
        raise _problem(name, "is badly labelled: accs.workdir must be an absolute path in the container")
    return posixpath.normpath(written)


def _mounted_from(volumes: Sequence[Mapping[str, Any]], workdir: str) -> Path | None:
    """The folder on this machine that the innermost mount over `workdir` shows, if it is a bind mount."""
    over = [each for each in volumes if _is_beneath(workdir, str(each.get("target", "")))]
    innermost = max(over, key=lambda each: len(str(each["target"])), default=None)
    if innermost is None or innermost.get("type") != "bind" or innermost.get("read_only"):
        return None
    return Path(innermost["source"]) / posixpath.relpath(workdir, str(innermost["target"]))


def _is_beneath(path: str, target: str) -> bool:
    return bool(target) and (path == target.rstrip("/") or path.startswith(target.rstrip("/") + "/"))


def _dependencies(entry: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {name: str(its.get("condition", "")) for name, its in entry.items() if its.get("required", True)}


def _problem(service: str, what: str, hint: str | None = None) -> ConfigError:
    shown = "".join(character if character.isprintable() else "?" for character in service[:60])
    return ConfigError(f'service "{shown}" {what}', hint=hint)
