"""A service in pull mode as a child process: its program, its log, its end."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.daemon import Daemon
from tests.support.eventually import eventually_sync

# What the functions of the tests share: notes that no database keeps, and a file to wait for.
PROGRAM = """
import asyncio, logging, os, pathlib, sys, time
from pydantic import BaseModel
from accsd.sdk import Permanent, Service, Task, Temporary
service = Service("render")
def note(task, *words):
    with open(task.options["note"], "a") as file:
        file.write(" ".join([task.envelope["task_key"], str(task.attempt_id), *map(str, words)]) + "\\n")
async def until(task, name="go"):
    while not os.path.exists(task.options[name]): await asyncio.sleep(0.01)
{function}
if __name__ == "__main__":
    service.run(concurrency={concurrency}, when_ready=lambda: print('{{"action": "ready"}}', flush=True))
"""
NOTE = """
@service.task
async def run(task: Task):
    note(task, "ran")
    return {"key": task.envelope["task_key"], "upstream": task.upstream}
"""
WAIT = """
@service.task
async def run(task: Task):
    note(task, "began", os.getpid())
    logging.getLogger("lib").info("from a library")
    try:
        await until(task)
    finally:
        note(task, "ended", os.getpid())
    return {"pid": os.getpid()}
"""


@contextmanager
def pulling(
    folder: Path,
    db_url: str,
    function: str = NOTE,
    *,
    program: str | None = None,
    concurrency: int = 4,
    node: str = "m1",
    process: int = 1,
    ready: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Generator[Daemon]:
    """`process` numbers those of one machine, for their logs only. `program` is a whole one. `ready`: what its log has
    to say first."""
    path, log_file = folder / f"service-{process}.py", folder / f"pull-{node}-{process}.log"
    path.write_text(program or PROGRAM.format(function=function, concurrency=concurrency))
    ready = ready or ("ready" if program is None else "listening")
    ours = {
        "ACC_DB_URL": db_url,
        "ACC_NODE_NAME": node,
        "ACC_STATE_DIR": str(folder / "state"),
        "ACC_LOG_LEVEL": "debug",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    starts = log_file.read_bytes().count(f'"{ready}"'.encode()) if log_file.exists() else 0
    with log_file.open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, str(path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **ours, **(environ or {})},
            start_new_session=True,
        )
    service = Daemon(child, log_file, path, None)
    try:
        eventually_sync(lambda: len(service.log(ready)) > starts or child.poll() is not None, within=20)
        assert child.poll() is None, service.tail()
        yield service
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
            child.wait(timeout=10)
