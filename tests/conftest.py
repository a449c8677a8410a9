"""Fixtures for every test: a server of each PostgreSQL version, a database of its own, connections to it.

server    a PostgreSQL with the schema's template; a test that uses it (or what follows) runs once per version
db_url    a database of the test's own, dropped afterwards; a connection left open to it fails the test
conn      one connection, with jsonb as Python values
connect   a factory for more of them: `other = await connect()`
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Any, TypeVar

import pytest

from tests.support.apart import live_apart
from tests.support.cluster import SERVER_NAMES, Clusters, Connection, TestServer, Unavailable, open_connection

Connect = Callable[..., Awaitable[Connection]]
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def pytest_configure(config: pytest.Config) -> None:
    config.add_cleanup(live_apart())


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
