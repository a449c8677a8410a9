"""A gateway with the door for SeqPulse's clients, over real HTTP, on one PostgreSQL, and an application to watch."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from accsd.db.workflows import apply_workflows
from accsd.gateway.seqpulse.workflows import WORKFLOWS
from tests.support.applications import WELL, Application, application
from tests.support.cluster import server as server
from tests.support.deployments import SECRET, Shop, settings_of
from tests.support.gateway import serving


@pytest.fixture(scope="session")
def _shared_application() -> Iterator[Application]:
    with application(secret=SECRET) as made:
        yield made


@pytest.fixture
def app(_shared_application: Application) -> Application:
    """Well, and with figures that do not depend on how busy this machine is."""
    made = _shared_application
    made.asked.clear()
    made.said.clear()
    made.is_well()
    made.metrics = dict(WELL)
    return made


@pytest.fixture
async def shop(db_url: str, tmp_path: Path, app: Application) -> AsyncIterator[Shop]:
    """The gateway alone: nobody does what it schedules."""
    async with serving(db_url, gateway={"seqpulse": settings_of(app)}, node={"state_dir": tmp_path}) as gateway:
        await apply_workflows(gateway.context.verbs, WORKFLOWS)  # as the services do when they begin
        yield Shop(gateway, app)


@pytest.fixture
async def busy_shop(db_url: str, tmp_path: Path, app: Application) -> AsyncIterator[Shop]:
    """With the two services that work. They look often: nobody notifies them of a clock that a test sets."""
    async with serving(
        db_url, works=True, gateway={"seqpulse": settings_of(app)}, node={"state_dir": tmp_path}, poll_sec=0.5
    ) as gateway:
        yield Shop(gateway, app)
