"""The description of the joblib door: committed, and true."""

from pathlib import Path

import orjson

from accsd.gateway.joblib.app import openapi

COMMITTED = Path(__file__).parents[3] / "docs/reference/openapi-joblib.json"


def test_the_committed_description_is_that_of_the_routes():
    """`make reference` writes it."""
    assert orjson.loads(COMMITTED.read_bytes()) == orjson.loads(orjson.dumps(openapi()))


def test_each_operation_has_one_id_a_summary_a_scope_and_its_problems():
    operations = [each for methods in openapi()["paths"].values() for each in methods.values()]
    assert len({each["operationId"] for each in operations}) == len(operations) == 22
    for each in operations:
        assert each["summary"], each["operationId"]
        assert set(each["x-scope"].split()) <= {"read", "submit", "agent"}, each["operationId"]
        assert {"422", "4XX", "5XX"} <= each["responses"].keys(), each["operationId"]
