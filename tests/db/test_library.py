"""accsd as a library: what a scheduler or a service does with the Python verbs alone (docs/library.md)."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from uuid import UUID, uuid4

import pytest

from accsd.db import (
    Answer,
    ClaimedTask,
    Database,
    Done,
    Failed,
    Fence,
    Held,
    Instantiated,
    Pausable,
    Progress,
    Recorded,
    Submission,
    Submitted,
    Verdict,
    adopt_tasks,
    append_events,
    append_task_event,
    apply_workflow,
    cancel_jobs,
    claim_tasks,
    close_jobs,
    dismiss,
    finish_tasks,
    heartbeat,
    instantiate_due_jobs,
    instantiate_tasks,
    mark_task_done,
    mark_task_error,
    mark_task_running,
    maybe_finish_job,
    next_ordered_task,
    pause,
    reclaim_tasks,
    record_task_artifact,
    redrive,
    release_tasks,
    report_progress,
    require_schema,
    resume,
    retry_jobs,
    select_runnable,
    set_concurrency_limit,
    skip_tasks,
    start_tasks,
    submit_job,
    submit_jobs,
    update_task_progress,
    upsert_heartbeat,
    workflow_id,
)
from accsd.errors import NotFound, VerbRefused
from accsd.log import LoggedEvent, bind_event_sink, log_event
from accsd.model import ArtifactKind, EventType, Level, TaskStatus, WakeMethod, WorkflowDef
from accsd.storage import build_key
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import pass_time
from tests.support.library import opened

ME = "studio"
LEASE = timedelta(seconds=60)
CLIP = {
    "name": "clip",
    "steps": [
        {"key": "sound", "service": "audio", "default_params": {"rate": 48000}, "timeout": 90},
        {"key": "picture", "service": "render", "depends_on": ["sound"], "max_attempts": 2},
    ],
}


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as database:
        await require_schema(database)
        await upsert_heartbeat(database, ME)
        yield database


@pytest.fixture(autouse=True)
async def history(db: Database, conn: Connection) -> AsyncIterator[None]:
    """Whatever a test did, the history that it leaves has no flaw."""
    yield
    await check(conn)


async def clip(db: Database, **fields: object) -> UUID:
    return await apply_workflow(db, WorkflowDef.model_validate(CLIP | fields))


async def take(db: Database, service: str, limit: int = 1) -> list[ClaimedTask]:
    return await claim_tasks(db, service, owner=ME, node=ME, limit=limit, lease=LEASE)


async def running(db: Database, service: str) -> ClaimedTask:
    [task] = await take(db, service)
    (await mark_task_running(db, task.fence, owner=ME)).or_raise("start")
    return task


# The way of one job


async def test_a_job_goes_from_its_workflow_to_its_end(db: Database, conn: Connection):
    workflow = await clip(db)
    [submitted] = await submit_jobs(
        db, [Submission(workflow, options=MappingProxyType({"title": "sea"}), trace_id="t-1")], created_by="scheduler"
    )
    assert submitted == Submitted(submitted.job_id, Verdict.ACCEPTED, None, "running")
    job = submitted.job_id
    assert job is not None

    runnable = await select_runnable(db, "audio")
    assert [(task.job_id, task.task_key, task.status) for task in runnable] == [(job, "sound", TaskStatus.QUEUED)]
    assert await next_ordered_task(db, "audio", node=ME) == runnable[0]
    assert await next_ordered_task(db, "render") is None, "its dependency is not done"

    [sound] = await take(db, "audio", limit=5)
    assert sound.fence == Fence(runnable[0].id, 1)
    assert (sound.params, sound.options, sound.inputs) == ({"rate": 48000}, {"title": "sea"}, {})
    assert (sound.timeout, sound.trace_id, sound.status) == (timedelta(seconds=90), "t-1", "starting")
    assert (await mark_task_running(db, sound.fence, owner=ME)).verdict is Verdict.ACCEPTED
    assert (await mark_task_running(db, sound.fence, owner=ME)).verdict is Verdict.REPEATED

    await update_task_progress(db, sound.fence, 0.5, owner=ME, message="half of it")
    assert await conn.fetchrow("SELECT progress, current_task_key FROM jobs") == (0.25, "sound")
    event = await append_task_event(
        db, job, "a line", job_task_id=sound.task_id, source="service:audio", level=Level.WARN, data={"line": 7}
    )
    assert await conn.fetchrow("SELECT level, type, message, data FROM task_events WHERE id = $1", event) == (
        "warn",
        "log",
        "a line",
        {"line": 7},
    )
    key = build_key(job, "sound", ArtifactKind.OUTPUT, ext="wav")
    for verdict in (Verdict.ACCEPTED, Verdict.REPEATED):
        recorded = await record_task_artifact(
            db, sound.fence, owner=ME, kind=ArtifactKind.OUTPUT, bucket="accs", key=key, size_bytes=3, checksum="c"
        )
        assert recorded == Recorded(recorded.artifact_id, verdict, None)
    assert not await maybe_finish_job(db, job), "there is work left"
    await mark_task_done(db, sound.fence, owner=ME, results={"seconds": 12})

    picture = await running(db, "render")
    assert picture.inputs == {"sound": {"seconds": 12}}
    answer = await mark_task_done(db, picture.fence, owner=ME)
    assert answer == Answer(picture.task_id, Verdict.ACCEPTED, None, Held(None, None, None, None))
    assert await maybe_finish_job(db, job), "the last finish has closed it"
    assert await conn.fetchrow("SELECT status, progress, created_by FROM jobs") == ("done", 1, "scheduler")


async def test_a_failure_is_tried_again_and_then_a_dead_letter_that_can_be_redriven(db: Database, conn: Connection):
    job = await submit_job(db, Submission(await clip(db)))
    await mark_task_done(db, (await running(db, "audio")).fence, owner=ME)
    for attempt in (0, 1):
        task = await running(db, "render")
        assert task.attempt == attempt
        await mark_task_error(
            db, task.fence, owner=ME, code="oom", message="too large", backoff_base=timedelta(seconds=0)
        )
    assert await conn.fetchrow("SELECT status, error_code, error_message FROM jobs") == ("error", "oom", "too large")
    letter: int = await conn.fetchval("SELECT id FROM dead_letters WHERE reason = 'attempts_exhausted'")

    answers = [await redrive(db, [letter], by="ann") for _ in range(2)]
    assert [answer.verdict for [answer] in answers] == [Verdict.ACCEPTED, Verdict.REPEATED]
    [unknown] = await redrive(db, [letter + 100])
    assert (unknown.verdict, unknown.reason) == (Verdict.REFUSED, "not_found")
    await mark_task_done(db, (await running(db, "render")).fence, owner=ME)
    assert await maybe_finish_job(db, job)
    assert await conn.fetchval("SELECT status FROM jobs") == "done"


async def test_a_permanent_failure_is_dismissed(db: Database, conn: Connection):
    await submit_job(db, Submission(await clip(db)))
    task = await running(db, "audio")
    await finish_tasks(db, [Failed(task.fence, "bad_input", "no such file", permanent=True)], owner=ME)
    letter: int = await conn.fetchval("SELECT id FROM dead_letters WHERE reason = 'permanent_error'")
    answers = [await dismiss(db, [letter]) for _ in range(2)]
    assert [answer.verdict for [answer] in answers] == [Verdict.ACCEPTED, Verdict.REPEATED]


async def test_an_attempt_that_was_overtaken_can_write_nothing_and_is_told_why(db: Database, conn: Connection):
    await submit_job(db, Submission(await clip(db)))
    old = await running(db, "audio")
    await pass_time(conn, 3600)
    assert (await heartbeat(db, [old.fence], owner=ME, node=ME, lease=LEASE))[old.task_id].reason == (
        "lease_lost_or_owner_mismatch"
    )
    assert (await reclaim_tasks(db, limit=5, grace=timedelta(seconds=1)))[old.task_id].is_effective
    new = await running(db, "audio")
    assert new.fence == Fence(old.task_id, 2)

    answer = await mark_task_done(db, old.fence, owner=ME, results={"stale": True})
    assert (answer.verdict, answer.reason) == (Verdict.REFUSED, "stale_attempt")
    assert (answer.held.status, answer.held.attempt_id, answer.held.lease_owner) == ("running", 2, ME)
    with pytest.raises(VerbRefused, match=r"finish of .* refused: stale_attempt .*attempt_id=2") as caught:
        answer.or_raise("finish")
    assert caught.value.subject == str(old.task_id)
    recorded = await record_task_artifact(db, old.fence, owner=ME, kind=ArtifactKind.LOG, bucket="b", key="k")
    assert (recorded.verdict, recorded.reason) == (Verdict.REFUSED, "stale_attempt")
    assert (await mark_task_done(db, new.fence, owner=ME)).or_raise("finish").is_effective


# Submitting


async def test_the_same_key_is_the_same_job(db: Database, conn: Connection):
    workflow = await clip(db)
    first, second = await submit_jobs(db, [Submission(workflow, key="k"), Submission(workflow, key="k")])
    assert (first.verdict, second.verdict) == (Verdict.ACCEPTED, Verdict.REPEATED)
    assert first.job_id == second.job_id == await submit_job(db, Submission(workflow, key="k"))
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 1


async def test_a_submission_to_a_workflow_that_is_not_there_is_refused(db: Database):
    with pytest.raises(VerbRefused, match="workflow_not_found"):
        await submit_job(db, Submission(uuid4()))


async def test_the_newest_active_version_of_a_workflow_is_found_by_name(db: Database, conn: Connection):
    first, second = await clip(db), await clip(db, version=2)
    assert await clip(db) == first, "the same one again is updated"
    assert await workflow_id(db, "clip") == second
    assert await workflow_id(db, "clip", 1) == first
    await conn.execute("UPDATE workflows SET is_active = false WHERE version = 2")
    assert await workflow_id(db, "clip") == first
    with pytest.raises(NotFound, match='no active workflow "clip" of version 2'):
        await workflow_id(db, "clip", 2)


async def test_a_plain_insert_is_instantiated_by_whoever_asks_for_it(db: Database, conn: Connection):
    await clip(db)
    insert = "INSERT INTO jobs (workflow_id, scheduled_at) SELECT id, now() + $1 FROM workflows RETURNING id"
    due: UUID = await conn.fetchval(insert, timedelta(0))
    later: UUID = await conn.fetchval(insert, timedelta(hours=1))
    assert await instantiate_due_jobs(db, limit=10) == [Instantiated(due, Verdict.ACCEPTED, None)]
    assert await instantiate_tasks(db, later) == Instantiated(later, Verdict.ACCEPTED, None), "due or not"
    assert await instantiate_tasks(db, later) == Instantiated(later, Verdict.REPEATED, None)
    assert (await instantiate_tasks(db, missing := uuid4())) == Instantiated(missing, Verdict.REFUSED, "not_found")
    assert [task.job_id for task in await select_runnable(db, "audio")] == [due, later]


async def test_priority_goes_before_order_and_a_scheduled_job_waits(db: Database):
    workflow = await clip(db)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    submissions = [Submission(workflow), Submission(workflow, priority=5), Submission(workflow, scheduled_at=tomorrow)]
    plain, urgent, scheduled = await submit_jobs(db, submissions)
    assert scheduled.status == "queued"
    assert [task.job_id for task in await take(db, "audio", 9)] == [urgent.job_id, plain.job_id]


# Holding, giving back, skipping


async def lease_until(conn: Connection, fence: Fence) -> datetime:
    return await conn.fetchval("SELECT lease_until FROM job_tasks WHERE id = $1", fence.task_id)


async def test_a_restarted_owner_finds_what_it_holds(db: Database, conn: Connection):
    await submit_job(db, Submission(await clip(db)))
    [claimed] = await take(db, "audio")
    before = await lease_until(conn, claimed.fence)
    [adopted] = await adopt_tasks(db, owner=ME, node=ME, lease=2 * LEASE)
    assert adopted.fence == claimed.fence
    assert await lease_until(conn, adopted.fence) > before
    assert await adopt_tasks(db, owner="somebody else", node=ME, lease=LEASE) == []


async def test_batches_answer_for_each_task(db: Database, conn: Connection):
    workflow = await clip(db)
    await submit_jobs(db, [Submission(workflow)] * 3)
    one, two, three = await take(db, "audio", 3)
    stranger = Fence(uuid4(), 1)
    started = await start_tasks(db, [one.fence, two.fence, stranger], owner=ME)
    assert {task_id: answer.reason for task_id, answer in started.items()} == {
        one.task_id: None,
        two.task_id: None,
        stranger.task_id: "not_found",
    }
    told = await report_progress(db, [Progress(one.fence, 0.3, "so far", {"frames": 3})], owner=ME)
    assert told[one.task_id].is_effective
    kept = await heartbeat(db, [one.fence, three.fence], owner=ME, node=ME, lease=LEASE)
    assert all(answer.is_effective for answer in kept.values())
    outcomes = [Done(one.fence), Failed(two.fence, "boom")]
    assert all(answer.is_effective for answer in (await finish_tasks(db, outcomes, owner=ME)).values())
    assert await conn.fetchval("SELECT results FROM job_tasks WHERE id = $1", one.task_id) == {"frames": 3}


async def test_what_is_given_back_spends_no_attempt(db: Database, conn: Connection):
    await submit_job(db, Submission(await clip(db)))
    [task] = await take(db, "audio")
    released = await release_tasks(db, [task.fence], owner=ME, reason="shutting down")
    assert released[task.task_id].verdict is Verdict.ACCEPTED
    [again] = await take(db, "audio")
    assert (again.attempt, again.attempt_id) == (0, 2)
    await release_tasks(db, [again.fence], owner=ME, lost=True, delay=timedelta(hours=1))
    assert await take(db, "audio") == []
    assert await conn.fetchrow("SELECT attempt, lost FROM job_tasks WHERE id = $1", task.task_id) == (0, 1)


async def test_a_skipped_step_satisfies_the_next(db: Database):
    await submit_job(db, Submission(await clip(db)))
    waiting = await next_ordered_task(db, "audio")
    assert waiting is not None
    assert (await skip_tasks(db, [waiting.id], reason="silent film"))[waiting.id].is_effective
    assert await next_ordered_task(db, "render") is not None


# Operating


async def test_a_cancelled_job_takes_its_lease_away_and_can_be_retried(db: Database, conn: Connection):
    job = await submit_job(db, Submission(await clip(db)))
    task = await running(db, "audio")
    for verdict in (Verdict.ACCEPTED, Verdict.REPEATED):
        assert (await cancel_jobs(db, [job], reason="not wanted", by="ann"))[job].verdict is verdict
    assert (await heartbeat(db, [task.fence], owner=ME, node=ME, lease=LEASE))[task.task_id].reason == (
        "already_finished"
    )
    assert (await retry_jobs(db, [job], by="ann"))[job].verdict is Verdict.ACCEPTED
    await mark_task_done(db, (await running(db, "audio")).fence, owner=ME)
    await mark_task_done(db, (await running(db, "render")).fence, owner=ME)
    assert (await close_jobs(db, [job]))[job].verdict is Verdict.REPEATED
    again = await retry_jobs(db, [job], from_step="picture")
    assert again[job].verdict is Verdict.ACCEPTED
    assert [task.task_key for task in await select_runnable(db, "render")] == ["picture"]


@pytest.mark.parametrize(
    ("what", "name"), [(Pausable.SERVICE, "audio"), (Pausable.WORKFLOW, "clip"), (Pausable.NODE, ME)]
)
async def test_what_is_paused_gets_no_work_until_it_is_resumed(db: Database, what: Pausable, name: str):
    await submit_job(db, Submission(await clip(db)))
    assert await pause(db, what, name, reason="maintenance", by="ann") is Verdict.ACCEPTED
    assert await pause(db, what, name) is Verdict.REPEATED
    assert await take(db, "audio") == []
    assert await resume(db, what, name) is Verdict.ACCEPTED
    assert await resume(db, what, name) is Verdict.REPEATED
    assert len(await take(db, "audio")) == 1


async def test_a_concurrency_key_holds_its_limit_and_the_limit_can_be_raised(db: Database):
    steps = [{"key": f"s{i}", "service": "gpu", "concurrency_key": "card"} for i in range(3)]
    await submit_job(db, Submission(await clip(db, name="keyed", steps=steps)))
    assert len(await take(db, "gpu", 9)) == 1
    assert await set_concurrency_limit(db, "card", 2) is Verdict.ACCEPTED
    assert await set_concurrency_limit(db, "card", 2) is Verdict.REPEATED
    assert len(await take(db, "gpu", 9)) == 1


async def test_a_node_says_what_it_offers_and_keeps_what_it_does_not_repeat(db: Database):
    node = await upsert_heartbeat(
        db,
        "gpu-1",
        labels={"gpu": True, "zone": "eu"},
        max_concurrency={"gpu": 1},
        wake_method=WakeMethod.WOL,
        mac="00:11:22:33:44:55",
    )
    assert (node.labels, node.max_concurrency, node.wake_method) == ({"gpu": True, "zone": "eu"}, {"gpu": 1}, "wol")
    assert node.last_seen is not None
    again = await upsert_heartbeat(db, "gpu-1", max_concurrency={"gpu": 2})
    assert (again.labels, again.max_concurrency, again.mac) == (node.labels, {"gpu": 2}, node.mac)


# Events


@pytest.fixture
def gathered() -> Iterator[list[LoggedEvent]]:
    events: list[LoggedEvent] = []
    bind_event_sink(events.append)
    yield events
    bind_event_sink(None)


async def test_what_log_event_says_is_appended_to_the_history(
    db: Database, conn: Connection, gathered: list[LoggedEvent], capsys: pytest.CaptureFixture[str]
):
    job = await submit_job(db, Submission(await clip(db)))
    task = await running(db, "audio")
    log_event("info", EventType.LOG, "begun", {"f": [1, 2]}, job, task.task_id, source="service:audio")
    log_event("error", "judge", "hostile \0 \ud800", [float("nan"), {"n": 10**400}], str(job))
    log_event("info", "log", "of no job, so for stdout only")
    assert len(await append_events(db, gathered)) == 2
    rows = await conn.fetch(
        "SELECT job_task_id, source, level, type, message, data FROM task_events"
        " WHERE type IN ('log', 'judge') ORDER BY id"
    )
    assert rows[0] == (task.task_id, "service:audio", "info", "log", "begun", {"f": [1, 2]})
    assert rows[1][:4] == (None, "service:render", "error", "judge")
    assert rows[1]["data"][0] == "NaN"
    assert len(capsys.readouterr().out.splitlines()) == 3, "stdout stays"


async def test_events_carry_any_data_and_a_list_is_one_of_them(db: Database, conn: Connection):
    job = await submit_job(db, Submission(await clip(db)))
    data = [None, [1, [2]], [], {"a": None}, "text", 0, False]
    ids = await append_events(db, [LoggedEvent(job, None, "test", Level.INFO, "log", "m", value) for value in data])
    rows = await conn.fetch("SELECT data FROM task_events WHERE id = ANY ($1) ORDER BY id", ids)
    assert [row["data"] for row in rows] == data


# Inside a transaction of the caller's


async def test_the_verbs_take_part_in_the_callers_transaction(db: Database, conn: Connection):
    workflow = await clip(db)
    transaction = conn.transaction()
    await transaction.start()
    mine = Database.over(conn)
    job = await submit_job(mine, Submission(workflow))
    assert await select_runnable(mine, "audio") != []
    assert await select_runnable(db, "audio") == [], "nobody else sees it yet"
    await transaction.rollback()
    assert await conn.fetchval("SELECT count(*) FROM jobs WHERE id = $1", job) == 0
