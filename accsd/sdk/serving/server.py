"""The HTTP server of a service. All that it knows it reads from the records; to start or stop a task it asks the keeper
(tasks.py)."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
import os
import re
import select
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from .record import DRAINING, END, ENVELOPE, STDERR, STDOUT, name_of, status

MAX_ENVELOPE_BYTES = 16 * 1024 * 1024
_MAX_ORDER_BYTES = 60_000  # the keeper takes no larger order
_LOOK_EVERY_MS = 50
_TASK = re.compile(r"/tasks/([0-9A-Za-z-]{1,64})/(\d{1,19})(/status|/stderr)?")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_TRACEPARENT = re.compile(r"[0-9a-f-]{1,100}")


class _TaskRefused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class TaskServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket, folder: Path, orders: socket.socket) -> None:
        super().__init__(("", 0), _TaskRequest, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.folder, self.orders = folder, orders
        self.token = os.environ.get("ACC_SERVE_TOKEN", "")
        threading.Thread(target=self._go_with_the_keeper, daemon=True).start()

    def _go_with_the_keeper(self) -> None:
        self.orders.recv(1)  # nothing is ever sent on this socket: it only ends
        os._exit(0)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a client that left in the middle
            super().handle_error(request, client_address)


class _TaskRequest(BaseHTTPRequestHandler):
    """One request. The header Accsd-Node names the node whose task it is about: two nodes may share a service."""

    protocol_version = "HTTP/1.1"
    server_version = "accsd-serve/1"
    timeout = 60
    server: TaskServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_DELETE(self) -> None:
        self._answer(self._delete)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class gives it
        pass

    def _answer(self, act: Callable[[str, dict[str, str]], None]) -> None:
        try:
            self._admit()
            parts = urlsplit(self.path)
            act(parts.path, {name: values[-1] for name, values in parse_qs(parts.query).items()})
        except _TaskRefused as refusal:
            self.close_connection = True  # the request's body may not have been read
            self._say(refusal.status, {"error": str(refusal)})

    def _admit(self) -> None:
        """Checks the token. Without one, it requires proof that no web page asks through a person's browser."""
        if self.server.token:
            given = self.headers.get("Authorization", "").encode()
            if not hmac.compare_digest(given, f"Bearer {self.server.token}".encode()):
                raise _TaskRefused(401, "the token of ACC_SERVE_TOKEN is needed")
            return
        host = self.headers.get("Host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name != "localhost":
            try:
                ipaddress.ip_address(name.strip("[]"))
            except ValueError:
                raise _TaskRefused(400, "ask by an address, or set ACC_SERVE_TOKEN") from None

    def _get(self, path: str, query: dict[str, str]) -> None:
        if path == "/health":
            is_draining = (self.server.folder / DRAINING).exists()
            self._say(503 if is_draining else 200, {"status": "draining" if is_draining else "ok"})
        elif path == "/tasks":
            self._say(200, {"tasks": list(self._theirs())})
        else:
            record, what = self._known(path)
            if what == "/status":
                self._say(200, status(record))
            else:
                self._stream(record / (STDERR if what else STDOUT), _number(query.get("from", "0")))

    def _theirs(self) -> Iterator[dict[str, Any]]:
        for record in sorted(self.server.folder.glob(f"*@{self._node()}")):
            with contextlib.suppress(FileNotFoundError):  # the record has just been removed
                yield status(record)

    def _post(self, path: str, query: dict[str, str]) -> None:
        if path != "/tasks":
            raise _TaskRefused(404, "POST goes to /tasks")
        envelope = self._envelope()
        task, attempt = envelope.get("job_task_id"), envelope.get("attempt_id")
        if not isinstance(attempt, int) or not _TASK.fullmatch(f"/tasks/{task}/{attempt}"):
            raise _TaskRefused(400, "the envelope needs job_task_id and attempt_id")
        record = self.server.folder / name_of(task, attempt, self._node())
        if not record.exists():
            if (self.server.folder / DRAINING).exists():
                raise _TaskRefused(503, "the service is draining")
            self._start(record, envelope)
        if "respond-async" in self.headers.get("Prefer", ""):
            self._say(202, status(record))
        else:
            self._stream(record / STDOUT, 0)

    def _delete(self, path: str, query: dict[str, str]) -> None:
        record, _ = self._known(path)
        if not (record / END).exists():
            self._order({"do": "stop", "record": record.name, "grace": float(_number(query.get("grace", "10")))})
            self._say(202, status(record))
            return
        if query.get("forget"):
            shutil.rmtree(record, ignore_errors=True)
        self._say(200, {"state": "ended"})

    def _envelope(self) -> dict[str, Any]:
        """The envelope must be JSON, which a form of a foreign web page cannot send."""
        if self.headers.get_content_type() != "application/json":
            raise _TaskRefused(415, "the envelope is application/json")
        length = _number(self.headers.get("Content-Length", ""))
        if length > MAX_ENVELOPE_BYTES:
            raise _TaskRefused(413, f"an envelope has at most {MAX_ENVELOPE_BYTES} bytes")
        try:
            envelope = json.loads(self.rfile.read(length))
        except ValueError:
            envelope = None
        if not isinstance(envelope, dict):
            raise _TaskRefused(400, "the envelope is a JSON object")
        return envelope  # pyright: ignore[reportUnknownVariableType]

    def _start(self, record: Path, envelope: dict[str, Any]) -> None:
        """Makes the record, whole and once: of two requests at the same time one makes it, and both find it."""
        order = self._start_order(record, envelope)  # first: a record that appears must be started, too
        draft = Path(tempfile.mkdtemp(dir=self.server.folder, prefix="."))
        for name, content in ((STDOUT, ""), (STDERR, ""), (ENVELOPE, json.dumps(envelope) + "\n")):
            (draft / name).write_text(content)
        try:
            draft.rename(record)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
            return
        self._order(order)

    def _start_order(self, record: Path, envelope: dict[str, Any]) -> dict[str, Any]:
        limit = self.headers.get("Accsd-Output-Limit")
        order = {
            "do": "start",
            "record": record.name,
            "task": envelope["job_task_id"],
            "attempt": envelope["attempt_id"],
            "limit": _number(limit) if limit else None,
            "environ": _environ(envelope, self._node(), self.headers.get("Traceparent")),
        }
        if len(json.dumps(order)) > _MAX_ORDER_BYTES:
            raise _TaskRefused(413, "what the envelope says of the job and its workdir is too long for an environment")
        return order

    def _order(self, order: dict[str, Any]) -> None:
        self.server.orders.send(json.dumps(order).encode())

    def _node(self) -> str:
        node = self.headers.get("Accsd-Node", "nobody")
        if not _NODE.fullmatch(node):
            raise _TaskRefused(400, "Accsd-Node is not the name of a node")
        return node

    def _known(self, path: str) -> tuple[Path, str | None]:
        named = _TASK.fullmatch(path)
        record = self.server.folder / name_of(named[1], named[2], self._node()) if named else None
        if named is None or record is None or not record.exists():
            raise _TaskRefused(404, "there is no such task here")
        return record, named[3]

    def _say(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, path: Path, start: int) -> None:
        """Sends the output so far and as it grows, until the task has ended or the client has gone."""
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-ndjson")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while True:
                has_ended = (path.parent / END).exists() or not path.exists()  # before the read: then it is the last
                if data := file.read(65536):
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
                elif has_ended:
                    break
                elif self._has_left():
                    self.close_connection = True
                    return
        self.wfile.write(b"0\r\n\r\n")

    def _has_left(self) -> bool:
        poll = select.poll()
        poll.register(self.connection, select.POLLIN | select.POLLRDHUP)
        return bool(poll.poll(_LOOK_EVERY_MS))


def _environ(envelope: dict[str, Any], node: str, traceparent: str | None) -> dict[str, str]:
    """The environment of a task, the same in every mode."""
    given = {
        "ACC_JOB_ID": envelope.get("job_id"),
        "ACC_JOB_TASK_ID": envelope.get("job_task_id"),
        "ACC_ATTEMPT_ID": envelope.get("attempt_id"),
        "ACC_TRACE_ID": envelope.get("trace_id"),
        "ACC_WORKDIR": envelope.get("workdir"),
        "TRACEPARENT": traceparent if _TRACEPARENT.fullmatch(traceparent or "") else None,
        "ACCSD_NODE": node,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def _number(written: str) -> int:
    if not (written.isascii() and written.isdigit()):
        raise _TaskRefused(400, "a whole number is needed")
    return int(written)
