"""Submissions over HTTP: the routes, the checks in their order, and what is told of a submission."""

import asyncio
import time
from typing import Any
from uuid import UUID

import pytest

from tests.support.cluster import Connection
from tests.support.factory import cancel, claim, fail, finish, node, start, started
from tests.support.judging import ACCEPTED, Door, judged, judging

TEXTS = {
    "OK": "Accepted", "TLE": "Time Limit Exceeded", "MLE": "Memory Limit Exceeded", "OLE": "Output Limit Exceeded",
    "RE": "Runtime Error",
}  # fmt: skip


async def test_a_submission_waits_is_judged_and_tells_its_verdict(door: Door, conn: Connection):
    """OJ-1, OJ-2, and the table of states in 3.3: `Finished` it says, and nothing else, however long ago that was."""
    problem = await door.problem()
    answer = await door.submit(problem)
    job = answer.json()["job_id"]
    assert (answer.status_code, answer.json()) == (200, {"job_id": job, "status": "Queuing"})
    waiting = await door.status(job)
    assert (waiting["job_id"], waiting["status"], waiting["state"], waiting["data"]) == (
        job,
        "pending",
        "pending",
        None,
    )
    await node(conn, judge=1)
    (claimed,) = await claim(conn, 1, "judge")
    for _ in ("starting", "running"):
        told = await door.status(job)
        assert (told["status"], told["state"], told["data"]) == ("running", "processing", None)
        await start(conn, claimed)
    await finish(conn, claimed, results=[ACCEPTED])
    told = await door.status(job)
    assert told == {
        "job_id": job,
        "status": "Finished",
        "state": "done",
        "data": {
            "job_id": job, "attempt_id": 1, "status": "Accepted", "time_used": 12, "memory_used": 2048,
            "language": "CPP", "trace_id": answer.headers["x-request-id"], "cases": 2, "exit_signal": 0,
        },
    }  # fmt: skip


@pytest.mark.parametrize("path", ["/submit", "/api/v1/submit"])
async def test_both_paths_take_submissions_and_tell_of_them(door: Door, path: str):
    """OJ-1, OJ-2: the bare paths are those of the seed."""
    body = {"code": "print(1)", "language": 3, "problem_id": await door.problem()}
    made = await door.ask("POST", path, json=body)
    assert made.status_code == 200
    shown = await door.ask("GET", path.replace("submit", f"status/{made.json()['job_id']}"))
    assert shown.json()["state"] == "pending"


async def test_every_verdict_of_a_judge_has_its_text_and_a_failed_judge_is_a_system_error(door: Door, conn: Connection):
    """3.3 and OJ-26: five verdicts of the sandbox, two of the judge above it; a line without any is no judgement."""
    problem = await door.problem()
    said: list[tuple[dict[str, Any], str]] = [
        ({"verdict": verdict, "status": text}, text) for verdict, text in TEXTS.items()
    ]
    said += [({"verdict": "OK", "status": text}, text) for text in ("Wrong Answer", "Compile Error")]
    said += [({"verdict": "TLE", "time_ms": 7, "mem_kb": 9}, "Time Limit Exceeded"), ({}, "System Error")]
    said += [({"verdict": "OK"}, "System Error")]  # whether the answer was right has nobody said
    for number, (results, text) in enumerate(said):
        job = await door.submitted(problem, f"// {number}")
        await judged(conn, results=results)
        assert (await door.status(job))["data"]["status"] == text, results
    job = await door.submitted(problem, "// nobody can judge it")
    await node(conn, judge=1)
    (claimed,) = await started(conn, 1, "judge")
    await fail(conn, claimed, code="sandbox_error", message="the sandbox failed: no room", permanent=True)
    told = await door.status(job)
    assert (told["status"], told["data"]["status"]) == ("Finished", "System Error")
    assert told["data"]["error_message"] == "the sandbox failed: no room"
    assert (told["data"]["error_code"], told["data"]["attempt_id"]) == ("sandbox_error", 1)


async def test_a_cancelled_submission_is_finished(door: Door, conn: Connection):
    job = await door.submitted(await door.problem())
    await cancel(conn, UUID(job))
    told = await door.status(job)
    assert (told["status"], told["data"]["status"]) == ("Finished", "Cancelled")


