"""The description of the API: committed, so that a change of the contract is seen, and true."""

from pathlib import Path

import orjson

from accsd.gateway.app import openapi
from accsd.gateway.problems import KINDS
from tests.support.gateway import Gateway

COMMITTED = Path(__file__).parents[2] / "docs/reference/openapi.json"


def test_the_committed_description_is_that_of_the_routes():
    """`make reference` writes it."""
    assert orjson.loads(COMMITTED.read_bytes()) == orjson.loads(orjson.dumps(openapi()))


def test_each_operation_has_one_id_a_summary_a_scope_and_its_problems():
    operations = [each for methods in openapi()["paths"].values() for each in methods.values()]
    ids = [each["operationId"] for each in operations]
    assert len(set(ids)) == len(ids)
    for each in operations:
        assert each["summary"], each["operationId"]
        assert each["x-scope"] in ("none", "read", "submit", "operate", "admin"), each["operationId"]
        assert {"4XX", "5XX"} <= each["responses"].keys(), each["operationId"]


async def test_each_problem_has_a_page(gateway: Gateway):
    for code, kind in KINDS.items():
        page = await gateway.client.get(f"/problems/{code}")
        assert (page.json()["status"], page.json()["what_to_do"]) == (kind.status, kind.page)
