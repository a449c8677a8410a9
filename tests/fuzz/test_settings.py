"""What a node is told: the labels of its compose file, TOML, the environment.

Each is taken, or refused as ConfigError in words, within its time and memory.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

from pydantic import BaseModel

from accsd.errors import ConfigError
from accsd.runners.compose.declared import read_declarations
from accsd.settings import ServiceSettings, Settings, load_settings
from accsd.settings.sources import CONCURRENCY_PREFIX, SECRETS, VARIABLES
from tests.fuzz.cases import Run, at_length, contained
from tests.fuzz.values import Files, in_a_folder, in_words, integer, json_text, number, text, value, with_odd_bytes

# The labels of compose services

LABELS: dict[str, tuple[str, ...]] = {
    "accs.mode": ("run", "exec", "http", "RUN"),
    "accs.command": ('["python3", "x.py"]', "[]", "[7]", "python3 x.py", '["a", ""]'),
    "accs.concurrency": ("1", "0", "100001", "1.5", "٣"),
    "accs.idle-stop": ("10m", "1h30m", "-1s", "9" * 400),
    "accs.timeout": ("600", "1d", "1e400", "inf"),
    "accs.stop-grace": ("10s", "5 s s"),
    "accs.requires": ("gpu=true", "gpu", "gpu=true,gpu=false", "=,="),
    "accs.limits.memory": ("512m", "2GiB", "1" * 300, "1e3", "9" * 400 + "g"),
    "accs.limits.pids": ("100", "0", "1" * 5_000),
    "accs.limits.output": ("100m", "9" * 400),
    "accs.workdir": ("/work", "work", "/", "/a/../b", "//"),
    "accs.port": ("8080", "0", "65536", "9" * 5_000, "²"),
    "accs.modus": ("run",),
}


def compose_file(random: Random) -> dict[str, Any]:
    """As `docker compose config` answers: its shape is sound, its words are the author's."""
    names = [
        random.choice(("render", "audio-norm", "UPPER", text(random, longest=500) or "x"))
        for _ in range(random.randrange(1, 4))
    ]
    return {"name": "studio", "services": {name: _entry(random) for name in names}}


def _entry(random: Random) -> dict[str, Any]:
    entry: dict[str, Any] = {"labels": _labels(random)}
    if random.random() < 0.5:
        entry["image"] = text(random, longest=500)
    if random.random() < 0.3:
        entry["build"] = {"context": "."}
    if random.random() < 0.5:
        target = random.choice(("/work", "/", "", text(random, longest=500)))
        kind = random.choice(("bind", "volume", "tmpfs"))
        entry["volumes"] = [
            {"type": kind, "source": text(random, longest=500), "target": target, "read_only": random.random() < 0.3}
        ]
    if random.random() < 0.3:
        condition = random.choice(("service_started", "service_completed_successfully", text(random, longest=100)))
        entry["depends_on"] = {
            random.choice(("render", "db")): {"condition": condition, "required": random.random() < 0.7}
        }
    return entry


def _labels(random: Random) -> dict[str, str] | None:
    labels = (
        {"accs.mode": random.choice(("run", "exec", "http")), "accs.command": '["x"]'} if random.random() < 0.7 else {}
    )
    for label in random.sample(list(LABELS), random.randrange(5)):
        labels[label] = random.choice(LABELS[label]) if random.random() < 0.6 else _scalar(random)
    if random.random() < 0.1:
        labels[f"accs.{text(random, longest=500)}"] = text(random, longest=500)
    return labels or random.choice(({}, None))


def _scalar(random: Random) -> str:
    return random.choice((text(random, longest=20_000), number(random), json_text(random)))


def read_labels(document: dict[str, Any]) -> None:
    settings = {"audio-norm": ServiceSettings.model_validate({"command": ["x"], "limits": {"memory": "1g"}})}
    declarations = read_declarations(document, settings)
    for problem in declarations.problems:
        in_words(problem)
    known = set(document["services"]) | set(settings)
    assert set(declarations.services) <= known


@at_length(cases=700)
def test_labels_are_taken_or_refused_in_words_one_service_at_a_time(run: Run):
    contained(run, compose_file, read_labels)


# TOML and the environment

FITTING: dict[str, tuple[Any, ...]] = {
    "database.url": (
        "postgresql://u:p@h:5432/d",
        "postgres://",
        "postgresql://h:99999/x",
        "mysql://x",
        "postgresql://[::1/x",
        "postgresql://h:" + "9" * 5_000,
    ),
    "http.listen": ("127.0.0.1:9464", "0.0.0.0:9464", "[::1]:1", "x:999999"),
    "http.token": ("a token of many characters", "short"),
    "node.labels": ({"gpu": True}, "gpu=true,zone=attic", {"gpu": [1]}),
    "node.min_free_disk": ("1g", "9" * 400, -1),
    "node.files_cache": ("1g", "9" * 400, -1),
    "storage.url": ("s3://bucket", "file:///x", "s3://", "s3://[", "file://[x/"),
    "storage.endpoint": ("http://127.0.0.1:9000", "127.0.0.1"),
    "wake.broadcast": (["10.0.0.255"], ["::1"], ["10.0.0.256"]),
    "sleep.method": ("suspend", "script", "provider"),
    "retention.jobs": ("30d", "forever", "1h"),
    "quarantine.luck": (0.5, 0, 1),
    "heartbeat_ttl_sec": (60, 0, float("inf"), 1e300),
    "log_level": ("info", "INFO"),
}
TABLES: dict[str, dict[str, Any]] = {
    "services": {
        "command": ["x"],
        "runner": "process",
        "limits": {"memory": "1" * 300},
        "environment": {"A": "b"},
        "requires": "gpu=true",
    },
    "wake.providers": {"url": "https://x/{ref}", "token": "t", "authorization": "Basic {token}", "timeout": "1s"},
    "outbox.targets": {
        "url": "https://x:99999/",
        "secret": "a secret of some length",
        "events": ["job.done"],
        "timeout": "10s",
    },
    "retention.workflows": {"jobs": "30d"},
}


