"""Roles, attempts, leases and the listener inside one process, against one PostgreSQL."""

from tests.support.cluster import server as server
