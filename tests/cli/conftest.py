"""The commands, against one PostgreSQL."""

from tests.support.cluster import server as server
