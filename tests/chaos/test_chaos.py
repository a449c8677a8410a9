"""A short sample of `make chaos` with the whole verdict; and all of it, for `make soak`."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.run import Order, run
from tests.support.cluster import Unavailable

# One of each that is over soon.
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
    """How soon a reclaim comes is not asked here: that is for `make chaos`, on a machine that does nothing else."""
    sample = Order(seed=31, seconds=12, deck=CHEAP, gap=0.9, agents=3, containers=False, submitters=1)
    outcome = await run(replace(sample, deaths=1, restarts=0, slack=60), tmp_path)
    assert outcome.is_sound, f"\n{outcome}"


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("postgres", ["pg18", "pg15"])
async def test_under_five_minutes_of_all_faults(tmp_path: Path, postgres: str):
    try:
        outcome = await run(Order(seed=1, seconds=300, postgres=postgres), tmp_path)
    except Unavailable as reason:
        pytest.skip(str(reason))
    print(outcome)
    assert outcome.is_sound, f"\n{outcome}"
