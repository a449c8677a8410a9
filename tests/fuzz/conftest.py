"""Hostile input at every door, against one PostgreSQL."""

from tests.support.one_server import server as server
