"""Fixtures for every test: a server of each PostgreSQL version, a database of its own, connections to it.

server    a PostgreSQL with the schema's template; a test that uses it (or what follows) runs once per version: on the
          second one in each run if it is marked `every_postgresql`, else in `make soak`
db_url    a database of the test's own, dropped afterwards; a connection left open to it fails the test
conn      one connection, with jsonb as Python values
connect   a factory for more of them: `other = await connect()`
race      sessions whose interleaving the test chooses
cable     a TCP proxy to the server, which the test may cut; `by_cable` is the database's URL through it
bouncer_url   the database by way of pgbouncer
own_folder    for a server of the test's own, which it may kill
"""

import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, settings

from accsd import embedded
from tests.support.apart import live_apart
from tests.support.cable import Cable
from tests.support.cluster import SERVER_NAMES, Clusters, Connection, TestServer, Unavailable, open_connection
from tests.support.library import name_in, tcp_url
from tests.support.own_server import PGBOUNCER, bouncing
from tests.support.race import Race

Connect = Callable[..., Awaitable[Connection]]
T = TypeVar("T")
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def pytest_configure(config: pytest.Config) -> None:
    # A busy machine is slow at drawing examples, too: that says nothing about the code.
    settings.register_profile("accsd", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("accsd")
    config.add_cleanup(live_apart())


def pytest_itemcollected(item: pytest.Item) -> None:
    """What is the same SQL on each version runs on the second one in `make soak` only."""
    callspec: Any = getattr(item, "callspec", None)
    if callspec is None or callspec.params.get("server") not in SERVER_NAMES[1:]:
        return
    if item.get_closest_marker("every_postgresql") is None:
        item.add_marker(pytest.mark.soak)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several workers: the longest group that one of them runs as a whole comes first, then the other groups and
    what is slow, so that nobody works alone in the end; and daemons, which mostly wait, come between tests that
    compute, so that no core is idle."""
    if not hasattr(config, "workerinput"):
        return
    groups = Counter(name for item in items if (name := group_of(item)))
    if config.getvalue("loadgroup") and not all("@" in item.nodeid for item in items if group_of(item)):
        raise pytest.UsageError("pytest-xdist does not know its groups: it wants another version of pytest")
    longest = [name for name, _ in groups.most_common(1)]
    first = [item for item in items if group_of(item) in longest]
    rest = [item for item in items if group_of(item) not in longest]
    rest.sort(key=lambda item: (group_of(item) is None, item.get_closest_marker("slow") is None))
    waiting = [item for item in rest if item.path.parent.name in ("acceptance", "chaos")]
    computing = [item for item in rest if item.path.parent.name not in ("acceptance", "chaos")]
    items[:] = first + evenly(waiting, computing)


def group_of(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("xdist_group")
    return marker.args[0] if marker else None


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    started = Clusters()
    yield started
    started.close()


@pytest.fixture(scope="session", params=SERVER_NAMES)
def server(request: pytest.FixtureRequest, clusters: Clusters) -> TestServer:
    try:
        return clusters.get(request.param)
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
async def db_url(server: TestServer) -> AsyncIterator[str]:
    async with server.cloned() as url:
        yield url


@pytest.fixture
async def connect(db_url: str) -> AsyncIterator[Connect]:
    opened: list[Connection] = []

    async def open_another(**options: Any) -> Connection:
        opened.append(await open_connection(db_url, **options))
        return opened[-1]

    yield open_another
    for connection in opened:
        # A test may have cut the connection, or left a statement running that waits for a lock.
        connection.terminate()


@pytest.fixture
async def conn(connect: Connect) -> Connection:
    return await connect()


@pytest.fixture
async def race(connect: Connect) -> AsyncIterator[Race]:
    started = Race(connect, await connect())
    yield started
    await started.end()


@pytest.fixture
async def cable(server: TestServer, db_url: str) -> AsyncIterator[Cable]:
    parts = urlsplit(tcp_url(server, db_url))
    assert parts.hostname is not None
    async with Cable.to(parts.hostname, parts.port or 5432) as laid:
        yield laid


@pytest.fixture
def by_cable(server: TestServer, db_url: str, cable: Cable) -> str:
    return cable.through(tcp_url(server, db_url))


@pytest.fixture
async def bouncer_url(server: TestServer, db_url: str) -> AsyncIterator[str]:
    if PGBOUNCER is None:
        pytest.skip("no pgbouncer (apt-get install pgbouncer)")
    if server.launched is None:
        pytest.skip("pgbouncer stands in front of servers of our own only")
    async with bouncing(server.launched, name_in(db_url)) as url:
        yield url


@pytest.fixture
def own_folder(server: TestServer) -> Iterator[Path]:
    """For a server of the test's own, which it may kill."""
    if server.launched is None:
        pytest.skip("the server of ACC_TEST_DB_URL is not ours to restart")
    parent = Path(tempfile.mkdtemp(prefix="accsd-test-"))
    parent.chmod(0o711)  # as root the server runs as somebody else, who must get through
    yield parent / "own"
    embedded.destroy(parent / "own")
    parent.rmdir()


def evenly(some: Sequence[T], others: Sequence[T]) -> list[T]:
    """All of them, each list in its own order."""
    placed = [(n / len(list_), of, thing) for of, list_ in enumerate((some, others)) for n, thing in enumerate(list_)]
    return [thing for _, _, thing in sorted(placed, key=lambda place: place[:2])]


STRICT = os.environ.get("ACC_TEST_STRICT") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    return _skips_are_failures(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    return _skips_are_failures(report)


def _skips_are_failures(report: Report) -> Report:
    """With ACC_TEST_STRICT=1 every part must be there: a skip hides a hole. (An xfail does not.)"""
    if STRICT and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"ACC_TEST_STRICT is set, and this was to be skipped: {reason}"
    return report
