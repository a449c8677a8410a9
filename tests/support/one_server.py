"""For tests of what stands above SQL: on one PostgreSQL. What differs between versions is tested in tests/db and
tests/races. A conftest imports `server` from here."""

import pytest

from tests.support.cluster import OTHER_SERVER, Clusters, TestServer


@pytest.fixture(scope="session", params=["other"] if OTHER_SERVER else ["pg18"])
def server(request: pytest.FixtureRequest, clusters: Clusters) -> TestServer:
    return clusters.get(request.param)
