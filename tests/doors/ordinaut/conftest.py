"""A gateway with the door for Ordinaut's clients, over real HTTP, on one PostgreSQL."""

from collections.abc import AsyncIterator

import pytest

from accsd.db import Database
from tests.doors.ordinaut.client import Client
from tests.support.cluster import server as server
from tests.support.gateway import Gateway, serving


@pytest.fixture
async def gateway(db_url: str) -> AsyncIterator[Gateway]:
    async with serving(db_url, gateway={"ordinaut": {}}) as running:
        yield running


@pytest.fixture
async def client(gateway: Gateway) -> Client:
    """Who may operate."""
    return Client(gateway, await gateway.token("operate"))


@pytest.fixture
def db(gateway: Gateway) -> Database:
    return gateway.context.verbs
