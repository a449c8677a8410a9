"""Settings: TOML, secret files and the environment become one frozen model. The only reader of os.environ.

Each value is taken from the first of these that has it: the environment, a secret file (`ACC_DB_URL_FILE`, or
systemd's $CREDENTIALS_DIRECTORY/ACC_DB_URL), the TOML files, the default. An unknown setting is refused with a
suggestion, because a misspelt one that is silently ignored is found in production. The variables have flat names, not
names derived from the sections, and each value remembers where it came from; that is why the layers are merged here.
"""

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from pydantic import ValidationError

from accsd.errors import ConfigError
from accsd.settings.doors import AnalysisSettings, SeqpulseProject, SeqpulseSettings
from accsd.settings.layers import DEFAULT, Layers
from accsd.settings.model import (
    ComposeSettings,
    DatabaseSettings,
    GatewayLimits,
    GatewaySettings,
    HookSettings,
    HttpSettings,
    Limits,
    NodeSettings,
    OutboxSettings,
    OutboxTarget,
    ProbeSettings,
    ProbeTarget,
    ProviderSettings,
    QuarantineSettings,
    RetentionSettings,
    ServiceSettings,
    Settings,
    SleepSettings,
    StorageSettings,
    WakeSettings,
)
from accsd.settings.sources import (
    VARIABLES,
    concurrency_variables,
    joblib_variables,
    read_secret,
    read_toml,
    refuse_unknown_variables,
    secret_files,
    toml_files,
)
from accsd.values.validation import Problem, problems

__all__ = [
    "AnalysisSettings",
    "ComposeSettings",
    "DatabaseSettings",
    "GatewayLimits",
    "GatewaySettings",
    "HookSettings",
    "HttpSettings",
    "Limits",
    "NodeSettings",
    "OutboxSettings",
    "OutboxTarget",
    "ProbeSettings",
    "ProbeTarget",
    "ProviderSettings",
    "QuarantineSettings",
    "RetentionSettings",
    "SeqpulseProject",
    "SeqpulseSettings",
    "ServiceSettings",
    "Settings",
    "SleepSettings",
    "StorageSettings",
    "WakeSettings",
    "environment",
    "load_settings",
    "state_folder",
]


def load_settings(config: Path | str | None = None, *, environ: Mapping[str, str] | None = None) -> Settings:
    """Reads all layers, merges and checks them. Raises ConfigError with one sentence for each mistake."""
    environ = os.environ if environ is None else environ
    refuse_unknown_variables(environ)
    layers = Layers()
    if config is not None:
        for path in toml_files(Path(config)):
            layers.overlay(read_toml(path), origin=str(path))
    for variable, path in secret_files(environ):
        layers.put(VARIABLES[variable], read_secret(variable, path), origin=f"secret file {path}")
    for variable, path in VARIABLES.items():
        if value := environ.get(variable):
            layers.put(path, value, origin=f"environment {variable}")
    if layers.has_table("gateway", "joblib"):  # a variable that stands there for another program opens no door
        for variable, setting, value in joblib_variables(environ):
            layers.put(f"gateway.joblib.{setting}", value, origin=f"environment {variable}")
    overrides = concurrency_variables(environ)
    layers.override_concurrency(overrides)
    return _validated(layers, overrides)


def environment() -> MutableMapping[str, str]:
    """The process's own environment, for what is no setting: systemd's sockets, and the variables of children."""
    return os.environ


def state_folder(settings: Settings, environ: Mapping[str, str]) -> Path:
    """Where this node keeps data that must survive a restart of the daemon. One folder for each node's name."""
    if settings.node.state_dir is not None:
        root = settings.node.state_dir.absolute()
    elif given := environ.get("STATE_DIRECTORY"):  # systemd's
        root = Path(given.partition(":")[0])
    elif os.geteuid() == 0:
        root = Path("/var/lib/accsd")
    else:
        root = Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "accsd"
    return root / settings.node.name


def _validated(layers: Layers, overrides: Mapping[str, int]) -> Settings:
    try:
        settings = Settings.model_validate(layers.document)
    except ValidationError as error:
        found = problems(error, Settings)
    else:
        return settings.remember({path: layers.origin_of(path) for path in settings.paths()}, overrides)
    # Raised outside the handler: a chained ValidationError would carry the input, and with it the secrets.
    raise ConfigError("\n".join(_located(problem, layers) for problem in found))


def _located(problem: Problem, layers: Layers) -> str:
    path = ".".join(part for part in map(str, problem.place) if part != "[key]")
    origin = layers.nearest_origin(path)
    return f"{path or 'the configuration'} {problem.what}" + (f" (from {origin})" if origin != DEFAULT else "")
