"""`accsd jobs`, `job`, `cancel`, `retry` and `dead`: what stands in the database, and the verbs that change it."""

import asyncio
import signal
from datetime import timedelta
from uuid import UUID

import pytest

from accsd.explain.words import short
from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.factory import (
    NODE,
    OWNER,
    chain,
    claim,
    diamond,
    done,
    fail,
    finish,
    node,
    pass_time,
    start,
    started,
    step,
    stop_clock,
    submit,
    submit_to,
    tasks,
    workflow,
)


@pytest.fixture
async def cli(db_url: str, conn: Connection) -> Cli:
    await node(conn)
    return Cli(db_url)


async def a_failed_job(conn: Connection) -> UUID:
    """top is done, left has failed twice, right is done, bottom was skipped."""
    top, left, right, bottom = diamond()
    job = await submit(conn, top, left | {"max_attempts": 2}, right, bottom)
    await done(conn)
    left_task, right_task = await started(conn, 2)
    await fail(conn, left_task, message="it broke\nbadly")
    await conn.fetch("SELECT * FROM accs.finish_tasks($1, $2, $3)", [right_task["task_id"]], [1], OWNER)
    await pass_time(conn, 30)
    await fail(conn, *await started(conn), message="it broke again")
    return job


# jobs


async def test_jobs_are_listed_newest_first(cli: Cli, conn: Connection):
    (await cli("jobs")).ends(0, "no jobs yet: `accsd submit WORKFLOW`")
    media = await workflow(conn, *chain("a", "b"), name="media")
    old, new = await submit_to(conn, media), await submit_to(conn, media)
    await done(conn)
    heading, first, second = (await cli.process("jobs")).ends(0).out.splitlines()
    assert heading.split() == ["ID", "WORKFLOW", "STATUS", "PROGRESS", "STEP", "AGE", "TOOK", "ERROR"]
    assert first.split()[:5] == [short(new), "media", "running", "0%", "a"]
    assert second.split()[:5] == [short(old), "media", "running", "50%", "b"]
    assert (await cli("jobs", "-o", "name", "--limit", "1")).out.split() == [str(new)]


async def test_jobs_can_be_filtered(cli: Cli, conn: Connection):
    failed = await a_failed_job(conn)
    media = await workflow(conn, name="media")
    await pass_time(conn, 7200)
    running = await submit_to(conn, media)

    async def listed(*filters: str) -> list[str]:
        return [row["id"] for row in (await cli("jobs", "-o", "json", *filters)).ends(0).json]

    assert await listed("--status", "error") == [str(failed)]
    assert await listed("--status", "error", "--status", "running") == [str(running), str(failed)]
    assert await listed("--workflow", "media") == [str(running)]
    assert await listed("--since", "1h") == [str(running)]
    assert await listed("--since", "3h") == [str(running), str(failed)]
    (await cli("jobs", "--status", "broken")).ends(2, "'broken' is not one of")


