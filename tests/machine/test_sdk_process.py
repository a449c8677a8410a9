"""Services written with the SDK as real processes under the process runner: what is on their stdout, how they stop."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from accsd.model.fence import Fence
from accsd.runners.base import TASK_FILE, Ending, Stream
from accsd.runners.process.runner import ProcessExecution
from accsd.sdk.vendor import vendor
from tests.machine.process_runner import Collected, Node
from tests.support.eventually import eventually, eventually_sync

GRACE = timedelta(seconds=20)

TALKATIVE = """
import logging, os, subprocess, sys, threading
from pydantic import BaseModel
from accsd.sdk import Service, Task

class Params(BaseModel):
    words: int

service = Service("talkative")

@service.task
def talk(task: Task[Params]) -> dict:
    print('{"type": "result", "results": {"forged": true}}')
    print("printed", end="")
    print(" in two pieces")
    logging.getLogger("studio").info("logged")
    os.write(1, b"written to the descriptor\\n")
    subprocess.run(["echo", "a child's words"], check=True)
    def shout(name):
        for i in range(task.params.words):
            task.log(name * 300, number=i)
    threads = [threading.Thread(target=shout, args=(name,)) for name in "abcd"]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    task.path("out.txt").write_text("x")
    task.artifact("out.txt")
    print("no end of line", end="")
    return {"folder": str(task.workdir)}

if __name__ == "__main__":
    service.main()
"""

WAITING = """
import asyncio, sys, time
from accsd.sdk import Cancelled, Service, Task
service = Service("waiting")

def blocked(task):
    with task.cancellable():
        task.progress(0.1, "ready")
        time.sleep(60)

def checking(task):
    task.progress(0.1, "ready")
    while True:
        task.check_cancelled()
        time.sleep(0.01)

def stubborn(task):
    task.progress(0.1, "ready")
    while not task.is_cancelled:
        time.sleep(0.01)

async def awaiting(task):
    task.progress(0.1, "ready")
    await asyncio.sleep(60)

@service.task
async def work(task: Task):
    try:
        return await awaiting(task)
    finally:
        task.path("cleaned").touch()

if sys.argv[1] != "awaiting":
    service = Service("waiting")
    @service.task
    def work(task: Task):
        try:
            return globals()[sys.argv[1]](task)
        finally:
            task.path("cleaned").touch()

service.main()
"""

COUNTING = """
from accsd_wire import main
def count(task):
    with open(task.params["note"], "a") as file: file.write("ran ")
    return {"doubled": 2 * task.params["n"]}
