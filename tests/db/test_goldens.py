"""Every table, index, trigger, view and function of the schema: what clients in SQL rely on."""

import pytest

from tests.support.cluster import Connection
from tests.support.goldens import catalog, compare

pytestmark = pytest.mark.every_postgresql


async def test_the_schema_is_the_golden_one(conn: Connection):
    compare("schema", (f"{kind}: {line}" for kind, lines in (await catalog(conn)).items() for line in lines))