async def test_jobs_are_found_by_what_they_are_and_where_they_ran(cli: Cli, conn: Connection):
    """Each filter alone finds the one job that it is about; all of them together too."""
    render = await workflow(conn, step("a", max_attempts=1), name="media")
    (first,) = await conn.fetch(
        """INSERT INTO jobs (workflow_id, options, idempotency_key, created_by)
           VALUES ($1, '{"quality": {"crf": 20, "two_pass": true}, "title": "a=b"}', 'order-1', 'me@here')
           RETURNING id""",
        render,
    )
    await conn.fetch("SELECT * FROM accs.instantiate_due_jobs(10)")
    await fail(conn, *await started(conn), code="oom")
    await pass_time(conn, 7200)
    other = await submit_to(conn, await workflow(conn, step("a", "other")), options={"quality": {"crf": 21}}, key="k2")
    filters = {
        "--service": "render",
        "--node": OWNER,
        "--error-code": "oom",
        "--option": "quality.crf=20",
        "--key": "order-1",
        "--by": "me@here",
        "--until": "1h",
    }

    async def listed(*arguments: str) -> list[str]:
        return (await cli("jobs", "-o", "name", *arguments)).ends(0).out.split()

    assert set(await listed()) == {str(first["id"]), str(other)}
    for name, value in filters.items():
        assert await listed(name, value) == [str(first["id"])], name
        assert await listed(name, "1d" if name == "--until" else f"{value}0") == [], name
    together = [word for pair in filters.items() for word in pair]
    assert await listed(*together, "--option", "title=a=b", "--option", "quality.two_pass=true") == [str(first["id"])]
    assert await listed(*together, "--status", "done") == []
    assert await listed("--key", "k2", "--status", "running", "--scan", "1") == [str(other)]
    assert await listed("--key", "order-1", "--scan", "1") == [str(first["id"])], "however many came after it"
    assert "looked through" not in (await cli("jobs", "--key", "order-1", "--scan", "1")).err
    (await cli("jobs", "--option", "crf")).ends(2, '--option "crf" is not KEY=VALUE', "→ write --option frames=240")


async def test_a_running_task_counts_for_the_node_that_it_is_on(cli: Cli, conn: Connection):
    job = await submit(conn, step("a"))
    await started(conn, owner="n1/worker-1")
    assert (await cli("jobs", "-o", "name", "--node", NODE)).ends(0).out.split() == [str(job)]


async def test_a_filter_looks_through_the_newest_jobs_only_and_says_so(cli: Cli, conn: Connection):
    failed = await a_failed_job(conn)
    media = await workflow(conn, name="media")
    waiting = await submit_to(conn, media)
    for _ in range(3):
        await submit_to(conn, media)
    bounded = await cli("jobs", "--status", "error", "--scan", "3")
    bounded.ends(0, "no such jobs", "only the newest 3 jobs were looked through: `--scan 30` looks further")
    assert str(failed) in (await cli("jobs", "--status", "error", "--scan", "30", "-o", "name")).out
    # what is in motion is found beyond the bound
    assert str(waiting) in (await cli("jobs", "--status", "running", "--scan", "1", "-o", "name")).out


async def test_watch_shows_the_list_again_and_again_until_it_is_interrupted(cli: Cli, conn: Connection):
    job = await submit(conn, step("a"))
    watching = cli.spawn("jobs", "--watch", "--every", "0.1s", "-o", "jsonl")
    try:
        assert watching.stdout is not None
        lines = iter(watching.stdout.readline, "")
        assert '"running"' in await asyncio.to_thread(next, lines)
        await done(conn)
        async with asyncio.timeout(30):
            while f'"{job}"' not in (line := await asyncio.to_thread(next, lines)) or '"done"' not in line:
                pass
        watching.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(watching.wait, 30) == 0
    finally:
        watching.kill()
        watching.communicate()


# job


async def test_a_job_is_shown_with_its_steps_attempts_and_timeline(cli: Cli, conn: Connection):
    job = await a_failed_job(conn)
    shown = (await cli.process("job", short(job))).ends(0, f"→ accsd retry {short(job)}").out
    lines = [line.split() for line in shown.splitlines()]
    assert ["job", str(job)] in lines
    assert any(line[:6] == ["●", "top", "done", "render", OWNER, "1"] for line in lines)
    left = ["✗", "│", "left", "error", "render", OWNER, "2", "boom", "it", "broke", "again"]
    assert any([*line[:7], *line[8:]] == left for line in lines)  # between them, how long it took
    assert any(line[:3] == ["–", "bottom", "skipped"] for line in lines)
    assert any(line[:3] == ["left", "1", NODE] and line[-3:] == ["it", "broke", "badly"] for line in lines)
    assert any(line[1:] == ["left", "queued", "→", "starting", "on", NODE, "(attempt", "2)"] for line in lines)
    assert "running → error: it broke again [boom]" in shown