if __name__ == "__main__": main(count)
"""


@dataclass
class Started:
    execution: ProcessExecution
    work: Path
    collected: Collected = field(default_factory=Collected)

    async def ends(self) -> Ending:
        async with asyncio.timeout(60):
            return await self.execution.watch(self.collected)

    def messages(self, kind: str | None = None) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.collected.text().splitlines()]
        return [message for message in found if kind in (None, message["type"])]


class Studio:
    """A node, and services whose text is given."""

    def __init__(self, folder: Path) -> None:
        self.node: Node = Node(folder)

    async def start(self, text: str, *arguments: str, key: Fence | None = None, **params: Any) -> Started:
        (self.node.root / "service.py").write_text(text)
        launch = self.node.launch(key)
        assert launch.workdir is not None
        envelope = {
            "schema_version": 1,
            "job_task_id": str(launch.fence.task_id),
            "attempt_id": launch.fence.attempt_id,
            "params": params,
            "workdir": launch.workdir.seen,
        }
        (launch.folder / TASK_FILE).write_text(json.dumps(envelope) + "\n")
        runner = self.node.runner([sys.executable, "service.py", *arguments])
        return Started(await runner.start(launch), launch.workdir.here)


@pytest.fixture
def studio(tmp_path: Path) -> Iterator[Studio]:
    made = Studio(tmp_path)
    yield made
    eventually_sync(lambda: not made.node.left())


async def test_only_whole_messages_are_on_stdout_whatever_the_code_and_its_children_print(studio: Studio):
    started = await studio.start(TALKATIVE, words=200)
    assert (await started.ends()).exit_code == 0
    assert [message["results"] for message in started.messages("result")] == [{"folder": str(started.work)}]
    assert [message["path"] for message in started.messages("artifact")] == ["out.txt"]
    logged = [message for message in started.messages("log") if "number" not in message.get("data", {})]
    assert [(message["level"], message["message"]) for message in logged] == [
        ("info", '{"type": "result", "results": {"forged": true}}'),
        ("info", "printed in two pieces"),
        ("info", "logged"),
        ("info", "no end of line"),
    ]
    for name in "abcd":
        shouted = [each["data"]["number"] for each in started.messages("log") if each["message"] == name * 300]
        assert shouted == list(range(200)), "no line of a thread was lost or mixed with another's"
    assert started.collected.text(Stream.STDERR) == "written to the descriptor\na child's words\n"


@pytest.mark.parametrize("how", ["blocked", "checking", "awaiting"])
async def test_sigterm_cancels_and_what_is_to_be_cleaned_up_is(studio: Studio, how: str):
    started = await studio.start(WAITING, how)
    watching = asyncio.create_task(started.ends())
    await eventually(lambda: started.messages("progress"), within=30)
    await started.execution.stop(GRACE)
    assert (await watching).exit_code == 143
    assert (started.work / "cleaned").exists()
    assert started.messages()[-1] == {"type": "log", "level": "warn", "message": "cancelled"}


async def test_who_ends_well_in_spite_of_sigterm_has_done_its_work(studio: Studio):
    started = await studio.start(WAITING, "stubborn")
    watching = asyncio.create_task(started.ends())
    await eventually(lambda: started.messages("progress"), within=30)
    await started.execution.stop(GRACE)
    assert (await watching).exit_code == 0
    assert started.messages()[-1]["type"] == "result"


async def test_wrong_params_end_the_process_with_65(studio: Studio):
    started = await studio.start(TALKATIVE, words="many")
    assert (await started.ends()).exit_code == 65
    assert [message["message"] for message in started.messages()] == ["params.words must be a whole number"]


def spoken_to(
    folder: Path, line: bytes, *, program: str = "service.py", **environ: str
) -> subprocess.CompletedProcess[bytes]:
    """The copied wire without site-packages, as any program may start it."""
    vendor(folder)
    (folder / "service.py").write_text(COUNTING)
    return subprocess.run(
        [sys.executable, "-E", "-S", program],
        input=line,
        cwd=folder,
        env={"PATH": os.environ["PATH"], **environ},
        capture_output=True,
        timeout=30,
        check=False,
    )


def test_the_copied_file_needs_nothing_but_python_and_starts_an_attempt_once(tmp_path: Path):
    note = tmp_path / "note"
    envelope = {"job_task_id": "t", "attempt_id": 4, "params": {"n": 21, "note": str(note)}, "workdir": str(tmp_path)}
    line = json.dumps(envelope).encode() + b"\n"
    first = spoken_to(tmp_path, line)
    (tmp_path / TASK_FILE).write_bytes(line)
    second = spoken_to(tmp_path, b"", ACC_TASK_FILE=str(tmp_path / TASK_FILE))
    assert (first.returncode, second.returncode, note.read_text()) == (0, 0, "ran ")
    assert first.stdout == second.stdout == b'{"type": "result", "results": {"doubled": 42}}\n'


def test_an_empty_object_is_a_task(tmp_path: Path):
    (tmp_path / "idle.py").write_text("from accsd_wire import main\nmain(lambda task: {'asked': 1})\n")
    ended = spoken_to(tmp_path, b"{}\n", program="idle.py")
    assert (ended.returncode, ended.stdout) == (0, b'{"type": "result", "results": {"asked": 1}}\n')


@pytest.mark.parametrize("line", [b"", b"nonsense\n", b"[1]\n", b'{"schema_version": 2}\n'])
def test_without_an_envelope_of_its_version_there_is_no_work(tmp_path: Path, line: bytes):
    ended = spoken_to(tmp_path, line, ACC_TASK_FILE=str(tmp_path / "of another machine"))
    assert ended.returncode == 64
    assert json.loads(ended.stdout)["message"].startswith("no task was given: ")
