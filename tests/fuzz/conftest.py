"""Hostile input at every door, against one PostgreSQL."""

from tests.support.cluster import server as server