async def test_what_a_task_says_pushes_no_change_of_state_off_the_timeline(cli: Cli, conn: Connection):
    job = await submit(conn, step("a"))
    (task,) = await started(conn)
    for kind, n in (("log", 200), ("progress", 100), ("debug", 60)):
        await conn.execute(
            """INSERT INTO task_events (job_id, job_task_id, source, type, level, message, attempt_id, data)
               SELECT $1, $2, 'service:render', $3, $4, 'line ' || n, 1, '{}' FROM generate_series(1, $5) n""",
            job,
            task["task_id"],
            *(("usage", "debug") if kind == "debug" else (kind, "info")),
            n,
        )
    await conn.execute(
        """INSERT INTO task_events (job_id, job_task_id, source, type, level, message, attempt_id, data)
           SELECT $1, $2, 'service:render', 'artifact', 'info', 'logs/1/a/1/' || n, 1, '{"kind": "log"}'
             FROM generate_series(1, 100) n""",
        job,
        task["task_id"],
    )
    shown = (await cli("job", short(job))).ends(0).out
    for move in ("queued → starting", "starting → running"):
        assert move in shown
    assert "line 1" not in shown
    assert f"(and 200 log lines: accsd logs {short(job)})" in shown
    assert f"(and 100 reports of progress: accsd job {short(job)} -o json)" in shown
    assert len((await cli("job", short(job), "-o", "json")).json["events"]) > 460


async def test_the_error_of_an_attempt_is_shown_whole_and_both_times_count_from_the_claim(cli: Cli, conn: Connection):
    job = await submit(conn, step("a", max_attempts=1))
    (task,) = await claim(conn)
    await pass_time(conn, 10)  # the node fetches its inputs
    await start(conn, task)
    await pass_time(conn, 13)
    message = "it broke " + " ".join(str(n) for n in range(60))
    await fail(conn, task, message=message)
    shown = (await cli.process("job", short(job))).ends(0).out
    (attempt,) = [line for line in shown.splitlines() if line.startswith("a     ")]
    assert attempt.endswith(f"error    boom {message}")
    (drawn,) = [line for line in shown.splitlines() if line.startswith("✗ a ")]
    assert "  23s  " in drawn
    assert "  23s  " in attempt


async def test_where_the_time_of_a_job_went_is_a_bar_of_blocks_with_what_they_mean(cli: Cli, conn: Connection):
    await stop_clock(conn)
    await node(conn, render=1)
    job = await submit(conn, step("a"))
    await pass_time(conn, 30)
    await conn.fetch("SELECT FROM accs.heartbeat('n1', 'n1', '{}', '{}', '1 min')")
    (task,) = await started(conn, lease=timedelta(hours=1))
    await pass_time(conn, 90)
    await finish(conn, task)
    shown = (await cli("job", short(job))).ends(0).out
    [drawn] = [line for line in shown.splitlines() if line.startswith("time ")]
    assert drawn == f"time       {'░' * 15}{'█' * 45} 2m"
    assert "           ░ capacity 30s (render)  █ running 1m30s (n1)" in shown
    told = (await cli("job", str(job), "-o", "json")).ends(0).json["explain"]
    assert [piece["kind"] for piece in told["segments"] if piece["from"][:19] != piece["to"][:19]] == [
        "capacity",
        "running",
    ]
    assert (told["critical_path"], told["eta"], told["complete"]) == (["a"], None, True)


async def test_a_job_as_json_has_everything(cli: Cli, conn: Connection):
    job = await a_failed_job(conn)
    told = (await cli("job", str(job), "-o", "json")).ends(0).json
    assert (told["status"], told["error_code"]) == ("error", "boom")
    assert {task["task_key"]: task["status"] for task in told["tasks"]} == await tasks(conn, job)
    assert [(a["task_key"], a["attempt_id"], a["outcome"]) for a in told["attempts"]] == [
        ("top", 1, "done"),
        ("left", 1, "error"),
        ("right", 1, "done"),
        ("left", 2, "error"),
    ]
    assert len(told["events"]) == await conn.fetchval("SELECT count(*) FROM task_events WHERE job_id = $1", job)
    last = (await cli("job", str(job), "-o", "json", "--events", "1")).json["events"]
    assert [event["message"] for event in last] == ["running → error"]