async def test_the_owner_and_operators_see_a_submission(door: Door):
    """OJ-2: 403 for everybody else, 404 for what is not there."""
    job = await door.submitted(await door.problem())
    assert (await door.ask("GET", f"/status/{job}")).status_code == 200
    for by in ("operate", "admin"):
        assert (await door.ask("GET", f"/status/{job}", by=by)).status_code == 200
    refused = await door.ask("GET", f"/status/{job}", by="read")
    assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN")
    gone = await door.ask("GET", "/status/01890000-0000-7000-8000-000000000000")
    assert (gone.status_code, gone.json()["code"]) == (404, "NOT_FOUND")


async def test_who_waits_is_told_as_soon_as_it_is_judged(door: Door, conn: Connection):
    """3.6: `Prefer: wait`."""
    job = await door.submitted(await door.problem())
    waits = asyncio.create_task(door.ask("GET", f"/status/{job}", headers={"Prefer": "wait=20"}))
    await node(conn, judge=1)
    (claimed,) = await started(conn, 1, "judge")
    began = time.monotonic()
    await finish(conn, claimed, results=[ACCEPTED])
    answer = await waits
    assert (answer.json()["state"], answer.headers["preference-applied"]) == ("done", "wait=20")
    assert time.monotonic() - began < 10, "it was told, and did not wait for the end of its patience"
    over = await door.ask("GET", f"/status/{await door.submitted(await door.problem())}", headers={"Prefer": "wait=1"})
    assert over.json()["state"] == "pending"
    assert (await door.ask("GET", f"/status/{job}", headers={"Prefer": "wait=soon"})).json()["code"] == "BAD_REQUEST"


# What a submission may be


async def test_a_body_that_is_no_submission_is_refused_with_its_mistakes(door: Door):
    """OJ-10, OJ-11, G-10: 400 BAD_REQUEST with details."""
    problem = await door.problem()
    good = {"code": "x", "language": 1, "problem_id": problem}
    bodies: list[Any] = [
        {}, [], "text", None, {**good, "code": ""}, {**good, "code": 5}, {**good, "language": None},
        {**good, "language": 1.5}, {**good, "language": True}, {**good, "problem_id": "1"},
        {**good, "time_limit": "soon"}, {**good, "code": "a\0b"}, {"code": "x", "problem_id": problem},
    ]  # fmt: skip
    for body in bodies:
        refused = await door.ask("POST", "/submit", json=body)
        assert (refused.status_code, refused.json()["code"]) == (400, "BAD_REQUEST"), body
        assert refused.json()["details"], body
    for content in (b"", b"{", b'{"code": "\\ud800", "language": 1}', b'{"code": NaN}', b"[" * 5000):
        refused = await door.ask("POST", "/submit", content=content)
        assert (refused.status_code, refused.json()["code"]) == (400, "BAD_REQUEST"), content[:20]
    assert (await door.ask("POST", "/submit", json={**good, "unheard": [1]})).status_code == 200, "G-6"


async def test_code_languages_and_problems_that_are_not_taken(door: Door):
    """OJ-10, OJ-11: 1 and 3 by number or name; 2 and 4 are reserved and refused; a submission without a problem is,
    too."""
    problem = await door.problem()
    for language in (1, 3, "cpp", "python"):
        assert (await door.submit(problem, language=language)).status_code == 200
    for language in (0, 2, 4, 99, -1, "java", "C++", ""):
        refused = await door.submit(problem, language=language)
        assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_PARAM"), language
    assert (await door.submit(problem, "x" * 65_536)).status_code == 200
    for code in ("x" * 65_537, "ü" * 32_769):
        refused = await door.submit(problem, code)
        assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_PARAM")
    for wanted in (None, 0, -1, 10**6, 2**62):
        refused = await door.submit(wanted)  # type: ignore[arg-type]
        assert (refused.status_code, refused.json()["code"]) == (400, "PROBLEM_NOT_FOUND"), wanted


async def test_a_body_has_its_limit(door: Door):
    """OJ-11: 1 MiB, 413 BODY_TOO_LARGE, whether its length was said or not."""

    async def pieces():
        for _ in range(40):
            yield b" " * 65_536

    for content in (b" " * (2**20 + 1), pieces()):
        refused = await door.ask("POST", "/submit", content=content)
        assert (refused.status_code, refused.json()["code"]) == (413, "BODY_TOO_LARGE")


