"""The sources of settings: the variables, the files that are read, and what is refused in them."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from accsd.errors import ConfigError
from accsd.values.validation import did_you_mean

VARIABLES: Final[Mapping[str, str]] = {
    "ACC_DB_URL": "database.url",
    "ACC_DB_LISTEN_URL": "database.listen_url",
    "ACC_DB_POOL_SIZE": "database.pool_size",
    "ACC_DB_POOLER": "database.pooler",
    "ACC_DB_CONNECT_TIMEOUT_SEC": "database.connect_timeout_sec",
    "ACC_DB_STATEMENT_TIMEOUT_SEC": "database.statement_timeout_sec",
    "ACC_RETENTION_DB_URL": "retention.database_url",
    "ACC_STORAGE_URL": "storage.url",
    "ACC_MINIO_ENDPOINT": "storage.endpoint",
    "ACC_MINIO_ACCESS_KEY": "storage.access_key",
    "ACC_MINIO_SECRET_KEY": "storage.secret_key",
    "ACC_MINIO_BUCKET": "storage.bucket",
    "ACC_NODE_NAME": "node.name",
    "ACC_NODE_LABELS": "node.labels",
    "ACC_STATE_DIR": "node.state_dir",
    "ACC_COMPOSE_FILE": "compose.file",
    "ACC_COMPOSE_PROJECT": "compose.project",
    "ACC_HTTP_LISTEN": "http.listen",
    "ACC_HTTP_TOKEN": "http.token",
    "ACC_GATEWAY_LISTEN": "gateway.listen",
    "ACC_POLL_SEC": "poll_sec",
    "ACC_POLL_DEAF_SEC": "poll_deaf_sec",
    "ACC_DRAIN_SEC": "drain_sec",
    "ACC_BACKOFF_BASE_SEC": "backoff_base_sec",
    "ACC_HEARTBEAT_TTL_SEC": "heartbeat_ttl_sec",
    "ACC_NOTIFY_CHANNEL_PREFIX": "notify_channel_prefix",
    "ACC_LOG_LEVEL": "log_level",
    "ACC_LOG_FORMAT": "log_format",
}
CONCURRENCY_PREFIX: Final = "ACC_MAX_CONCURRENCY_"
SECRETS: Final = (
    "ACC_DB_URL",
    "ACC_DB_LISTEN_URL",
    "ACC_RETENTION_DB_URL",
    "ACC_MINIO_ACCESS_KEY",
    "ACC_MINIO_SECRET_KEY",
    "ACC_HTTP_TOKEN",
)

# Our variables that are no settings: those in a task's environment, those of the tests, and the one that makes a
# command show the traceback of a bug.
_NOT_SETTINGS: Final = frozenset(
    {
        "ACC_TOKEN",  # of a caller: `accsd mcp`, curl, accsd.client
        "ACC_JOB_ID",
        "ACC_JOB_TASK_ID",
        "ACC_ATTEMPT_ID",
        "ACC_TRACE_ID",
        "ACC_TASK_FILE",
        "ACC_WORKDIR",
        "ACC_FAILPOINTS",
        "ACC_BOOT_ID",
        "ACC_DEBUG",
    }
)
_TEST_PREFIX: Final = "ACC_TEST_"
JOBLIB_PREFIX: Final = "ZNDRAW_JOBLIB_"
_JOBLIB_LISTS: Final = ("allowed_categories", "allowed_provider_categories")
_JOBLIB: Final = frozenset(
    {
        *_JOBLIB_LISTS,
        "worker_timeout_seconds",
        "sweeper_interval_seconds",
        "internal_task_timeout_seconds",
        "long_poll_max_wait_seconds",
        "provider_long_poll_default_seconds",
        "provider_long_poll_max_seconds",
        "provider_result_ttl_seconds",
        "provider_inflight_ttl_seconds",
        "claim_max_attempts",
        "claim_base_delay_seconds",
    }
)
_COUNT: Final = re.compile(r"[0-9]{1,6}")  # int() itself refuses numbers of thousands of digits


def refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = {*VARIABLES, *(f"{name}_FILE" for name in SECRETS), *_NOT_SETTINGS}
    for name in sorted(environ):
        if not name.startswith("ACC_") or name in known or name.startswith(_TEST_PREFIX):
            continue
        if name.startswith(CONCURRENCY_PREFIX) and name != CONCURRENCY_PREFIX:
            continue
        suggestion = did_you_mean(name, [*known - _NOT_SETTINGS, f"{CONCURRENCY_PREFIX}<SERVICE>"])
        raise ConfigError(
            f"the environment variable {name} is unknown{suggestion}", hint=f"unset {name}, or correct it"
        )


def toml_files(config: Path) -> Iterator[Path]:
    """The file, then `conf.d/` and `<file>.d/` beside it, so that a machine adds to it without an edit."""
    yield config
    for folder in (config.parent / "conf.d", config.with_name(f"{config.name}.d")):
        yield from sorted(folder.glob("*.toml"))


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits
        raise ConfigError(f"{path} can't be read: {error}") from None


def secret_files(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """The secret files by variable. A file named outright wins over one in systemd's folder, which others may share."""
    folder = environ.get("CREDENTIALS_DIRECTORY")
    for variable in SECRETS:
        if named := environ.get(f"{variable}_FILE"):
            yield variable, Path(named)
        elif folder and _is_there(variable, path := Path(folder) / variable):
            yield variable, path


def read_secret(variable: str, path: Path) -> str:
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise _unreadable(variable, path, error) from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path} for {variable} is not UTF-8 text") from None
    if not secret:
        raise ConfigError(f"{path} for {variable} is empty")
    return secret


def _is_there(variable: str, path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:  # a folder that may not be entered
        raise _unreadable(variable, path, error) from error


def _unreadable(variable: str, path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot read {path} for {variable}: {error.strerror}")


def concurrency_variables(environ: Mapping[str, str]) -> dict[str, int]:
    """The values by the service's part of the name. An empty variable counts as unset, as everywhere."""
    overrides: dict[str, int] = {}
    for name, written in sorted(environ.items()):
        if name.startswith(CONCURRENCY_PREFIX) and written:
            if not _COUNT.fullmatch(written) or int(written) > 100_000:
                raise ConfigError(f"the environment variable {name} must be a whole number from 0 to 100000")
            overrides[name.removeprefix(CONCURRENCY_PREFIX)] = int(written)
    return overrides


def joblib_variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str, object]]:
    """The variables of zndraw-joblib, each with its setting and value; lists are JSON. Others of its prefix may belong
    to the program beside us."""
    for name in sorted(environ):
        setting = name.removeprefix(JOBLIB_PREFIX).lower()
        if not name.startswith(JOBLIB_PREFIX) or setting not in _JOBLIB or not environ[name]:
            continue
        yield name, setting, _json(name, environ[name]) if setting in _JOBLIB_LISTS else environ[name]


def _json(name: str, text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(f"the environment variable {name} must be a list in JSON") from None
