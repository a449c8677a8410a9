"""A service that stays up, as a process of the test's own, and somebody who asks it over HTTP."""

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accsd.model.fence import Fence
from tests.support.daemon import free_port
from tests.support.eventually import eventually_sync


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
