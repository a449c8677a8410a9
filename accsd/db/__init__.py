"""The database, for the daemon and for programs that use accsd as a library.

    db = await Database.open(load_settings().database)
    job = await submit_job(db, Submission(await workflow_id(db, "media")))
    for task in await claim_tasks(db, "renderer", owner="n1", node="n1", limit=2, lease=lease): ...

All state lives in PostgreSQL and changes only through the verbs of schema.sql; these are their typed wrappers.
"""

from typing import TYPE_CHECKING

# Imported now, because a module has that name too: a program would get the one that is bound last.
from accsd.db.install import install, read_status, require_schema, upgrade
from accsd.lazy import lazily

if TYPE_CHECKING:
    from accsd.db.answers import Answer, Held, Verdict
    from accsd.db.artifacts import Recorded, TaskFile, TaskInput, record_task_artifact, task_inputs, task_objects
    from accsd.db.cancel import cancel_jobs, close_jobs, maybe_finish_job, skip_tasks
    from accsd.db.claim import (
        ClaimedTask,
        Outlook,
        adopt_tasks,
        agent_outlook,
        claim_tasks,
        next_ordered_task,
        select_runnable,
    )
    from accsd.db.conditions import SampleAnswer, report_sample
    from accsd.db.events import TaskEvent, append_events, append_task_event, append_task_events
    from accsd.db.finish import (
        Done,
        Failed,
        finish_many_tasks,
        finish_tasks,
        mark_task_done,
        mark_task_error,
        reclaim_tasks,
        release_tasks,
    )
    from accsd.db.lease import (
        Progress,
        heartbeat,
        mark_task_running,
        report_progress,
        start_tasks,
        update_task_progress,
    )
    from accsd.db.months import make_months
    from accsd.db.nodes import forget_node, node_leaves, upsert_heartbeat
    from accsd.db.pauses import Pausable, pause, recheck_holds, resume, set_concurrency_limit
    from accsd.db.pool import Database
    from accsd.db.retry import dismiss, redrive, retry_jobs
    from accsd.db.schema import SCHEMA_VERSION
    from accsd.db.submit import (
        Instantiated,
        NextDue,
        Submission,
        Submitted,
        builder_outlook,
        change_jobs,
        instantiate_due_jobs,
        instantiate_tasks,
        rerun_job,
        submit_job,
        submit_jobs,
    )
    from accsd.db.topics import Emitted, emit_event, replay_events
    from accsd.db.upkeep import repair
    from accsd.db.workflows import apply_workflow, workflow_id
    from accsd.model import Fence

__all__ = [
    "SCHEMA_VERSION",
    "Answer",
    "ClaimedTask",
    "Database",
    "Done",
    "Emitted",
    "Failed",
    "Fence",
    "Held",
    "Instantiated",
    "NextDue",
    "Outlook",
    "Pausable",
    "Progress",
    "Recorded",
    "SampleAnswer",
    "Submission",
    "Submitted",
    "TaskEvent",
    "TaskFile",
    "TaskInput",
    "Verdict",
    "adopt_tasks",
    "agent_outlook",
    "append_events",
    "append_task_event",
    "append_task_events",
    "apply_workflow",
    "builder_outlook",
    "cancel_jobs",
    "change_jobs",
    "claim_tasks",
    "close_jobs",
    "dismiss",
    "emit_event",
    "finish_many_tasks",
    "finish_tasks",
    "forget_node",
    "heartbeat",
    "install",
    "instantiate_due_jobs",
    "instantiate_tasks",
    "make_months",
    "mark_task_done",
    "mark_task_error",
    "mark_task_running",
    "maybe_finish_job",
    "next_ordered_task",
    "node_leaves",
    "pause",
    "read_status",
    "recheck_holds",
    "reclaim_tasks",
    "record_task_artifact",
    "redrive",
    "release_tasks",
    "repair",
    "replay_events",
    "report_progress",
    "report_sample",
    "require_schema",
    "rerun_job",
    "resume",
    "retry_jobs",
    "select_runnable",
    "set_concurrency_limit",
    "skip_tasks",
    "start_tasks",
    "submit_job",
    "submit_jobs",
    "task_inputs",
    "task_objects",
    "update_task_progress",
    "upgrade",
    "upsert_heartbeat",
    "workflow_id",
]

__getattr__ = lazily(
    __name__,
    __all__,
    (
        "answers",
        "artifacts",
        "cancel",
        "claim",
        "conditions",
        "events",
        "finish",
        "lease",
        "months",
        "pauses",
        "pool",
        "retry",
        "schema",
        "submit",
        "topics",
        "upkeep",
        "workflows",
        "nodes",  # last: it imports structlog, which takes a third of the start of a command
    ),
)
