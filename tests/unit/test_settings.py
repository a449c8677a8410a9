"""Settings (A19): where values come from, what is refused, and that secrets stay secret."""

import tomllib
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from accsd.errors import ConfigError
from accsd.settings import Settings, load_settings
from accsd.settings.database_url import normalise, shown
from accsd.settings.sources import VARIABLES

EXAMPLE = Path(__file__).parents[2] / "config" / "accsd.example.toml"
PASSWORD = "correct-horse-battery"


def written(folder: Path, text: str, name: str = "accsd.toml") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def refusal_of(config: Path | None = None, **environ: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load_settings(config, environ=environ)
    return str(refused.value)


# Where values come from


def test_without_any_source_everything_has_its_default():
    settings = load_settings(environ={})

    assert settings.database.url is None
    assert settings.database.pool_size == 10
    assert settings.heartbeat_ttl_sec == 120
    assert settings.backoff_base == timedelta(seconds=15)
    assert settings.notify_channel_prefix == "accs_"
    assert settings.node.name
    assert set(settings.origins.values()) == {"default"}


def test_every_variable_of_the_specification_is_read():
    settings = load_settings(
        environ={
            "ACC_DB_URL": "postgresql+psycopg://user:pass@host:5432/accs",
            "ACC_MINIO_ENDPOINT": "http://minio:9000",
            "ACC_MINIO_ACCESS_KEY": "access",
            "ACC_MINIO_SECRET_KEY": "secret",
            "ACC_NODE_NAME": "gpu-node-1",
            "ACC_NODE_LABELS": "gpu=true,zone=eu, cores=16 ,load=0.5,off=False,version=1.2.3",
            "ACC_MAX_CONCURRENCY_AUDIO_NORM": "4",
            "ACC_BACKOFF_BASE_SEC": "7.5",
            "ACC_HEARTBEAT_TTL_SEC": "20",
            "ACC_NOTIFY_CHANNEL_PREFIX": "studio_",
        }
    )

    assert settings.database.required_url == "postgresql://user:pass@host:5432/accs"
    assert settings.storage.endpoint == "http://minio:9000"
    assert settings.storage.secret_key is not None
    assert settings.storage.secret_key.get_secret_value() == "secret"
    assert settings.node.name == "gpu-node-1"
    assert settings.node.labels == {
        "gpu": True, "zone": "eu", "cores": 16, "load": 0.5, "off": False, "version": "1.2.3",
    }  # fmt: skip
    assert settings.concurrency_of("audio-norm") == 4
    assert settings.concurrency_of("something-else") == 1
    assert settings.backoff_base_sec == 7.5
    assert settings.notify_channel_prefix == "studio_"
    assert settings.origins["node.labels"] == "environment ACC_NODE_LABELS"


def test_the_environment_wins_over_secret_files_and_these_over_toml(tmp_path: Path):
    config = written(tmp_path, '[database]\nurl = "postgresql://toml/a"\npool_size = 3\n')
    secret = written(tmp_path, "postgresql://file/a\n", "db_url")

    def host(**environ: str) -> str:
        return load_settings(config, environ=environ).database.required_url

    assert host() == "postgresql://toml/a"
    assert host(ACC_DB_URL_FILE=str(secret)) == "postgresql://file/a"
    assert host(ACC_DB_URL_FILE=str(secret), ACC_DB_URL="postgresql://env/a") == "postgresql://env/a"
    assert host(ACC_DB_URL="") == "postgresql://toml/a"


def test_systemd_credentials_are_found_by_the_name_of_their_variable(tmp_path: Path):
    written(tmp_path, "postgresql://credential/a\n", "ACC_DB_URL")
    written(tmp_path, "for somebody else", "tls.key")
    named = written(tmp_path, "postgresql://named/a", "other")

    settings = load_settings(environ={"CREDENTIALS_DIRECTORY": str(tmp_path)})
    outright = load_settings(environ={"CREDENTIALS_DIRECTORY": str(tmp_path), "ACC_DB_URL_FILE": str(named)})

    assert settings.database.required_url == "postgresql://credential/a"
    assert settings.origins["database.url"] == f"secret file {tmp_path / 'ACC_DB_URL'}"
    assert outright.database.required_url == "postgresql://named/a"


def test_files_beside_the_configuration_are_laid_over_it_in_the_order_of_their_names(tmp_path: Path):
    config = written(tmp_path, "heartbeat_ttl_sec = 1\nbackoff_base_sec = 1\n[node]\nlabels = {a = 1, b = 1}\n")
    written(tmp_path, "heartbeat_ttl_sec = 9\n[node.labels]\nb = 2\n", "conf.d/10-one.toml")
    last = written(tmp_path, "heartbeat_ttl_sec = 3\n", "conf.d/20-two.toml")
    own = written(tmp_path, "backoff_base_sec = 4\n", "accsd.toml.d/00.toml")
    written(tmp_path, "not toml at all", "conf.d/README")

    settings = load_settings(config, environ={})

    assert (settings.heartbeat_ttl_sec, settings.backoff_base_sec) == (3, 4)
    assert settings.node.labels == {"a": 1, "b": 2}
    assert settings.origins["heartbeat_ttl_sec"] == str(last)
    assert settings.origins["backoff_base_sec"] == str(own)


def test_each_value_knows_its_own_origin_and_not_its_neighbours(tmp_path: Path):
    config = written(tmp_path, "[services.audio-norm]\nconcurrency = 2\n[database]\npool_size = 3\n")

    settings = load_settings(config, environ={"ACC_MAX_CONCURRENCY_AUDIO_NORM": "4", "ACC_DB_POOLER": "none"})

    assert settings.origins["database.pool_size"] == str(config)
    assert settings.origins["database.pooler"] == "environment ACC_DB_POOLER"
    assert settings.origins["database.statement_timeout_sec"] == "default"
    assert settings.origins["services.audio-norm.concurrency"] == "environment ACC_MAX_CONCURRENCY_AUDIO_NORM"
    assert settings.origins["services.audio-norm.runner"] == "default"
    assert settings.services["audio-norm"].concurrency == settings.concurrency_of("audio-norm") == 4


def test_a_service_is_read_with_its_durations_sizes_and_limits(tmp_path: Path):
    config = written(
        tmp_path,
        """
        [services.renderer]
        runner = "process"
        command = ["python3", "render.py"]
        concurrency = 2
        timeout = "1h30m"
        idle_stop = 90
        requires = { gpu = true }
        limits = { memory = "2g", pids = 256, output = "1 MiB" }
        """,
    )

    renderer = load_settings(config, environ={}).services["renderer"]

    assert renderer.command == ["python3", "render.py"]
    assert renderer.timeout == timedelta(minutes=90)
    assert renderer.idle_stop == timedelta(seconds=90)
    assert (renderer.limits.memory, renderer.limits.pids, renderer.limits.output) == (
        2 * 1024**3,
        256,
        1024**2,
    )


@pytest.mark.parametrize(("ttl", "heartbeat", "grace"), [(120, 10, 1), (20, 5, 1), (4, 1, 0.4), (0.5, 0.125, 0.05)])
def test_heartbeat_and_grace_follow_from_the_lease(ttl: float, heartbeat: float, grace: float):
    settings = load_settings(environ={"ACC_HEARTBEAT_TTL_SEC": str(ttl)})

    assert settings.lease == timedelta(seconds=ttl)
    assert settings.heartbeat == timedelta(seconds=heartbeat)
    assert settings.grace == timedelta(seconds=grace)


# What is refused


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("ACC_DB_ULR", 'did you mean "ACC_DB_URL"'),
        ("ACC_HEARTBEAT_TTL", 'did you mean "ACC_HEARTBEAT_TTL_SEC"'),
        ("ACC_MAX_CONCURENCY_RENDER", 'did you mean "ACC_MAX_CONCURRENCY_<SERVICE>"'),
        ("ACC_NODE_NAME_FILE", "is unknown"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_name_that_was_meant(variable: str, suggestion: str):
    message = refusal_of(None, **{variable: "x"})

    assert variable in message
    assert suggestion in message


def test_variables_of_tasks_tests_and_other_programs_are_let_alone():
    ours = (
        "ACC_JOB_ID",
        "ACC_JOB_TASK_ID",
        "ACC_ATTEMPT_ID",
        "ACC_TRACE_ID",
        "ACC_TASK_FILE",
        "ACC_FAILPOINTS",
    )

    load_settings(environ=dict.fromkeys((*ours, "ACC_TEST_DB_URL", "ACCELERATE", "PATH"), "x"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[database]\nurll = 'x'", 'database has an unknown field "urll" (did you mean "url"?)'),
        ("heartbeat_ttl = 3", 'unknown field "heartbeat_ttl" (did you mean "heartbeat_ttl_sec"?)'),
        ("[service.renderer]\n", 'unknown field "service" (did you mean "services"?)'),
        (
            "[services.r]\ncomand = ['x']",
            'services.r has an unknown field "comand" (did you mean "command"?)',
        ),
        ("[services.r.limits]\nmem = 1", 'services.r.limits has an unknown field "mem"'),
        ("origins = 1", 'unknown field "origins"'),
        ("[services.builder]\n", "is reserved"),
        ("[services.'a b']\n", "is not a service name"),
        ("[services.r]\nrunner = 'process'", 'services.r has runner "process" and therefore needs a command'),
        ("[services.r]\nrunner = 'magic'", "services.r.runner must be 'process' or 'compose'"),
        ("[services.r]\ntimeout = 'soon'", "services.r.timeout a duration is a number of seconds"),
        ("[services.r.limits]\nmemory = 'much'", "services.r.limits.memory a size is a number of bytes"),
        ("database = 3", "database must be a table"),
        ("heartbeat_ttl_sec = 0", "heartbeat_ttl_sec must be greater than 0"),
        ("notify_channel_prefix = 'A b'", "notify_channel_prefix"),
        ("[storage]\nurl = 'ftp://x'", "storage has a url that is neither"),
        ("[storage]\nurl = 's3://one'\nbucket = 'two'", "names one bucket in url and another in bucket"),
        ("[node]\nlabels = { a = [1] }", 'node.labels has a label "a"'),
        ("a = ", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_and_the_file(tmp_path: Path, text: str, message: str):
    config = written(tmp_path, text)

    assert message in (refusal := refusal_of(config))
    assert str(config) in refusal or "unknown field" in refusal


def test_all_problems_are_reported_at_once(tmp_path: Path):
    message = refusal_of(written(tmp_path, "log_level = 'loud'\n[database]\npool_size = 0"), ACC_BACKOFF_BASE_SEC="x")

    assert len(message.splitlines()) == 3
    assert "backoff_base_sec must be a number (from environment ACC_BACKOFF_BASE_SEC)" in message


def test_files_that_cannot_be_read_are_named(tmp_path: Path):
    assert "cannot read" in refusal_of(tmp_path / "missing.toml")
    assert "missing" in refusal_of(ACC_DB_URL_FILE=str(tmp_path / "missing"))
    assert "is empty" in refusal_of(ACC_DB_URL_FILE=str(written(tmp_path, "\n", "empty")))


def test_what_no_parser_takes_is_refused_in_words(tmp_path: Path):
    assert "is nested too deeply" in refusal_of(written(tmp_path, "a = " + "[" * 2_000 + "]" * 2_000))
    assert "can't be read" in refusal_of(written(tmp_path, "a = " + "9" * 5_000))
    assert "from 0 to 100000" in refusal_of(ACC_MAX_CONCURRENCY_RENDER="1" * 5_000)
    assert "a port that is not a number" in refusal_of(ACC_DB_URL="postgresql://h:" + "9" * 5_000)
    assert "cannot read" in refusal_of(CREDENTIALS_DIRECTORY="x" * 5_000)


def test_a_table_that_is_a_number_is_refused_although_the_environment_fills_it(tmp_path: Path):
    assert "database must be a table" in refusal_of(written(tmp_path, "database = 3"), ACC_DB_URL="postgresql://h/a")


def test_who_needs_a_database_is_told_how_to_name_one():
    with pytest.raises(ConfigError) as refused:
        _ = load_settings(environ={}).database.required_url

    assert "ACC_DB_URL" in (refused.value.hint or "")


# The database's URL


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("postgresql://u:p@h:5432/d", "postgresql://u:p@h:5432/d"),
        ("postgres://u:p@h/d", "postgresql://u:p@h/d"),
        ("postgresql+psycopg://u:p@h/d", "postgresql://u:p@h/d"),
        ("postgresql+asyncpg://h/d?sslmode=require", "postgresql://h/d?sslmode=require"),
        (" postgresql:///d?host=/run/postgresql\n", "postgresql:///d?host=/run/postgresql"),
        ("postgresql://a:1,b:2/d", "postgresql://a:1,b:2/d"),
        ("postgresql://[::1]:5432/d", "postgresql://[::1]:5432/d"),
    ],
)
def test_every_usual_spelling_of_the_url_is_understood(url: str, normal: str):
    assert normalise(url) == normal


@pytest.mark.parametrize(
    "url",
    [
        f"host=h password={PASSWORD}",
        f"mysql://u:{PASSWORD}@h/d",
        f"postgresql://u:{PASSWORD}#1@h/d",
        f"postgresql://u:{PASSWORD}@h:port/d",
        f"postgresql://u:{PASSWORD}@h:99999/d",
        f"postgresql://u:{PASSWORD}@h/d e",
        f"postgresql://u:{PASSWORD}@[::1/d",
        f"postgresql://u:x/{PASSWORD}@h/d",
        "postgresql://",
    ],
)
def test_a_wrong_url_gives_one_clear_line_without_the_password(url: str):
    message = refusal_of(ACC_DB_URL=url)

    assert message.startswith("database.url ")
    assert len(message.splitlines()) == 1
    assert "expected postgresql://user:password@host:5432/name" in message
    assert PASSWORD not in message


# Secrets


def secret_settings() -> Settings:
    return load_settings(
        environ={
            "ACC_DB_URL": f"postgresql://u:{PASSWORD}%21@h/d",
            "ACC_DB_LISTEN_URL": f"postgresql://h/d?password={PASSWORD}2",
            "ACC_MINIO_ACCESS_KEY": PASSWORD,
            "ACC_MINIO_SECRET_KEY": PASSWORD,
        }
    )


def test_secrets_appear_in_no_representation_of_the_settings():
    settings = secret_settings()

    for said in (repr(settings), str(settings), repr(settings.origins), repr(settings.model_dump())):
        assert PASSWORD not in said
    assert PASSWORD not in settings.model_dump_json()
    assert settings.database.address == "postgresql://u@h/d"


def test_every_secret_is_handed_to_the_redaction_in_each_of_its_forms():
    assert {PASSWORD, f"{PASSWORD}!", f"{PASSWORD}%21", f"{PASSWORD}2"} <= set(secret_settings().secret_texts())


@pytest.mark.parametrize(
    "text",
    [
        f"database = 'postgresql://u:{PASSWORD}@h/d'",
        f"[database]\npool_size = '{PASSWORD}'",
        f"[database]\npassword = '{PASSWORD}'",
        f"[storage]\nsecret_key = ['{PASSWORD}']",
        f"[storage]\nurl = 'ftp://{PASSWORD}'",
    ],
)
def test_a_secret_in_the_wrong_place_is_not_quoted_even_by_the_traceback(tmp_path: Path, text: str):
    with pytest.raises(ConfigError) as refused:
        load_settings(written(tmp_path, text), environ={})

    assert PASSWORD not in "".join(traceback.format_exception(refused.value))


# The example


def test_the_example_is_loadable_and_shows_the_defaults():
    example = load_settings(EXAMPLE, environ={})
    defaults = load_settings(environ={})

    assert example.model_dump(exclude={"services"}) == defaults.model_dump(exclude={"services"})
    assert example.services["renderer"] == type(example.services["renderer"])()


def test_the_example_shows_every_setting_and_every_variable():
    text = EXAMPLE.read_text()
    settings = load_settings(EXAMPLE, environ={})
    leaves = {path.rpartition(".")[2] for path in settings.paths()}

    shown = ("\n{} = ", "\n#{} = ", "\n#{}.")  # a door has settings, and none while it is shut
    assert [leaf for leaf in leaves if not any(form.format(leaf) in text for form in shown)] == []
    assert [variable for variable in VARIABLES if variable not in text] == []


def test_the_example_with_every_line_switched_on_is_loadable(tmp_path: Path):
    lines = [line.removeprefix("#") if line[:1] == "#" and line[1:2].isalpha() else line
             for line in EXAMPLE.read_text().splitlines()]  # fmt: skip
    text = "\n".join(line for line in lines if not line.startswith("bucket"))
    document: dict[str, Any] = tomllib.loads(text)
    document["storage"].pop("secret_key")  # empty in the example, as it must be

    assert Settings.model_validate(document).services["renderer"].idle_stop == timedelta(minutes=10)


def test_a_url_is_shown_without_its_password_and_psql_takes_it():
    by_socket = "postgresql://accsd@/postgres?host=/run/accsd&port=5433"
    assert shown(by_socket + "&password=secret&application_name=x") == by_socket
    assert shown("postgresql://ana:secret@db.example:5432/work") == "postgresql://ana@db.example:5432/work"
