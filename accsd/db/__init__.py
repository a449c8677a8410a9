"""The database, for the daemon and for programs that use accsd as a library.

    db = await Database.open(load_settings().database)
    job = await submit_job(db, Submission(await workflow_id(db, "media")))
    for task in await claim_tasks(db, "renderer", owner="n1", node="n1", limit=2, lease=lease): ...

All state lives in PostgreSQL and changes only through the verbs of schema.sql; these are their typed wrappers.
"""

from accsd.db.answers import Answer, Held, Verdict
from accsd.db.artifacts import Recorded, record_task_artifact
from accsd.db.events import append_events, append_task_event
from accsd.db.install import install, read_status, require_schema, upgrade
from accsd.db.jobs import (
    Instantiated,
    Submission,
    Submitted,
    apply_workflow,
    cancel_jobs,
    close_jobs,
    dismiss,
    instantiate_due_jobs,
    instantiate_tasks,
    maybe_finish_job,
    redrive,
    retry_jobs,
    submit_job,
    submit_jobs,
    workflow_id,
)
from accsd.db.nodes import Pausable, pause, resume, set_concurrency_limit, upsert_heartbeat
from accsd.db.pool import Database
from accsd.db.schema import SCHEMA_VERSION
from accsd.db.tasks import (
    ClaimedTask,
    Done,
    Failed,
    Fence,
    Progress,
    adopt_tasks,
    claim_tasks,
    finish_tasks,
    heartbeat,
    mark_task_done,
    mark_task_error,
    mark_task_running,
    next_ordered_task,
    recheck_holds,
    reclaim_tasks,
    release_tasks,
    report_progress,
    select_runnable,
    skip_tasks,
    start_tasks,
    update_task_progress,
)

__all__ = [
    "SCHEMA_VERSION",
    "Answer",
    "ClaimedTask",
    "Database",
    "Done",
    "Failed",
    "Fence",
    "Held",
    "Instantiated",
    "Pausable",
    "Progress",
    "Recorded",
    "Submission",
    "Submitted",
    "Verdict",
    "adopt_tasks",
    "append_events",
    "append_task_event",
    "apply_workflow",
    "cancel_jobs",
    "claim_tasks",
    "close_jobs",
    "dismiss",
    "finish_tasks",
    "heartbeat",
    "install",
    "instantiate_due_jobs",
    "instantiate_tasks",
    "mark_task_done",
    "mark_task_error",
    "mark_task_running",
    "maybe_finish_job",
    "next_ordered_task",
    "pause",
    "read_status",
    "recheck_holds",
    "reclaim_tasks",
    "record_task_artifact",
    "redrive",
    "release_tasks",
    "report_progress",
    "require_schema",
    "resume",
    "retry_jobs",
    "select_runnable",
    "set_concurrency_limit",
    "skip_tasks",
    "start_tasks",
    "submit_job",
    "submit_jobs",
    "update_task_progress",
    "upgrade",
    "upsert_heartbeat",
    "workflow_id",
]
