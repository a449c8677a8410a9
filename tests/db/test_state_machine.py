"""All verbs at random, on the database and on the model. docs/testing.md says how to run it longer."""

import os

import pytest

from tests.support.cluster import SERVER_NAMES, TestServer
from tests.support.machine import drive
from tests.support.world import world_on

pytestmark = pytest.mark.every_postgresql

LONGER = os.environ.get("ACC_TEST_EXAMPLES")
# A planted bug is found within a dozen (test_planted_bugs.py). The rules are the same on every version: fewer examples
# show that the SQL of the second one follows them.
EXAMPLES, FEWER = 50, 15


@pytest.mark.timeout(0 if LONGER else 300)
def test_random_calls_do_what_the_model_says_and_leave_a_history_without_a_flaw(server: TestServer) -> None:
    examples = EXAMPLES if server.name == SERVER_NAMES[0] else FEWER
    with world_on(server) as world:
        drive(world, int(LONGER or examples), always_the_same=LONGER is None)
