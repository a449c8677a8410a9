"""`accsd db` as a real process: what it says, where, and with which exit code."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import SERVER_NAMES, Clusters, TestServer, open_connection
from tests.support.library import empty_database, url_as

pytestmark = pytest.mark.every_postgresql

ACCSD = Path(sys.executable).with_name("accsd")


def accsd(*arguments: str, url: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    given = environment if url is None else {"ACC_DB_URL": url, **environment}
    return subprocess.run(
        [ACCSD, *arguments], env={**os.environ, **given}, capture_output=True, text=True, timeout=60, check=False
    )


def says(run: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """It ended with this code, and an error is a sentence on stderr: never a traceback."""
    said = run.stdout if code == 0 else run.stderr
    assert run.returncode == code, run
    assert "Traceback" not in run.stderr
    for word in words:
        assert word in said, run


@pytest.fixture
def one_server(clusters: Clusters) -> TestServer:
    """Any version will do: a process takes half a second."""
    return clusters.get(SERVER_NAMES[0])


@pytest.fixture
async def empty_url(one_server: TestServer) -> AsyncIterator[str]:
    async with empty_database(one_server) as url:
        yield url


# With a database


async def test_install_and_status_of_an_empty_database(server: TestServer):
    async with empty_database(server) as url:
        missing = accsd("db", "status", url=url)
        assert missing.returncode == 1
        assert "not installed: run `accsd db install`" in missing.stdout
        says(accsd("db", "install", url=url), 0, "schema version 1 installed")
        says(accsd("db", "install", url=url), 0, "schema version 1 was there already")
        says(accsd("db", "status", url=url), 0, "version 1", "channel prefix    accs_", "literal indexes   no")


async def test_install_brings_the_settings_and_what_is_asked_for(
    one_server: TestServer, empty_url: str, tmp_path: Path
):
    as_reader = url_as(one_server, empty_url, "accs_reader")
    config = tmp_path / "accsd.toml"
    config.write_text(f'notify_channel_prefix = "studio_"\n[database]\nurl = "{empty_url}"\n')
    install = ("--config", str(config), "db", "install", "--roles", "--literal-indexes")
    says(accsd(*install), 0, "_agent", "give them passwords")
    told = accsd("db", "status", "-o", "json", url=as_reader)
    assert json.loads(told.stdout) == {
        "found": 1,
        "expected": 1,
        "channel_prefix": "studio_",
        "event_partitions": 5,
        "literal_indexes": True,
        "is_current": True,
    }


async def test_upgrade_has_nothing_to_do_or_nothing_to_begin_with(one_server: TestServer, empty_url: str):
    says(accsd("db", "upgrade", url=empty_url), 1, "holds no accsd schema", "→ run `accsd db install`")
    async with one_server.cloned() as url:
        for plan in ((), ("--plan",)):
            says(accsd("db", "upgrade", *plan, url=url), 0, "nothing to do, schema version 1")


async def test_a_newer_schema_is_refused_with_what_to_do(one_server: TestServer):
    async with one_server.cloned() as url:
        future = await open_connection(url)
        await future.execute("INSERT INTO accs.schema_versions (version) VALUES (99)")
        await future.close()
        newer = ("schema version 99, newer than 1 of this accsd", "→ upgrade accsd on this machine")
        says(accsd("db", "install", url=url), 1, *newer)
        says(accsd("db", "upgrade", "--plan", url=url), 1, *newer)
        status = accsd("db", "status", "-o", "json", url=url)
        assert (status.returncode, json.loads(status.stdout)["is_current"]) == (1, False)


async def test_a_database_of_somebody_else_is_refused_without_a_traceback(empty_url: str):
    other = await open_connection(empty_url)
    await other.execute("CREATE TABLE workflows ()")
    await other.close()
    says(accsd("db", "install", url=empty_url), 2, '"workflows" already exists', "→ accsd needs a database of its own")


async def test_a_psycopg_url_and_a_secret_file_name_a_database_too(one_server: TestServer, tmp_path: Path):
    async with one_server.cloned() as url:
        secret = tmp_path / "url"
        secret.write_text(url.replace("postgresql://", "postgresql+psycopg://") + "\n")
        says(accsd("db", "status", ACC_DB_URL_FILE=str(secret)), 0, "version 1")


async def test_a_wrong_password_or_name_is_an_error_of_usage(one_server: TestServer):
    if one_server.launched is None:
        pytest.skip("the server of ACC_TEST_DB_URL may trust everybody")
    wrong = one_server.launched.tcp_url.replace(one_server.launched.password, "not-the-password")
    run = accsd("db", "status", url=wrong)
    says(run, 2, "refuses this user", "→ correct the user or password in ACC_DB_URL")
    assert "not-the-password" not in run.stderr
    says(accsd("db", "status", url=one_server.url_of("nowhere")), 2, 'database "nowhere" does not exist', "→ create it")


# Without one


def test_no_database_configured_is_an_error_of_usage():
    says(accsd("db", "status"), 2, "no database is configured", "→ set ACC_DB_URL=postgresql://")


@pytest.mark.parametrize(("url", "word"), [("mysql://a@b/c", "postgresql://"), ("postgresql://a@b:99999/c", "port")])
def test_a_url_that_is_none_is_an_error_of_usage_that_does_not_repeat_it(url: str, word: str):
    run = accsd("db", "status", url=url)
    says(run, 2, "database.url", word, "ACC_DB_URL")
    assert url not in run.stderr


def test_a_server_that_is_away_is_an_error_of_its_own():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"postgresql://ann@127.0.0.1:{nobody.getsockname()[1]}/x"
        run = accsd("db", "install", url=address.replace("ann", "ann:secret"))
    says(run, 4, f"{address} can't be reached", "→ start PostgreSQL, or correct ACC_DB_URL")
    assert "secret" not in run.stderr


def test_a_server_that_does_not_answer_is_a_timeout(tmp_path: Path):
    config = tmp_path / "accsd.toml"
    config.write_text("[database]\nconnect_timeout_sec = 0.3\n")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        run = accsd(
            "--config", str(config), "db", "status", url=f"postgresql://a@127.0.0.1:{silent.getsockname()[1]}/x"
        )
    says(run, 5, "did not answer in time")


def test_a_misspelt_setting_is_refused_with_a_suggestion(tmp_path: Path):
    config = tmp_path / "accsd.toml"
    config.write_text('[database]\nulr = "postgresql://a@b/c"\n')
    says(accsd("--config", str(config), "db", "status"), 2, 'unknown field "ulr" (did you mean "url"?)', str(config))
    says(accsd("db", "status", ACC_DB_ULR="x"), 2, "ACC_DB_ULR", "ACC_DB_URL")


def test_usage_errors_name_the_option():
    says(accsd("db", "status", "-o", "xml"), 2, "-o")
    says(accsd("--config", "/nowhere.toml", "db", "status"), 2, "does not exist")


def test_help_loads_no_database_driver_and_no_settings():
    program = (
        "import sys\n"
        "from accsd.cli import main\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "except SystemExit as ended:\n"
        "    heavy = {'asyncpg', 'pydantic', 'orjson', 'structlog', 'accsd.db', 'accsd.settings'} & set(sys.modules)\n"
        "    sys.exit(ended.code or ', '.join(sorted(heavy)) or 0)\n"
    )
    for argument in ("--help", "--version"):
        run = subprocess.run([sys.executable, "-c", program, argument], capture_output=True, text=True, check=False)
        says(run, 0)
    assert "Install, look at and upgrade the schema" in accsd("--help").stdout
