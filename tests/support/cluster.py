"""PostgreSQL servers for the tests, started when first needed, and databases cloned from a template on each.

Every pytest process (also every xdist worker) has servers of its own; they go when it goes, even by SIGKILL.
"""

import asyncio
import os
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest

from accsd import embedded
from accsd.db.pool import speak_json
from accsd.errors import AccsdError
from tests.support.eventually import eventually

ROOT = Path(__file__).parents[2]
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
OTHER_SERVER = os.environ.get("ACC_TEST_DB_URL")
SERVER_NAMES = ["other"] if OTHER_SERVER else ["pg18", "pg15"]

# Only durability against a power cut is given up; everything that changes behaviour stays at its default. (Databases
# here are small and new: PostgreSQL 15 would compile the checker's query for longer than it runs.)
SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_connections": "200", "jit": "off"}

T = TypeVar("T")
Connection = asyncpg.Connection
_FIRST_OWN_OID = 16384  # types below it come with PostgreSQL


class Unavailable(Exception):
    """This machine has no such server; the reason is the message."""


@dataclass(frozen=True, slots=True)
class TestServer:
    """One PostgreSQL with the template installed. `url_of` names a database on it."""

    __test__ = False

    name: str
    version: int
    template: str
    url_of: Callable[[str], str]
    launched: embedded.Server | None = None

    @asynccontextmanager
    async def cloned(self) -> AsyncGenerator[str]:
        """The URL of a fresh copy of the template. It must have no connection left at the end."""
        database = f"t_{uuid4().hex[:16]}"
        admin = await asyncpg.connect(self.url_of("postgres"))
        try:
            await admin.execute(f"CREATE DATABASE {database} TEMPLATE {self.template} {self._strategy}")
            try:
                yield self.url_of(database)
                await assert_no_connection_left(admin, database)
            finally:
                await admin.execute(f"DROP DATABASE {database} WITH (FORCE)")
        finally:
            await admin.close()

    @property
    def _strategy(self) -> str:
        # Copying files beats writing the template through the WAL: 20 ms instead of 60.
        return "STRATEGY FILE_COPY" if self.version >= 150000 else ""


class Clusters:
    """The servers of this run by name: `pg18` (embedded), `pg15` (Debian's), or `other` (ACC_TEST_DB_URL)."""

    def __init__(self) -> None:
        self._servers: dict[str, TestServer | Exception] = {}
        self._resources = ExitStack()

    def get(self, name: str) -> TestServer:
        """Started at the first call. A start that failed is not tried again for every test."""
        if name not in self._servers:
            try:
                self._servers[name] = self._start(name)
            except (Unavailable, OSError, AccsdError, asyncpg.PostgresError) as error:
                self._servers[name] = error
        known = self._servers[name]
        if isinstance(known, Exception):
            raise known
        return known

    def close(self) -> None:
        self._resources.close()

    def _start(self, name: str) -> TestServer:
        if name == "other":
            assert OTHER_SERVER is not None
            return self._prepare(name, database_on(OTHER_SERVER), None)
        server = self._start_embedded(name, bindir_of(name))
        return self._prepare(name, server.url_of, server)

    def _start_embedded(self, name: str, bindir: Path | None) -> embedded.Server:
        parent = Path(tempfile.mkdtemp(prefix="accsd-test-"))
        parent.chmod(0o711)  # as root the server runs as somebody else, who must get through
        self._resources.callback(parent.rmdir)
        self._resources.callback(embedded.destroy, parent / name)
        return self._resources.enter_context(embedded.running(parent / name, bindir=bindir, settings=SETTINGS))

    def _prepare(self, name: str, url_of: Callable[[str], str], server: embedded.Server | None) -> TestServer:
        template = f"accsd_template_{uuid4().hex[:12]}"
        version = run_in_thread(make_template(url_of, template))
        self._resources.callback(lambda: run_in_thread(drop_template(url_of, template)))
        return TestServer(name, version, template, url_of, server)


