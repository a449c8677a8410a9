"""Compose projects of a test's own on the real engine, with locally made images; a second engine that may be killed.

Nothing of others is ever touched. Two engines in one network namespace delete each other's bridge, so the second one
has a namespace of its own.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from accsd import proc
from accsd.model.fence import Fence
from accsd.runners.base import TASK_FILE, Cursor, Launch, Output, Runner, Stream, Workdir
from accsd.runners.compose import Declared, Docker, ExecRunner, HttpRunner, Project, RunRunner, declared_services
from accsd.runners.compose.docker import PROJECT_LABEL
from accsd.sdk.vendor import vendor
from accsd.settings import ComposeSettings, ServiceSettings
from tests.support.eventually import eventually_sync

BUSYBOX = "accsd-test-busybox"
PYTHON = "accsd-test-python"
NODE = "test-node"


def why_no_plugin() -> str | None:
    """The reason why `docker compose` cannot be called, or None. It reads a compose file without an engine."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    return None if _succeeds("compose", "version") else "docker has no compose plugin"


def why_not() -> str | None:
    """The reason why this machine cannot run compose services, or None."""
    if reason := why_no_plugin():
        return reason
    if not _succeeds("version"):
        return "the Docker engine does not answer"
    return (
        None if _succeeds("image", "inspect", BUSYBOX, PYTHON) else "no images (tools/make_test_images.sh makes them)"
    )


def _succeeds(*arguments: str) -> bool:
    try:
        return subprocess.run(["docker", *arguments], capture_output=True, timeout=30, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def docker(*arguments: str) -> str:
    """A call by the test itself, as another person on the machine would make it."""
    done = subprocess.run(["docker", *arguments], capture_output=True, timeout=60, check=True)
    return done.stdout.decode().strip()


@dataclass(slots=True)
class Taken:
    """What an attempt's watcher was given."""

    pieces: list[Output] = field(default_factory=list)
    grew: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, output: Output) -> None:
        self.pieces.append(output)
        self.grew.set()

    def of(self, stream: Stream) -> bytes:
        return b"".join(piece.data for piece in self.pieces if piece.stream is stream)

    @property
    def stdout(self) -> bytes:
        return self.of(Stream.STDOUT)

    @property
    def stderr(self) -> bytes:
        return self.of(Stream.STDERR)

    @property
    def cursor(self) -> Cursor:
        return orjson.loads(orjson.dumps(self.pieces[-1].cursor)) if self.pieces else {}

    async def until(self, text: bytes) -> None:
        async with asyncio.timeout(20):
            while text not in self.stdout:
                self.grew.clear()
                await self.grew.wait()


def cli_children(*arguments: str) -> list[int]:
    """The children of this process whose command line has these arguments, one after the other."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if proc.is_running(int(pid), with_arguments=arguments)]


def kill_cli(*arguments: str) -> None:
    (child,) = cli_children(*arguments)
    os.kill(child, signal.SIGKILL)


class ComposeProject:
    """One compose file and its project. `close` removes all that bears the project's label."""

    def __init__(self, folder: Path, environ: Mapping[str, str] | None = None) -> None:
        self.name = f"accsd-test-{uuid.uuid4().hex[:10]}"
        self.folder = folder
        self.file = folder / "compose.json"
        self.docker = Docker(os.environ if environ is None else environ)
        self.project = Project(
            self.docker, self.file, self.name, image_within=timedelta(seconds=20), ready_within=timedelta(seconds=20)
        )

    def write(self, services: Mapping[str, Mapping[str, Any]]) -> None:
        # No network: each one that compose makes costs half a second, and the engine has few.
        none = {"network_mode": "none"}
        entries = {name: {**({} if "networks" in entry else none), **entry} for name, entry in services.items()}
        self.file.write_bytes(orjson.dumps({"services": entries}))

    async def declared(self, service: str, settings: Mapping[str, ServiceSettings] | None = None) -> Declared:
        found = await declared_services(self.docker, ComposeSettings(file=self.file, project=self.name), settings or {})
        assert not found.problems, found.problems
        return found.services[service]

    async def run_runner(
        self, node: str = NODE, away_limit: timedelta = timedelta(seconds=30), **entry: Any
    ) -> RunRunner:
        self.write({"worker": _service("run", entry)})
        return RunRunner(self.project, await self.declared("worker"), node, away_limit=away_limit)

    async def exec_runner(self, node: str = NODE, *, look_from_host: bool = True, **entry: Any) -> ExecRunner:
        entry.setdefault("init", True)  # for somebody must reap what the tests orphan
        entry.setdefault("command", ["sleep", "3600"])
        entry.setdefault("stop_grace_period", "0s")
        self.write({"worker": _service("exec", entry)})
        return ExecRunner(self.project, await self.declared("worker"), node, look_from_host=look_from_host)

    async def http_runner(
        self, program: str, node: str = NODE, *, limits: Mapping[str, timedelta], **entry: Any
    ) -> HttpRunner:
        """`program` is a service's text, beside copies of the wire and the serving."""
        self.write({"worker": _service("http", {**http_service(self.folder / "service", program), **entry})})
        return HttpRunner(self.project, await self.declared("worker"), node, **limits)

    def launch(self, runner: Runner, *, fence: Fence | None = None, **envelope: Any) -> Launch:
        fence = fence or Fence(uuid.uuid4(), 1)
        folder = self.folder / str(fence)
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / TASK_FILE).write_bytes(orjson.dumps(envelope) + b"\n")
        workdir: Workdir | None = runner.workdir(fence, folder)
        if workdir:
            workdir.here.mkdir(parents=True, exist_ok=True)
        environ = {
            "ACC_JOB_TASK_ID": str(fence.task_id),
            "ACC_ATTEMPT_ID": str(fence.attempt_id),
            "ACC_TRACE_ID": "a $b 'c'",
        }
        return Launch(fence, uuid.uuid4(), folder, workdir, environ)

    def containers(self) -> list[str]:
        return docker("ps", "-aq", "--filter", f"label={PROJECT_LABEL}={self.name}").split()

    def close(self) -> None:
        if containers := self.containers():
            docker("rm", "-f", "-v", *containers)
        if networks := docker("network", "ls", "-q", "--filter", f"label={PROJECT_LABEL}={self.name}").split():
            docker("network", "rm", *networks)


