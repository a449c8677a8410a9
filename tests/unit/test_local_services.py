"""Which services a node serves, by its labels."""

from pathlib import Path
from typing import cast

import pytest

from accsd.agent.services import SettingsSource
from accsd.db import Database
from tests.support.attempts import node_of
from tests.support.factory import NODE


async def served(labels: str, requires: str) -> list[str]:
    service = {"runner": "process", "command": ["true"], "requires": requires}
    node = node_of(cast("Database", None), node={"name": NODE, "labels": labels}, services={"render": service})
    return list(await SettingsSource(node, Path("/")).services())


@pytest.mark.parametrize(
    ("labels", "requires"),
    [("gpu=true", ""), ("gpu=true,zone=eu", "gpu=true"), ("cores=16", "cores=16"), ("cores=16", "cores=16.0")],
)
async def test_a_service_is_served_where_the_node_has_the_labels_that_it_requires(labels: str, requires: str):
    assert await served(labels, requires) == ["render"]


@pytest.mark.parametrize(
    ("labels", "requires"),
    [("", "gpu=true"), ("zone=eu", "zone=us"), ("gpu=1", "gpu=true"), ("gpu=true", "gpu=1"), ("gpu=0", "gpu=false")],
)
async def test_a_service_is_not_served_where_a_label_is_missing_or_differs_and_true_is_not_1(
    labels: str, requires: str
):
    """The same rule as SQL's `<@`, by which tasks are claimed: or the node would offer what it may never claim."""
    assert await served(labels, requires) == []
