"""A short sample of `make chaos`: a dozen seconds of cheap faults, and the whole verdict."""

from pathlib import Path

import pytest

from tests.chaos.faults import DATABASE_AWAY, KINDS
from tests.chaos.run import Order, run

# Those that are over soon; the others take longer than their share of the suite.
CHEAP = (
    "agent killed",
    "agent drained",
    "node suspended",
    "reload of a broken file",
    "builder killed",
    "connections cut",
    "answers lost",
    "submitters cut off",
    "disk full",
    "tasks killed",
    "shims killed",
    "postgres -m immediate",
    "backends terminated",
)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_under_a_sample_of_faults_nothing_is_lost_doubled_stale_or_left_behind(tmp_path: Path):
    """No timed test: how soon a reclaim comes is for `make chaos`, on a machine that does nothing else."""
    assert set(CHEAP) | {DATABASE_AWAY} <= set(KINDS)
    order = Order(
        seed=7,
        seconds=10,
        agents=3,
        containers=False,
        kinds=CHEAP,
        gap=0.8,
        deaths=1,
        restarts=0,
        slack=60,
        submitters=1,
    )
    outcome = await run(order, tmp_path)
    assert outcome.is_sound, f"\n{outcome}"