async def test_limits_are_clamped_and_those_of_the_problem_are_default_and_upper_bound(door: Door, conn: Connection):
    """OJ-11, OJ-25: no number is refused."""
    narrow = await door.problem(time_limit=2000, memory_limit=64)
    wide = await door.problem(time_limit=99_999, memory_limit=99_999)
    bare = await door.problem(time_limit=0, memory_limit=-1)
    cases: list[tuple[int, dict[str, Any], tuple[int, int]]] = [
        (narrow, {}, (2000, 65_536)),
        (narrow, {"time_limit": 500, "memory_limit": 1000}, (500, 1000)),
        (narrow, {"time_limit": 9000, "memory_limit": 10**9}, (2000, 65_536)),
        (narrow, {"time_limit": 0, "memory_limit": -5}, (2000, 65_536)),
        (wide, {}, (10_000, 524_288)),
        (wide, {"time_limit": 2**40, "memory_limit": 2**40}, (10_000, 524_288)),
        (bare, {}, (1000, 131_072)),
    ]
    for problem, given, wanted in cases:
        job = await door.submitted(problem, **given)
        options = await conn.fetchval("SELECT options FROM jobs WHERE id = $1::uuid", job)
        assert (options["time_limit"], options["memory_limit"]) == wanted, given


async def test_the_checks_come_in_their_order(db_url: str, tmp_path: Any, conn: Connection):
    """OJ-12: token, rate, body, code and language, problem, backpressure, dedup: a request with everything wrong is
    told the first, and each next one when that is mended."""
    async with judging(db_url, tmp_path / "objects", per_user=100, inflight=1) as door:
        problem = await door.problem()
        first = await door.submitted(problem, "first")
        large = b"x" * (2**20 + 1)
        assert (await door.ask("POST", "/submit", content=large, by=None)).json()["code"] == "UNAUTHORIZED"
        assert (await door.ask("POST", "/submit", content=large)).json()["code"] == "BODY_TOO_LARGE"
        assert (await door.ask("POST", "/submit", content=b"{")).json()["code"] == "BAD_REQUEST"
        assert (await door.submit(999, "x" * 70_000, 77)).json()["code"] == "INVALID_PARAM"
        assert (await door.submit(999, "x", 1)).json()["code"] == "PROBLEM_NOT_FOUND"
        full = await door.submit(problem, "first")  # the same again: but the queue is full before that is asked
        assert full.json()["code"] == "INFLIGHT_CAP_REACHED"
        for _ in range(100):
            await door.ask("POST", "/submit", content=large)
        limited = await door.ask("POST", "/submit", content=large)
        assert limited.json()["code"] == "RATE_LIMITED", "before the body is looked at"
        await judged(conn)
        assert (await door.status(first))["state"] == "done"


# The same again


async def test_the_same_submission_again_is_the_same_job_for_the_same_user(door: Door, conn: Connection):
    """OJ-16: while it waits, and with its verdict when it was judged; another user's is another."""
    problem = await door.problem()
    first = await door.submitted(problem)
    again = await door.submit(problem)
    assert again.json() == {"job_id": first, "status": "Queuing"}
    other = await door.submitted(problem, by="operate")
    assert other != first
    for different in ({"language": 3}, {"time_limit": 77}, {"memory_limit": 77}, {"code": "other"}):
        given: dict[str, Any] = {"code": "int main() {}", **different}
        assert await door.submitted(problem, **given) != first, different
    assert await door.submitted(await door.problem()) != first, "another problem"
    await judged(conn, 2)
    told = (await door.submit(problem)).json()
    assert (told["job_id"], told["status"], told["state"], told["cached"]) == (first, "Finished", "done", True)
    assert told["data"]["status"] == "Accepted"
    afresh = await door.submitted(problem, headers={"Cache-Control": "no-cache"})
    assert afresh != first


async def test_many_at_once_of_the_same_are_one_job(door: Door):
    """OJ-16, G-3."""
    problem = await door.problem()
    assert len(set(await asyncio.gather(*(door.submitted(problem) for _ in range(20))))) == 1


async def test_one_that_the_judge_failed_or_that_is_old_is_not_the_answer_to_another(door: Door, conn: Connection):
    """OJ-16: ten minutes; a system error and a cancelled one are judged anew."""
    problem = await door.problem()
    seen: set[str] = set()
    for _ in range(3):
        job = await door.submitted(problem)
        assert job not in seen
        seen.add(job)
        await node(conn, judge=1)
        (claimed,) = await started(conn, 1, "judge")
        await fail(conn, claimed, code="sandbox_error", permanent=True)
    job = await door.submitted(problem)
    await cancel(conn, UUID(job))
    fifth = await door.submitted(problem)
    assert fifth not in {*seen, job}
    await conn.execute("ALTER TABLE jobs DISABLE TRIGGER ALL")
    await conn.execute("UPDATE jobs SET created_at = created_at - interval '601 s'")
    await conn.execute("ALTER TABLE jobs ENABLE TRIGGER ALL")
    assert await door.submitted(problem) != fifth