def bindir_of(name: str) -> Path | None:
    """The binaries of a named server; None stands for the embedded ones."""
    if name == "pg18":
        return None
    if not (DEBIAN_15 / "postgres").exists():
        raise Unavailable(f"no PostgreSQL 15 in {DEBIAN_15} (apt-get install postgresql-15)")
    return DEBIAN_15


def database_on(url: str) -> Callable[[str], str]:
    parts = urlsplit(url)
    return lambda database: urlunsplit(parts._replace(path=f"/{database}"))


async def make_template(url_of: Callable[[str], str], template: str) -> int:
    admin = await asyncpg.connect(url_of("postgres"))
    try:
        await admin.execute(f"CREATE DATABASE {template}")
        await install_schema(url_of(template))
        # Nobody may connect from here on: a connection would make every clone fail.
        await admin.execute(f"ALTER DATABASE {template} WITH ALLOW_CONNECTIONS false")
        return int(await admin.fetchval("SHOW server_version_num"))
    finally:
        await admin.close()


async def drop_template(url_of: Callable[[str], str], template: str) -> None:
    admin = await asyncpg.connect(url_of("postgres"))
    try:
        await admin.execute(f"DROP DATABASE IF EXISTS {template} WITH (FORCE)")
    finally:
        await admin.close()


async def install_schema(url: str) -> None:
    """schema.sql, then what the tests add to it (a clock that can be set)."""
    conn = await asyncpg.connect(url)
    try:
        for path in (ROOT / "schema.sql", ROOT / "tests/support/template.sql"):
            if path.exists() and (text := path.read_text()).strip():
                await execute_script(conn, path.name, text)
    finally:
        await conn.close()


async def execute_script(conn: Connection, name: str, text: str) -> None:
    try:
        await conn.execute(text)
    except asyncpg.PostgresError as error:
        if position := error.as_dict().get("position"):
            error.add_note(f"{name}, line {text.count(chr(10), 0, int(position)) + 1}")
        raise


class _Acquainted(asyncpg.Connection):
    """A connection that need not ask what arrays of uuid, text and the like are: it is the same in every database, and
    the question costs the server 8 ms, a tenth of what it spends on a test."""

    _answers: ClassVar[dict[tuple[int, ...], tuple[Any, Any]]] = {}

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float | None) -> tuple[Any, Any]:  # noqa: ASYNC109 - asyncpg's own
        asked = (self.get_server_version().major, *sorted(typeoids))
        if asked in self._answers:
            return self._answers[asked]
        rows, statement = await super()._introspect_types(typeoids, timeout)  # pyright: ignore[reportAttributeAccessIssue]
        if max(asked) < _FIRST_OWN_OID:
            self._answers[asked] = rows, SimpleNamespace(name="asked before")
        return rows, statement


async def open_connection(url: str, **options: Any) -> Connection:
    conn = await asyncpg.connect(url, connection_class=_Acquainted, **options)
    await speak_json(conn)
    return conn


async def assert_no_connection_left(admin: Connection, database: str) -> None:
    async def left() -> list[Any]:
        return await admin.fetch(
            "SELECT pid, application_name, state, left(query, 80) AS query FROM pg_stat_activity"
            " WHERE datname = $1 AND backend_type = 'client backend'",
            database,
        )

    async def nobody_is_left() -> bool:
        return not await left()

    try:
        await eventually(nobody_is_left, within=2)
    except AssertionError:
        raise AssertionError(f"leaked connections: {[dict(row) for row in await left()]}") from None


def run_in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from a fixture that is not async, apart from whatever event loop the test uses."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(work))
        except BaseException as error:  # noqa: BLE001 - handed to the caller below
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


@pytest.fixture(scope="session", params=["other"] if OTHER_SERVER else ["pg18"])
def server(request: pytest.FixtureRequest, clusters: Clusters) -> TestServer:
    try:
        return clusters.get(request.param)
    except Unavailable as reason:
        pytest.skip(str(reason))


# for a test with SQL of its own kind, in a folder whose `server` is the one above
on_every_server = pytest.mark.parametrize("server", SERVER_NAMES, indirect=True, scope="session")