async def test_a_step_says_what_it_waits_for(cli: Cli, conn: Connection):
    job = await submit(conn, *chain("a", "b"))
    assert "waits for a node" in (await cli("job", str(job))).out
    await fail(conn, *await started(conn))
    shown = (await cli("job", str(job))).out
    assert "backoff for" in shown
    assert "last: boom it broke" in shown
    assert "waits for earlier steps" in shown


# Ids


async def test_an_id_may_be_whole_or_its_beginning_or_its_end(cli: Cli, conn: Connection):
    first = await submit(conn, step("a"), job_id=UUID("01990000-0000-7000-8000-aaaa11110001"))
    second = await submit(conn, step("a"), job_id=UUID("01990000-0000-7000-8000-aabb22220001"))
    assert (short(first), short(second)) == ("11110001", "22220001")
    for part in (
        str(first),
        first.hex,
        short(first),
        "10001",
        "01990000-0000-7000-8000-aaaa",
        "01990000000070008000AAAA",
    ):
        assert (await cli("job", part, "-o", "name")).ends(0).out.strip() == str(first)
    (await cli("job", "ffff")).ends(3, 'no job has an id that begins or ends with "ffff"', "`accsd jobs` lists")
    (await cli("job", "001")).ends(3, "no job has an id")  # too short for an end
    (await cli("job", "xyz")).ends(2, "is not the id of a job")


async def test_an_id_that_is_not_clear_is_told_truly_with_what_it_may_be(cli: Cli, conn: Connection):
    media = await workflow(conn, name="media")
    first = await submit_to(conn, media, job_id=UUID("01990000-0000-7000-8000-aaaa11110001"))
    second = await submit_to(conn, media, job_id=UUID("01990000-0000-7000-8000-aabb22220001"))
    (await cli("job", "0001")).ends(2, '"0001" is the end of several job ids:')
    third = await submit_to(conn, media, job_id=UUID("00010000-0000-7000-8000-aabb22223333"))
    for part, which in (("0199", "beginning"), ("0001", "beginning or the end")):
        said = await cli("job", part)
        said.ends(
            2, f'"{part}" is the {which} of several job ids:', f"{second}  media, submitted ", "→ type more of it"
        )
        assert str(first) in said.err
        assert (str(third) in said.err) == (part == "0001")


async def test_short_ids_tell_jobs_apart_however_they_were_submitted(cli: Cli, conn: Connection):
    media = await workflow(conn, name="media")
    await conn.execute("INSERT INTO jobs (workflow_id) SELECT $1 FROM generate_series(1, 1000)", media)
    await conn.fetch("SELECT accs.submit('media') FROM generate_series(1, 1000)")
    for _ in range(3):
        (await cli("submit", "media")).ends(0)
    ids = (await cli("jobs", "--limit", "3000", "-o", "name")).out.split()
    assert len(ids) == 2003
    assert len({short(each) for each in ids}) == 2003
    assert (await cli("job", short(ids[1000]), "-o", "name")).ends(0).out.strip() == ids[1000]


# cancel and retry


async def test_cancel_answers_for_each_job(cli: Cli, conn: Connection):
    running, ended = await submit(conn, *chain("a", "b")), await submit(conn, step("a", service="other"))
    await done(conn, service="other")
    said = (await cli.process("cancel", short(running), short(ended), "--reason", "wrong input")).ends(1)
    assert f"job {short(running)} is cancelled" in said.out
    assert f"job {short(ended)} can't be cancelled: it has ended already, as done" in said.err
    assert f"→ accsd job {short(ended)}" in said.err
    assert await tasks(conn, running) == {"a": "cancelled", "b": "cancelled"}
    assert await conn.fetchval("SELECT error_message FROM jobs WHERE id = $1", running) == "wrong input"
    (await cli("cancel", short(running))).ends(0, "was cancelled before")
    told = (await cli("cancel", str(ended), "-o", "json")).ends(1).json
    assert told[0] | {"message": ""} == {
        "id": str(ended),
        "answer": "refused",
        "reason": "already_finished",
        "message": "",
    }
    (await cli("cancel", "ffff")).ends(3)


