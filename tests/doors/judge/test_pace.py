"""Who has to come back later, and when: rates, backpressure, and the form of every 429."""

import asyncio
from pathlib import Path

import httpx
import pytest
from starlette.responses import Response

from accsd.db.submissions import Load, load_of
from accsd.errors import DatabaseBusy, DatabaseUnavailable, TooManyWaiting
from accsd.gateway.judge.pace import Windows, retry_after
from accsd.gateway.judge.refusals import Refusal, told
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import claim, finish, node, start
from tests.support.judging import ACCEPTED, PASSWORD, Door, judged, judging


def is_told_to_come_back(answer: httpx.Response, reason: str, code: str) -> int:
    """OJ-15: after how many seconds."""
    assert answer.status_code == 429, answer.text
    said = answer.json()
    assert (said["error"], said["reason"], said["code"]) == ("backpressure", reason, code)
    assert said["message"]
    seconds = int(answer.headers["retry-after"])
    assert 1 <= seconds <= 60
    return seconds


async def test_a_user_submits_so_often_in_a_minute(db_url: str, tmp_path: Path):
    """OJ-13, OJ-15: a window of a minute for each user, whatever becomes of the submissions."""
    async with judging(db_url, tmp_path / "objects", per_user=5) as door:
        problem = await door.problem()
        answers = [await door.submit(problem, f"// {n}") for n in range(6)]
        assert [each.status_code for each in answers[:5]] == [200] * 5
        is_told_to_come_back(answers[5], "rate_limit", "RATE_LIMITED")
        assert (await door.submit(problem, by="operate")).status_code == 200, "another user"
        assert (await door.ask("GET", "/status/x")).status_code == 404, "to ask is not limited"


async def test_an_address_submits_and_logs_in_so_often_in_a_minute(db_url: str, tmp_path: Path):
    """OJ-13: counted separately for submissions and for logins; whoever has no valid token is counted, too."""
    async with judging(db_url, tmp_path / "objects", per_address=3) as door:
        problem = await door.problem()
        for by in ("submit", "operate", "admin"):
            assert (await door.submit(problem, by=by)).status_code == 200
        is_told_to_come_back(await door.submit(problem, "4"), "rate_limit", "RATE_LIMITED")
        wrong = {"username": "ada", "password": "not this one"}
        for _ in range(3):
            assert (await door.ask("POST", "/api/v1/auth/login", by=None, json=wrong)).status_code == 401
        right = {"username": "ada", "password": PASSWORD}
        refused = await door.ask("POST", "/api/v1/auth/login", by=None, json=right)
        is_told_to_come_back(refused, "rate_limit", "RATE_LIMITED")
        for _ in range(3):
            assert (await door.ask("POST", "/submit", token="accs_nobody")).status_code == 401
        is_told_to_come_back(await door.ask("POST", "/submit", token="accs_nobody"), "rate_limit", "RATE_LIMITED")


def test_a_window_ends_a_minute_after_it_began():
    """OJ-13: a fixed window, and the time that is left of it."""
    now = 100.0
    windows = Windows(clock=lambda: now)
    for _ in range(2):
        windows.take("submit", "ada", 2)
    now = 130.5
    with pytest.raises(Refusal) as refused:
        windows.take("submit", "ada", 2)
    assert refused.value.retry_after == 30
    windows.take("login", "ada", 2)
    windows.take("submit", "bob", 2)
    now = 160.0
    windows.take("submit", "ada", 2)


async def test_when_the_judges_have_enough_before_them_submissions_are_put_off(
    db_url: str, tmp_path: Path, conn: Connection
):
    """OJ-14, OJ-15: what waits and what runs counts; what is done makes room."""
    async with judging(db_url, tmp_path / "objects", inflight=4) as door:
        problem = await door.problem()
        for number in range(4):
            await door.submitted(problem, f"// {number}")
        is_told_to_come_back(await door.submit(problem, "5"), "inflight_cap", "INFLIGHT_CAP_REACHED")
        await node(conn, judge=2)
        running = await claim(conn, 2, "judge")
        await start(conn, *running)
        is_told_to_come_back(await door.submit(problem, "5"), "inflight_cap", "INFLIGHT_CAP_REACHED")
        await finish(conn, *running, results=[ACCEPTED] * 2)
        await eventually(lambda: _is_taken(door, problem))


