"""A node with a compose file, for modules of tests that need Docker: they import both fixtures."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.compose import why_not
from tests.support.compose_node import ComposeNode


@pytest.fixture(scope="module", autouse=True)
def docker_is_here() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ComposeNode]:
    made = ComposeNode(tmp_path)
    yield made
    made.close()