def paths(model: type[BaseModel], at: str = "") -> Iterator[str]:
    for name, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from paths(info.annotation, f"{at}{name}.")
        elif f"{at}{name}" not in TABLES:
            yield f"{at}{name}"


PATHS = sorted(paths(Settings))


def toml_file(random: Random) -> Files:
    content = _toml_document(random).encode("utf-8", "surrogatepass")
    return {"accsd.toml": with_odd_bytes(random, content) if random.random() < 0.2 else content}


def _toml_document(random: Random) -> str:
    if random.random() < 0.05:
        return random.choice(
            (
                "[" * 2_000,
                "a = " + "[" * 2_000 + "]" * 2_000,
                "a.b = 1\na.b.c = 2\n",
                "= 1",
                "[services]\n[services]\n",
                "a = 9" + "9" * 5_000,
            )
        )
    lines = [f"{_dotted(path)} = {_toml(_setting(random, path))}" for path in _chosen(random)]
    for table, entry in TABLES.items():
        if random.random() < 0.25:
            name = random.choice(("render", "one", text(random, longest=500)))
            fields = {
                field: known if random.random() < 0.6 else value(random)
                for field, known in entry.items()
                if random.random() < 0.7
            }
            lines.append(f"{_dotted(table)}.{_key(name)} = {_toml(fields)}")
    return "\n".join(lines)


def _chosen(random: Random) -> list[str]:
    chosen = random.sample(PATHS, random.randrange(1, 6))
    if random.random() < 0.1:
        chosen.append(random.choice((*TABLES, "database", "node", f"node.{text(random, longest=100)}", "databse.url")))
    return chosen


def _setting(random: Random, path: str) -> Any:
    if path in FITTING and random.random() < 0.7:
        return random.choice(FITTING[path])
    return random.choice((value(random), text(random, longest=20_000), integer(random), "10m", "512m", True))


def _dotted(path: str) -> str:
    return ".".join(_key(part) for part in path.split("."))


def _key(name: str) -> str:
    return name if name.isascii() and name.replace("_", "").isalnum() else _toml(name)


def _toml(value: Any) -> str:
    """Enough of a writer of TOML, which Python has none of."""
    match value:
        case None:
            return '"none"'
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value)
        case str():
            return json.dumps(value).replace("\x7f", "\\u007f")
        case list():
            return "[" + ", ".join(_toml(each) for each in value) + "]"
        case dict():
            return "{" + ", ".join(f"{_toml(str(key))} = {_toml(each)}" for key, each in value.items()) + "}"
        case _:
            raise AssertionError(value)


def take_settings(config: Path | None, environ: Mapping[str, str]) -> None:
    """All that a process does with them before it begins."""
    try:
        settings = load_settings(config, environ=environ)
    except ConfigError as error:
        in_words(error)
        return
    assert all(settings.secret_texts()), "an empty text would be struck out everywhere"
    assert settings.origins.keys() >= set(settings.paths())
    assert settings.database.address
    assert settings.heartbeat <= settings.lease


@at_length(cases=700)
def test_a_toml_file_is_taken_or_refused_in_words(run: Run):
    contained(run, toml_file, lambda files: in_a_folder(files, lambda folder: take_settings(folder / "accsd.toml", {})))


def environment(random: Random) -> dict[str, str]:
    names = [
        *VARIABLES,
        f"{CONCURRENCY_PREFIX}RENDER",
        CONCURRENCY_PREFIX,
        "ACC_NODENAME",
        f"ACC_{text(random, longest=100)}",
    ]
    environ = {name: _variable(random, name) for name in random.sample(names, random.randrange(1, 6))}
    if random.random() < 0.2:
        environ[f"{random.choice(SECRETS)}_FILE"] = random.choice(("/nowhere", "/", "secret", "x" * 5_000, "a\udcffb"))
    if random.random() < 0.1:
        environ["CREDENTIALS_DIRECTORY"] = random.choice(("/nowhere", "", "x" * 5_000))
    return environ


def _variable(random: Random, name: str) -> str:
    fitting = FITTING.get(VARIABLES.get(name, ""), ())
    if fitting and random.random() < 0.5:
        return str(random.choice(fitting))
    # what is no UTF-8 in the environment, Python shows as lone surrogates
    return random.choice(
        (number(random), text(random, longest=20_000), "a\udcffb", "1" * 5_000, "gpu=true,a=\udc80", "٣")
    )


@at_length(cases=600)
def test_an_environment_is_taken_or_refused_in_words(run: Run):
    contained(run, environment, lambda environ: take_settings(None, environ))