async def starting_without_clearance(runner: Runner, launch: Launch) -> Sequence[Fence]:
    """What has begun of an attempt when its runner asks whether it still may, as the last thing before the start."""
    asked = asyncio.Event()

    async def never() -> float:
        asked.set()
        return await asyncio.get_running_loop().create_future()

    starting = asyncio.ensure_future(runner.start(replace(launch, clearance=never)))
    await asyncio.wait([starting, asyncio.ensure_future(asked.wait())], return_when=asyncio.FIRST_COMPLETED)
    assert not starting.done(), "it was not asked for"
    starting.cancel()
    await asyncio.wait([starting])
    return await runner.survivors()


def _service(mode: str, entry: dict[str, Any]) -> dict[str, Any]:
    """`task` is the label accs.command, `labels` are more of them."""
    task = entry.pop("task", None)
    labels = {"accs.mode": mode, "accs.stop-grace": "0s", **entry.pop("labels", {})}
    if task is not None:
        labels["accs.command"] = orjson.dumps(task).decode().replace("$", "$$")
    return {"image": BUSYBOX, "labels": labels, **entry}


def http_service(folder: Path, program: str) -> dict[str, Any]:
    """What compose needs to start one: its text in a folder that is mounted, and port 8080 on this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    vendor(folder, force=True)
    (folder / "service.py").write_text(program)
    return {
        "image": PYTHON,
        "command": ["python3", "-B", "/service/service.py", "--serve", ":8080"],
        "network_mode": "bridge",
        "ports": ["127.0.0.1::8080"],
        "stop_grace_period": "1s",
        "volumes": [f"{folder}:/service:ro"],
        "labels": {"accs.port": "8080"},
    }


class Engine:
    def __init__(self) -> None:
        # A socket's path has at most 107 characters: not in pytest's folder.
        self._folder = tempfile.TemporaryDirectory(prefix="accsd-engine-", ignore_cleanup_errors=True)
        self.root = Path(self._folder.name)
        self.host = f"unix://{self.root}/sock"
        self.environ = {**os.environ, "DOCKER_HOST": self.host}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        own = ["--data-root", "data", "--exec-root", "exec", "--pidfile", "pid"]
        paths = [str(self.root / part) if not part.startswith("--") else part for part in own]
        with (self.root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["unshare", "--net", "--mount", "dockerd", *paths, "-H", self.host, "--iptables=false"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        eventually_sync(self._answers, within=30, interval=0.1, what="an answer of the second engine")

    def load(self, image: str) -> None:
        saved = subprocess.run(["docker", "save", image], capture_output=True, check=True, timeout=60)
        subprocess.run(
            ["docker", "load"], input=saved.stdout, capture_output=True, env=self.environ, check=True, timeout=60
        )

    def end(self, how: signal.Signals) -> None:
        """TERM stops its containers first; KILL leaves them to themselves until the next start."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(timeout=60)
        # The next one would take a containerd that is just dying with its parent for a living one.
        containerd = self.root / "exec/containerd/containerd.pid"
        if containerd.exists():
            pid = int(containerd.read_text())
            eventually_sync(lambda: not proc.is_running(pid), within=10, what="the end of containerd")
            containerd.unlink(missing_ok=True)
        (self.root / "pid").unlink(missing_ok=True)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.end(signal.SIGTERM)
        self._kill_shims()
        self._folder.cleanup()

    def _kill_shims(self) -> None:
        """Of an engine that did not come back: they name its folder, and their children are its containers."""
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"{self.root}/".encode() in (entry / "cmdline").read_bytes():
                    children = (path.read_text().split() for path in entry.glob("task/*/children"))
                    for pid in [*chain.from_iterable(children), entry.name]:
                        os.kill(int(pid), signal.SIGKILL)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.root / "log").read_text()[-2000:]
        return subprocess.run(["docker", "version"], capture_output=True, env=self.environ, check=False).returncode == 0
