"""A gateway with the joblib door, over real HTTP and sockets, on one PostgreSQL; users with their tokens."""

from collections.abc import AsyncIterator

import pytest

from tests.support.cluster import server as server
from tests.support.gateway import serving
from tests.support.joblib import User, Users


@pytest.fixture
async def users(db_url: str) -> AsyncIterator[Users]:
    async with serving(db_url, works=True, hears=True, gateway={"joblib": {}}) as gateway:
        yield Users(gateway)


@pytest.fixture
async def ada(users: Users) -> User:
    return await users.user("ada")


@pytest.fixture
async def bob(users: Users) -> User:
    return await users.user("bob")


@pytest.fixture
async def root(users: Users) -> User:
    return await users.user("root", scope="admin")
