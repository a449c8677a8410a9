"""Before the start of an attempt: its folder, the inputs that earlier steps made, and the envelope."""

from collections.abc import Mapping, Sequence
from functools import partial

from accsd import failpoints
from accsd.db import ClaimedTask, task_inputs
from accsd.errors import AttemptFailed
from accsd.model.fence import Fence
from accsd.model.outcome import ErrorCode
from accsd.model.trace import trace_of
from accsd.runners.base import TASK_FILE, Launch, Workdir
from accsd.values.json import MAX_DEPTH, is_too_deep
from accsd.work.context import AttemptContext
from accsd.work.insisting import insist
from accsd.work.lease import Lease
from accsd.work.protocol import envelope, environment
from accsd.work.service import LocalService
from accsd.work.workspace import lay_inputs, make_folder, make_workdir, remove_folder, write_envelope


async def prepare(task: ClaimedTask, served: LocalService, bench: AttemptContext, lease: Lease) -> Launch:
    launch = launch_of(task, served, bench, lease)
    await make_folder(bench.attempts_folder, task.fence)
    laid: list[dict[str, object]] = []
    if launch.workdir is not None:
        await make_workdir(launch.workdir.here)
        inputs = await insist(lambda: task_inputs(bench.db, task.fence, owner=bench.node))
        laid = await lay_inputs(bench.store, launch.workdir, inputs, patience=bench.patience)
    await write_envelope(launch.folder, _envelope(task, launch, laid))
    failpoints.hit("prepared")
    return launch


def _envelope(task: ClaimedTask, launch: Launch, laid: Sequence[Mapping[str, object]]) -> bytes:
    """What lies in the database was not always checked by accsd: of what cannot be written down, that task fails."""
    try:
        return envelope(
            job_id=task.job_id,
            job_task_id=task.task_id,
            attempt_id=task.attempt_id,
            task_key=task.task_key,
            service=task.service_name,
            params=task.params,
            options=task.options,
            inputs=task.inputs,
            trace_id=trace_of(task.trace_id, task.job_id).trace_id,
            workdir=_seen(launch.workdir),
            artifacts=laid,
            attempt=task.attempt,
            max_attempts=task.max_attempts,
        )
    except (TypeError, ValueError) as error:
        given = {"params": task.params, "options": task.options, "results of earlier steps": task.inputs}
        deep = " and ".join(what for what, value in given.items() if is_too_deep(value))
        why = f"its {deep} are nested deeper than {MAX_DEPTH} levels" if deep else str(error)
        raise AttemptFailed(ErrorCode.PROTOCOL_ERROR, f"the task cannot be given: {why}", permanent=True) from error


async def clear_away(fence: Fence, served: LocalService, bench: AttemptContext) -> None:
    """Its folders, wherever they lie. Idempotent."""
    folder = bench.folder(fence)
    workdir = served.runner.workdir(fence, folder)
    if workdir is not None:
        await remove_folder(workdir.here)
    await remove_folder(folder)


def launch_of(task: ClaimedTask, served: LocalService, bench: AttemptContext, lease: Lease) -> Launch:
    """The same for an attempt that is adopted: what it was started with."""
    folder = bench.folder(task.fence)
    workdir = served.runner.workdir(task.fence, folder)
    trace = trace_of(task.trace_id, task.job_id)
    return Launch(
        key=task.fence,
        job_id=task.job_id,
        service=task.service_name,
        folder=folder,
        workdir=workdir,
        environ=environment(
            job_id=task.job_id,
            job_task_id=task.task_id,
            attempt_id=task.attempt_id,
            trace_id=trace.trace_id,
            traceparent=trace.traceparent(),
            task_file=str(folder / TASK_FILE),
            workdir=_seen(workdir),
        ),
        clearance=partial(bench.keeper.confirmed, lease),
    )


def _seen(workdir: Workdir | None) -> str | None:
    return None if workdir is None else workdir.seen
