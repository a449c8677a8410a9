"""Events with real daemons: an evaluator that is killed loses nothing and doubles nothing."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.schedules import jobs_of, ledger
from tests.support.topics import emit, subscription

ROOT = Path(__file__).parents[2]


async def are_settled(conn: Connection, which: object, n: int) -> bool:
    rows = await conn.fetchval("SELECT count(*) FROM firings WHERE schedule_id = $1", which)
    return rows == n and await conn.fetchval("SELECT count(*) FROM accs.inbox") == 0


@pytest.mark.parametrize("point", ["events.evaluated", "events.settled"])
async def test_an_evaluator_is_killed_and_the_next_one_goes_on(
    tmp_path: Path, db_url: str, conn: Connection, point: str
):
    """EV5, EV6; 13: event evaluated, event settled."""
    which = await subscription(conn, "a", filter="event.payload.n % 2 == 0", options={"n": "${event.payload.n}"})
    with daemon.running(
        tmp_path, db_url, role="builder", environ={"ACC_FAILPOINTS": f"{point}:kill"}, ready=False
    ) as broken:
        for n in range(10):
            await emit(conn, "a", {"n": n})
        await eventually(lambda: broken.process.poll() is not None, within=20)
    with (
        daemon.running(tmp_path / "1", db_url, role="builder", node="b1"),
        daemon.running(tmp_path / "2", db_url, role="builder", node="b2"),
    ):
        for n in range(10, 40):
            await emit(conn, "a", {"n": n})
        await eventually(lambda: are_settled(conn, which, 20), within=20)
    assert [job["options"]["n"] for job in await jobs_of(conn, which)] == list(range(0, 40, 2))
    assert len({row["cause_id"] for row in await ledger(conn, which)}) == 20
    assert await conn.fetchval("SELECT filtered FROM accs.event_tallies") == 20
    await check(conn)


async def test_the_commands_of_the_document_are_run(tmp_path: Path, db_url: str, conn: Connection):
    """docs/events.md, from top to bottom."""
    text = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = {**os.environ, "ACC_DB_URL": db_url, "HOME": str(tmp_path), "PATH": path, "NO_COLOR": "1"}
    with daemon.running(tmp_path / "builder", db_url, role="builder"):
        for language, block in re.findall(r"^```(sh|sql)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            if language == "sql":
                await conn.execute(block)
                continue
            done = await asyncio.to_thread(
                subprocess.run, ["bash", "-euc", block], cwd=tmp_path, env=shell, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
        which = await conn.fetchval("SELECT id FROM schedules WHERE name = 'packing'")
        await eventually(lambda: are_settled(conn, which, 3), within=20)
    notes = [job["options"] for job in await jobs_of(conn, which)]
    assert notes == [{"order": n, "note": f"order {n}"} for n in (4711, 4712, 4712)]
    states = await conn.fetch("SELECT name, state, state_reason FROM schedules ORDER BY name")
    assert [tuple(row) for row in states] == [("packing", "active", None), ("ship-packed", "active", None)]