async def test_dedup_can_be_switched_off(db_url: str, tmp_path: Any):
    """OJ-16: a setting."""
    async with judging(db_url, tmp_path / "objects", dedup=False) as door:
        problem = await door.problem()
        assert await door.submitted(problem) != await door.submitted(problem)


# Judged again


async def test_a_submission_is_judged_again_in_the_next_attempt(door: Door, conn: Connection):
    """3.6: the old verdict stays in the history of the job."""
    problem = await door.problem()
    job = await door.submitted(problem)
    refused = await door.ask("POST", f"/api/v1/status/{job}/rejudge", by="operate")
    assert (refused.status_code, refused.json()["code"]) == (409, "CONFLICT")
    await judged(conn)
    again = await door.ask("POST", f"/api/v1/status/{job}/rejudge", by="operate")
    assert (again.status_code, again.json()) == (200, {"job_id": job, "status": "Queuing"})
    assert (await door.status(job))["state"] == "pending"
    await judged(conn, results={**ACCEPTED, "status": "Wrong Answer"})
    data = (await door.status(job))["data"]
    assert (data["status"], data["attempt_id"]) == ("Wrong Answer", 2)
    statuses = await conn.fetch("SELECT type FROM task_events WHERE job_id = $1::uuid AND type = 'retry'", job)
    assert statuses


async def test_all_submissions_to_a_problem_are_judged_again(door: Door, conn: Connection):
    problem, other = await door.problem(), await door.problem()
    jobs = [await door.submitted(problem, f"// {n}") for n in range(3)]
    untouched = await door.submitted(other)
    await judged(conn, 4)
    waiting = await door.submitted(problem, "// not judged yet")
    answer = await door.ask("POST", f"/api/v1/problems/{problem}/rejudge", by="admin")
    assert answer.json() == {"rejudged": 3, "refused": 0, "more": False}
    assert {(await door.status(job))["state"] for job in (*jobs, waiting)} == {"pending"}
    assert (await door.status(untouched))["state"] == "done"
    assert (await door.ask("POST", "/api/v1/problems/999/rejudge", by="admin")).status_code == 404


# The trace, and the view


async def test_the_id_of_the_request_is_the_trace_of_the_judgement(door: Door, conn: Connection):
    """X-Request-ID is echoed, or made, and becomes the trace id (3.1)."""
    problem = await door.problem()
    given = await door.submit(problem, headers={"X-Request-ID": "contest-7.a"})
    assert given.headers["x-request-id"] == "contest-7.a"
    job = given.json()["job_id"]
    await judged(conn)
    assert (await door.status(job))["data"]["trace_id"] == "contest-7.a"
    made = await door.submit(problem, "other", headers={"X-Request-ID": "no such id!"})
    assert len(made.headers["x-request-id"]) == 32
    for answer in (await door.ask("GET", "/status/x"), await door.ask("GET", "/submit")):
        assert answer.headers["x-request-id"]


async def test_scripts_read_the_table_of_submissions(door: Door, conn: Connection):
    """3.5: the view `submissions` in public."""
    problem = await door.problem()
    jobs = [await door.submitted(problem, f"// {n}") for n in range(3)]
    await node(conn, judge=5)
    first, second = await claim(conn, 2, "judge")
    await start(conn, first, second)
    await finish(conn, first, results=[{**ACCEPTED, "status": "Wrong Answer"}])
    await conn.execute(
        'INSERT INTO workflows (name, steps) VALUES (\'judgement\', \'[{"key": "judge", "service": "s"}]\')'
    )
    await conn.execute("SELECT accs.submit('judgement')")
    rows = await conn.fetch("SELECT * FROM submissions ORDER BY created_at")
    assert [row["job_id"] for row in rows] == [UUID(job) for job in jobs]
    told = [(row["status"], row["state"], row["attempt_id"]) for row in rows]
    assert told == [("Wrong Answer", "done", 1), ("running", "processing", 1), ("pending", "pending", 0)]
    assert [row["result"] and row["result"]["status"] for row in rows] == ["Wrong Answer", None, None]
    assert all(row["updated_at"] >= row["created_at"] for row in rows)
