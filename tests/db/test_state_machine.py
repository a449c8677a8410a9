"""All verbs at random, on the database and on the model (tests/support/machine.py). docs/testing.md says how to run it longer."""

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.cluster import TestServer
from tests.support.machine import machine_on, world_on

EXAMPLES = int(os.environ.get("ACC_TEST_EXAMPLES", "80"))

SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    derandomize="ACC_TEST_EXAMPLES" not in os.environ,
    database=None,
    deadline=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


def test_random_calls_do_what_the_model_says_and_leave_a_history_without_a_flaw(server: TestServer) -> None:
    with world_on(server) as world:
        run_state_machine_as_test(machine_on(world), settings=SETTINGS)
