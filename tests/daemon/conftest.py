"""Roles, attempts, leases and the listener inside one process, against one PostgreSQL."""

from tests.support.one_server import server as server