async def _is_taken(door: Door, problem: int) -> bool:
    return (await door.submit(problem, "room")).status_code == 200


async def test_a_burst_does_not_slip_past_the_limit_and_nothing_that_was_taken_is_lost(
    db_url: str, tmp_path: Path, conn: Connection
):
    """OJ-14: 60 at once, 20 of which fit."""
    async with judging(db_url, tmp_path / "objects", inflight=20) as door:
        problem = await door.problem()
        answers = await asyncio.gather(*(door.submit(problem, f"// {number}") for number in range(60)))
        taken = [each.json()["job_id"] for each in answers if each.status_code == 200]
        assert len(taken) == len(set(taken)) == 20
        for refused in (each for each in answers if each.status_code != 200):
            is_told_to_come_back(refused, "inflight_cap", "INFLIGHT_CAP_REACHED")
        there = await conn.fetch("SELECT job_id::text FROM submissions")
        assert {row["job_id"] for row in there} == set(taken)
        await judged(conn, 20)
        assert {(await door.status(job))["status"] for job in taken} == {"Finished"}


def test_when_to_come_back_is_worked_out_from_how_fast_the_judges_are():
    """OJ-15: what waits, times how long one takes, by how many are judged at once; 1 to 60 s."""
    assert retry_after(Load(waiting=100, live=4, slots=4, run_seconds=0.5)) == 13
    assert retry_after(Load(waiting=0, live=500, slots=500, run_seconds=9.0)) == 1
    assert retry_after(Load(waiting=500, live=0, slots=1, run_seconds=30.0)) == 60
    assert retry_after(Load(waiting=500, live=0, slots=0, run_seconds=1.0)) == 60, "everybody sleeps"
    assert retry_after(Load(waiting=20, live=2, slots=2, run_seconds=None)) == 10, "nothing has ended lately: a second"


async def test_the_pace_of_the_judges_is_that_of_the_last_minutes(db_url: str, tmp_path: Path, conn: Connection):
    """OJ-15: slots of nodes that are awake, and what attempts took, as the database has it."""
    async with judging(db_url, tmp_path / "objects", inflight=10) as door:
        problem = await door.problem()
        for number in range(10):
            await door.submitted(problem, f"// {number}")
        refused = await door.submit(problem, "one more")
        assert is_told_to_come_back(refused, "inflight_cap", "INFLIGHT_CAP_REACHED") == 60, "no judge is awake"
        await node(conn, judge=2)
        await conn.execute(
            "INSERT INTO accs.outcomes (minute, service, done, run_s)"
            " VALUES (date_trunc('minute', accs.clock()), 'judge', 10, 30)"
        )

        async def is_told() -> bool:
            refused = await door.submit(problem, "one more")
            # 10 wait, 3 s each, 2 at once
            return is_told_to_come_back(refused, "inflight_cap", "INFLIGHT_CAP_REACHED") == 15

        await eventually(is_told)


async def test_what_other_services_have_before_them_is_not_counted(door: Door, conn: Connection):
    """OJ-14: the queue of the judge's own service."""
    await conn.execute('INSERT INTO workflows (name, steps) VALUES (\'w\', \'[{"key": "a", "service": "render"}]\')')
    for _ in range(3):
        await conn.execute("SELECT accs.submit('w')")
    await door.submitted(await door.problem())
    load = await load_of(door.gateway.context.reads, "judge", most=10)
    assert (load.waiting, load.live, load.in_flight) == (1, 0, 1)


def test_a_gateway_that_can_not_pass_on_what_is_asked_says_so_with_429():
    """OJ-14, OJ-15: BACKPRESSURE, where no connection to the database comes free; a database that is away is 500."""
    for error in (DatabaseBusy("all connections are in use"), TooManyWaiting("2000 requests wait")):
        is_told_to_come_back(_read(told(error)), "backlog", "BACKPRESSURE")
    away = _read(told(DatabaseUnavailable("it is away")))
    assert (away.status_code, away.json()["code"]) == (500, "DB_ERROR")


def _read(answer: Response) -> httpx.Response:
    return httpx.Response(answer.status_code, headers=dict(answer.headers), content=bytes(answer.body))
