"""Child processes of the tests: the real daemon, a service in pull mode, a service that is asked over HTTP.

with daemon.running(folder, db_url, config=…) as accsd: …     # its log is what it wrote to stdout, line by line
with daemon.pulling(folder, db_url, FUNCTION) as service: …
with daemon.serving(file, text) as service: …
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accsd.model.fence import Fence
from tests.support.eventually import eventually_sync

ACCSD = [sys.executable, "-m", "accsd"]


@dataclass
class Daemon:
    process: subprocess.Popen[bytes]
    log_file: Path
    config: Path
    http: str | None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_stopped(self) -> bool:
        """By SIGSTOP: the stand-in for a machine that is suspended."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def log(self, action: str | None = None) -> list[dict[str, Any]]:
        """Its complete lines so far; with an action only those of it."""
        lines = self.log_file.read_bytes().split(b"\n")[:-1]
        records = [json.loads(line) for line in lines if line.startswith(b"{")]
        return records if action is None else [record for record in records if record.get("action") == action]

    def wait_for(self, action: str, *, within: float = 20, times: int = 1, **fields: Any) -> dict[str, Any]:
        def found() -> list[dict[str, Any]]:
            return [r for r in self.log(action) if all(r.get(name) == value for name, value in fields.items())]

        def there() -> bool:
            assert self.process.poll() is None or len(found()) >= times, self.tail()
            return len(found()) >= times

        eventually_sync(there, within=within)
        return found()[times - 1]

    def tail(self) -> str:
        return self.log_file.read_text(errors="replace")[-4000:]

    def health(self) -> dict[str, Any]:
        assert self.http is not None
        with urllib.request.urlopen(f"http://{self.http}/health", timeout=5) as answer:
            return json.load(answer)

    def metrics(self) -> str:
        assert self.http is not None
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=5) as answer:
            return answer.read().decode()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self, *, within: float = 30) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=within)


@contextmanager
def running(
    folder: Path,
    db_url: str,
    *,
    role: str = "all",
    node: str = "n1",
    config: str = "",
    environ: Mapping[str, str] | None = None,
    http: bool = False,
    ready: bool = True,
    prefix: Sequence[str] = (),
) -> Generator[Daemon]:
    """A daemon for as long as the block lasts. `folder` is shared by the nodes of a test: state and objects.
    `prefix` is a command that becomes the daemon, such as `ip netns exec`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{node}-{role}.toml"
    path.write_text(config)
    log_file = folder / f"{node}-{role}.log"
    address = f"127.0.0.1:{free_port()}" if http else None
    ours = {
        "ACC_DB_URL": db_url,
        "ACC_NODE_NAME": node,
        "ACC_STATE_DIR": str(folder / "state"),
        "ACC_LOG_LEVEL": "debug",
    }
    if address is not None:
        ours["ACC_HTTP_LISTEN"] = address
    argv = [*prefix, *ACCSD, "--role", role, "--config", str(path)]
    child = _child(argv, {**ours, **(environ or {})}, log_file, path, address, ready="started" if ready else None)
    with child as accsd:
        yield accsd


@contextmanager
def _child(
    argv: Sequence[str],
    environ: Mapping[str, str],
    log_file: Path,
    config: Path,
    http: str | None = None,
    *,
    ready: str | None,
) -> Generator[Daemon]:
    """Until the block ends. `ready` is the action that its log has to show first, once more than before."""
    starts = log_file.read_bytes().count(f'"{ready}"'.encode()) if log_file.exists() else 0
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **environ},
            start_new_session=True,
        )
    child = Daemon(process, log_file, config, http)
    try:
        if ready is not None:
            eventually_sync(lambda: len(child.log(ready)) > starts or process.poll() is not None, within=20)
            assert process.poll() is None, child.tail()
        yield child
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(timeout=10)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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
PULL_NOTE = """
@service.task
async def run(task: Task):
    note(task, "ran")
    return {"key": task.envelope["task_key"], "upstream": task.upstream}
"""
PULL_WAIT = """
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
    function: str = PULL_NOTE,
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
    with _child([sys.executable, str(path)], {**ours, **(environ or {})}, log_file, path, ready=ready) as service:
        yield service


@dataclass
class Asked:
    """An answer; where it is a stream, `response` is read on."""

    status: int
    response: http.client.HTTPResponse

    def json(self) -> dict[str, Any]:
        return json.loads(self.response.read())


@dataclass
class Serving:
    process: subprocess.Popen[bytes]
    port: int
    token: str | None

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Asked:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token and "Authorization" not in given:
            given["Authorization"] = f"Bearer {self.token}"
        connection.request(method, path, body, given)
        response = connection.getresponse()
        return Asked(response.status, response)

    def post(self, key: Fence, *, wait: bool = False, node: str = "n1", **envelope: Any) -> Asked:
        """`wait`: the answer is the stream of what the task says."""
        document = {"job_task_id": str(key.task_id), "attempt_id": key.attempt_id, **envelope}
        headers = {"Content_Type": "application/json", "Accsd_Node": node}
        if not wait:
            headers["Prefer"] = "respond-async"
        return self.ask("POST", "/tasks", json.dumps(document).encode(), **headers)

    def get(self, key: Fence, rest: str = "", node: str = "n1") -> Asked:
        return self.ask("GET", f"{path_of(key)}{rest}", Accsd_Node=node)

    def delete(self, key: Fence, rest: str = "", node: str = "n1") -> Asked:
        return self.ask("DELETE", f"{path_of(key)}{rest}", Accsd_Node=node)

    def status(self, key: Fence) -> dict[str, Any]:
        return self.get(key, "/status").json()

    def until_ended(self, key: Fence) -> dict[str, Any]:
        eventually_sync(lambda: self.status(key)["state"] == "ended", within=20, what="its end")
        return self.status(key)

    def answers(self) -> bool:
        assert self.process.poll() is None
        try:
            return self.ask("GET", "/health").status == 200
        except OSError:
            return False


def path_of(key: Fence) -> str:
    return f"/tasks/{key.task_id}/{key.attempt_id}"


@contextmanager
def serving(file: Path, text: str, *arguments: str, token: str | None = None) -> Generator[Serving]:
    """`python FILE --serve …`, for as long as the block lasts."""
    file.write_text(text)
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, str(file), "--serve", f"127.0.0.1:{port}", *arguments],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "TMPDIR": str(file.parent),  # what a killed one leaves goes with the test
            **({"ACC_SERVE_TOKEN": token} if token else {}),
        },
        start_new_session=True,
    )
    try:
        made = Serving(process, port, token)
        eventually_sync(made.answers, within=20, interval=0.02, what="an answer of the service")
        yield made
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=20)
