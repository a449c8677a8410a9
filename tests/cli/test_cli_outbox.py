"""`accsd outbox`: what waits, what was given up, who is told, and sending again."""

from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from accsd.db.outbox import Breaker, DeliveryOutcome, Settlement, claim_events, register_target, settle_events
from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.factory import done, node, pass_time, step, submit
from tests.support.library import opened

BREAKER = Breaker(1, timedelta(hours=1), timedelta(hours=1))
MINUTE = timedelta(minutes=1)


@pytest.fixture
async def cli(db_url: str, conn: Connection, tmp_path: Path) -> Cli:
    """One event that was given up, one that waits, of the jobs of one target."""
    await node(conn)
    async with opened(db_url) as db:
        await register_target(db, "studio", address="https://studio.example", events=["job.done"], workflows=None)
        for _ in range(2):
            await submit(conn, step("a"))
        await done(conn, 2)
        claim = uuid4()
        [event] = await claim_events(db, "studio", claim, lease=MINUTE, jobs=1, each=1)
        await settle_events(
            db, "studio", claim, [Settlement(event.id, DeliveryOutcome.DEAD, error="answered 410: gone")], BREAKER
        )
    return Cli(db_url, tmp_path)


async def test_the_list_says_what_became_of_each_event(cli: Cli):
    said = (await cli("outbox", "list")).ends(0, "waiting", "dead", "answered 410: gone", "accsd outbox redrive")
    assert said.out.splitlines()[0].split() == [
        "ID",
        "TARGET",
        "EVENT",
        "JOB",
        "STATE",
        "ATTEMPTS",
        "DUE",
        "ERROR",
        "AGE",
    ]
    [dead] = (await cli("outbox", "list", "--state", "dead", "-o", "json")).json
    assert (dead["event"], dead["attempts"], dead["payload"]["version"]) == ("job.done", 1, 1)
    assert len((await cli("outbox", "list", "--job", dead["job_id"], "-o", "jsonl")).json_lines) == 1
    (await cli("outbox", "list", "--target", "nobody")).ends(0, "there is no outgoing event")
    (await cli("outbox", "show", str(dead["id"]))).ends(0, '"event":"job.done"', "answered 410: gone")
    (await cli("outbox", "show", "999")).ends(3, "there is no outgoing event 999")


async def test_the_targets_are_told_with_their_breaker(cli: Cli, conn: Connection):
    (await cli("outbox", "targets")).ends(0, "https://studio.example", "left alone after 1 failures", "answered 410")
    [target] = (await cli("outbox", "targets", "-o", "json")).json
    assert (target["waiting"], target["dead"], target["is_open"]) == (1, 1, True)
    await pass_time(conn, 7200)
    (await cli("outbox", "targets")).ends(0, "no builder for 2h")
    (await cli("outbox", "forget", "studio")).ends(0, "is forgotten")
    (await cli("outbox", "forget", "studio")).ends(3, 'there is no target "studio"')
    (await cli("outbox", "targets")).ends(0, "nobody is told")


async def test_what_was_given_up_is_sent_again_when_somebody_says_so(cli: Cli):
    (await cli("outbox", "redrive")).ends(2, "or say --all")
    (await cli("outbox", "redrive", "999")).ends(3, "there is no outgoing event 999")
    (await cli("outbox", "redrive", "--all", "--target", "studio")).ends(0, "is sent again")
    (await cli("outbox", "redrive", "--all")).ends(0, "nothing was given up")
    [target] = (await cli("outbox", "targets", "-o", "json")).json
    assert (target["waiting"], target["dead"], target["is_open"]) == (2, 0, False)
