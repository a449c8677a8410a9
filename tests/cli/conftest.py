"""The commands, against one PostgreSQL."""

from tests.support.one_server import server as server
