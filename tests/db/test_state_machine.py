"""All verbs at random, on the database and on the model. docs/testing.md says how to run it longer."""

import os

import pytest

from tests.support.cluster import SERVER_NAMES, TestServer
from tests.support.machine import drive
from tests.support.world import world_on

LONGER = os.environ.get("ACC_TEST_EXAMPLES")
# The rules are the same on every version: on the second one a quarter of the examples shows that its SQL follows them.
EXAMPLES, FEWER = 80, 20


@pytest.mark.timeout(0 if LONGER else 300)
def test_random_calls_do_what_the_model_says_and_leave_a_history_without_a_flaw(server: TestServer) -> None:
    examples = EXAMPLES if server.name == SERVER_NAMES[0] else FEWER
    with world_on(server) as world:
        drive(world, int(LONGER or examples), always_the_same=LONGER is None)
