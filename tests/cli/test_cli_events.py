"""`accsd emit` and `accsd events`: what was emitted, what it caused, and giving it to a schedule again."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.factory import workflow
from tests.support.topics import settle_plain, subscription


@pytest.fixture
async def cli(db_url: str, conn: Connection, tmp_path: Path) -> Cli:
    await workflow(conn, name="pack")
    await subscription(conn, "shop.*", name="packing", workflow="pack")
    return Cli(db_url, tmp_path)


async def test_an_event_is_emitted_and_the_list_says_what_it_caused(cli: Cli, conn: Connection):
    """EV1, EV14."""
    said = (await cli("emit", "shop.order", "--payload", '{"n": 3}')).ends(0, "1 schedule listens")
    number = said.out.strip()
    (await cli("events")).ends(0, number, "shop.order", '{"n":3}', "packing: waiting")
    await settle_plain(conn)
    job = str(await conn.fetchval("SELECT id FROM jobs"))
    (await cli("events", "--topic", "shop.**")).ends(0, f"packing: fired (event) job {job[-8:]}")
    [event] = (await cli("events", "-o", "json")).json
    assert (event["id"], event["payload"], event["caused"][0]["job_id"]) == (int(number), {"n": 3}, job)
    assert "@" in event["source"]
    assert (await cli("events", "-o", "name")).out == f"{number}\n"
    (await cli("events", "--topic", "shop")).ends(0, "there is no event")


async def test_a_payload_comes_from_stdin_and_a_key_counts_once(cli: Cli):
    """EV7."""
    first = (await cli("emit", "shop.order", "--payload", "-", "--key", "k", "-o", "json", stdin='{"n": 1}')).json
    assert (first["answer"], first["matched"]) == ("accepted", 1)
    again = (await cli("emit", "shop.order", "--key", "k")).ends(0, "this key was emitted before")
    assert int(again.out) == first["event_id"]
    (await cli("emit", "nobody.listens")).ends(0, "no schedule listens to its topic")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["shop..order"], "can't have the topic"),
        (["accs.job.done"], "accsd's own"),
        (["a", "--payload", "[1]"], "must be a JSON object"),
        (["a", "--payload", "{"], "is not JSON"),
        (["a", "--key", "k", "--window", "soon"], "--window"),
    ],
)
async def test_what_is_no_event_is_refused_with_words(cli: Cli, arguments: list[str], said: str):
    """EV2."""
    answered = await cli("emit", *arguments)
    assert answered.code in (1, 2)
    answered.ends(answered.code, said)


async def test_an_event_is_given_to_a_schedule_again(cli: Cli, conn: Connection):
    """EV14."""
    number = (await cli("emit", "shop.order")).out.strip()
    await settle_plain(conn)
    (await cli("events", "replay", number, "--to", "packing")).ends(0, f"event {number} is given to packing")
    (await cli("events", "replay", number, "--to", "packing")).ends(0, "waits in packing already")
    await settle_plain(conn)
    (await cli("events")).ends(0, "packing: fired (event)", "packing: fired (backfill)")
    (await cli("events", "replay", "99999", "--to", "packing")).ends(1, "there is no such event")
    (await cli("events", "replay", number, "--to", "nobody")).ends(3, "there is no schedule")


async def test_those_that_come_are_followed(cli: Cli):
    """EV14."""
    (await cli("emit", "shop.order", "--payload", '{"n": 1}')).ends(0)
    following = cli.spawn("events", "--follow", "--topic", "shop.*", "-o", "jsonl")
    try:
        assert following.stdout is not None
        assert '"n":1' in await asyncio.to_thread(following.stdout.readline)
        (await cli("emit", "other")).ends(0)
        (await cli("emit", "shop.order", "--payload", '{"n": 2}')).ends(0)
        assert '"n":2' in await asyncio.to_thread(following.stdout.readline)
    finally:
        following.send_signal(signal.SIGINT)
        following.communicate()
    assert following.returncode == 130
