"""Submissions over HTTP: the routes, the checks in their order, and what is told of a submission."""

from tests.support.cluster import Connection
from tests.support.judging import Door, judged


async def test_a_submission_is_taken_waits_is_judged_and_tells_its_verdict(door: Door, conn: Connection):
    """OJ-1, OJ-2 and the table of states (3.3)."""
    problem = await door.problem()
    answer = await door.submit(problem)
    job = answer.json()["job_id"]
    assert (answer.status_code, answer.json()) == (200, {"job_id": job, "status": "Queuing"})
    waiting = await door.status(job)
    assert (waiting["status"], waiting["state"], waiting["data"]) == ("pending", "pending", None)
    await judged(conn)
    told = await door.status(job)
    assert (told["status"], told["state"]) == ("Finished", "done")
    assert told["data"]["status"] == "Accepted"
