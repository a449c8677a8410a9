"""All verbs at random, on the database and on the model. docs/testing.md says how to run it longer."""

import os

import pytest

from tests.support.cluster import TestServer
from tests.support.machine import drive
from tests.support.world import world_on

LONGER = os.environ.get("ACC_TEST_EXAMPLES")


@pytest.mark.timeout(0 if LONGER else 300)
def test_random_calls_do_what_the_model_says_and_leave_a_history_without_a_flaw(server: TestServer) -> None:
    with world_on(server) as world:
        drive(world, int(LONGER or 80), always_the_same=LONGER is None)