async def test_retry_runs_what_has_not_succeeded(cli: Cli, conn: Connection):
    job = await a_failed_job(conn)
    (await cli.process("retry", short(job))).ends(0, f"job {short(job)} runs again")
    assert await tasks(conn, job) == {"top": "done", "left": "queued", "right": "done", "bottom": "queued"}
    (await cli("retry", short(job))).ends(0, "is running again already")


async def test_retry_from_a_step_runs_it_and_what_is_below(cli: Cli, conn: Connection):
    job = await submit(conn, *chain("a", "b", "c"))
    for _ in range(3):
        await done(conn)
    (await cli("retry", short(job))).ends(1, "all of its steps have succeeded", "--from STEP")
    (await cli("retry", short(job), "--from", "bb")).ends(1, 'no step "bb" (did you mean "b"?)')
    (await cli("retry", short(job), "--from", "b")).ends(0, "runs again from b")
    assert await tasks(conn, job) == {"a": "done", "b": "queued", "c": "queued"}


async def test_why_a_job_can_not_be_retried_is_said_in_words(cli: Cli, conn: Connection):
    running = await submit(conn, step("a"))
    (await cli("retry", str(running))).ends(1, "it has not ended, it is running", f"accsd cancel {short(running)}")
    failed = await submit(conn, *chain("x", "y", service="other"))
    await fail(conn, *await started(conn, service="other"), permanent=True)
    (await cli("retry", str(failed), "--from", "y")).ends(1, "a step that y depends on has not succeeded")
    never = await submit(conn, step("a"), scheduled_at=await conn.fetchval("SELECT accs.clock() + '1 h'::interval"))
    await cli("cancel", str(never))
    (await cli("retry", str(never))).ends(1, "it ended before it had any task")


async def test_retry_can_follow_what_it_has_begun(cli: Cli, conn: Connection):
    job = await a_failed_job(conn)
    said = await cli("retry", short(job), "--follow", "--timeout", "0.4s")
    said.ends(5, "error → running: retried", "left", "it goes on")
    assert "queued → running" not in said.out


# dead


async def test_dead_letters_are_listed_and_sent_back_to_work(cli: Cli, conn: Connection):
    (await cli("dead", "list")).ends(0, "nothing is dead")
    job = await a_failed_job(conn)
    listed = (await cli.process("dead", "list")).ends(0, "→ accsd dead retry ID")
    row = listed.out.splitlines()[1]
    letter = row.split()[0]
    assert short(job) in row
    assert "all attempts failed" in row
    assert (await cli("dead", "list", "--service", "other", "-o", "json")).json == []
    (await cli("dead", "retry", letter)).ends(0, f"dead letter {letter} goes back to work")
    assert (await tasks(conn, job))["left"] == "queued"
    (await cli("dead", "retry", letter)).ends(0, "was done before")
    (await cli("dead", "dismiss", letter)).ends(1, "was sent back to work already")
    assert "retried" in (await cli("dead", "list", "--all")).out


async def test_dead_letters_are_dismissed(cli: Cli, conn: Connection):
    job = await a_failed_job(conn)
    (await cli("dead", "dismiss")).ends(2, "or say --all")
    (await cli("dead", "dismiss", "--all", "--service", "other")).ends(0, "nothing is dead")
    (await cli("dead", "dismiss", "--all")).ends(0, "is dismissed")
    assert (await cli("dead", "list", "-o", "json")).json == []
    assert (await tasks(conn, job))["left"] == "error"
    (await cli("dead", "dismiss", "4711")).ends(3, "there is no dead letter 4711")
