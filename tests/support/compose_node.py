"""A node whose services are in its compose file, for tests of the whole daemon: programs for every mode, a count of
executions outside the database, neighbours that nobody may touch."""

import os
import signal
import subprocess
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson

from tests.support import daemon
from tests.support.cluster import Connection
from tests.support.compose import BUSYBOX, PYTHON, ComposeProject, http_service
from tests.support.daemon import Daemon
from tests.support.eventually import eventually, eventually_sync
from tests.support.factory import step
from tests.support.tasks import notes, toml_service

_COMPOSE = "com.docker.compose"
PREAMBLE = """
import json, os, signal, sys, time
task = json.loads((open(os.environ["ACC_TASK_FILE"]) if "ACC_TASK_FILE" in os.environ else sys.stdin).readline())
params = task["options"] | task["params"]
host = os.uname().nodename
def say(**message): print(json.dumps(message), flush=True)
def note(*words):
    with open(params["note"], "a") as file:
        file.write(" ".join([task["task_key"], str(task["attempt_id"]), *map(str, words)]) + "\\n")
"""
# Notes its beginning (and which container it is in), prints lines, waits for the file `go`, prints as many again.
WAIT = (
    PREAMBLE
    + """
lines = params.get("lines", 0)
for i in range(lines): print(f"line {i}", flush=True)
note("began", host, os.getpid())
deadline = time.monotonic() + 100
while not os.path.exists(params["go"]):
    if time.monotonic() > deadline: sys.exit("go did not appear")
    time.sleep(0.02)
for i in range(lines, 2 * lines): print(f"line {i}", flush=True)
note("ended", host, os.getpid())
say(type="result", results={"host": host, "pid": os.getpid(), "attempt": task["attempt_id"]})
"""
)
# Adds its key to what the steps before it wrote, and one to what they counted.
PASS_ON = (
    PREAMBLE
    + """
note("ran", host)
print(f"{task['task_key']} got {len(task['artifacts'])} files", flush=True)
given = [open(os.path.join(task["workdir"], artifact["path"])).read() for artifact in task["artifacts"]]
with open(os.path.join(task["workdir"], "out.txt"), "w") as file: file.write("".join(given) + task["task_key"] + " ")
say(type="artifact", path="out.txt")
say(type="result", results={"count": 1 + sum(results["count"] for results in task["inputs"].values())})
"""
)
IGNORES_TERM = (
    PREAMBLE + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nnote('began', host, os.getpid())\ntime.sleep(100)\n"
)
EATS_MEMORY = PREAMBLE + "note('began', host, os.getpid())\neaten = b'x' * 300_000_000\n"
# A program of these as a service that stays up: each task is a run of its text.
_SERVED = """
from accsd_serving import serve_if_asked
program = compile({!r}, "task", "exec")
serve_if_asked(lambda: exec(program, {{"__name__": "__main__"}}))
"""
FLOODS = PREAMBLE + "note('began', host, os.getpid())\nfor _ in range(200 * 1024): print('x' * 1023)\n"


@dataclass
class Began:
    """One execution, as it noted itself: in which container (its short id) and under which process id there."""

    key: str
    attempt: int
    host: str
    pid: int


@dataclass
class ComposeNode:
    """`environ` names another engine than this machine's."""

    folder: Path
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def __post_init__(self) -> None:
        self.name: str = f"node-{uuid.uuid4().hex[:10]}"
        self.project: ComposeProject = ComposeProject(self.folder, self.environ)
        self.shared: Path = self.folder / "shared"
        self.shared.mkdir()
        self.note: Path = self.shared / "notes"
        self.go: Path = self.shared / "go"
        self.config: str = f'[compose]\nfile = "{self.project.file}"\nproject = "{self.project.name}"\n'
        self._services: dict[str, dict[str, Any]] = {}
        self._neighbours: dict[str, str] = {}

    # Its services

    def add(self, name: str, mode: str, program: str, labels: Mapping[str, str] | None = None, **entry: Any) -> None:
        command = orjson.dumps(["python3", "-c", program]).decode()
        ours = {"accs.mode": mode, "accs.command": command, "accs.stop-grace": "1s", **(labels or {})}
        # An engine that restarts would wait ten seconds for a process 1 that does not hear SIGTERM.
        service: dict[str, Any] = {"image": PYTHON, "stop_grace_period": "0s", **entry}
        service["volumes"] = [f"{self.shared}:{self.shared}"]
        if mode == "exec":
            service = {"command": ["sleep", "3600"], "init": True, **service}
            ours.setdefault("accs.workdir", str(self.shared))
        self._services[name] = {**service, "labels": {key: text.replace("$", "$$") for key, text in ours.items()}}
        self.write()

    def add_http(self, name: str, program: str) -> None:
        service = http_service(self.folder / f"service-{name}", _SERVED.format(program))
        service["volumes"].append(f"{self.shared}:{self.shared}")
        service["labels"] |= {"accs.mode": "http", "accs.stop-grace": "1s", "accs.workdir": str(self.shared)}
        self._services[name] = service
        self.write()

    def add_process(self, name: str, program: str, **settings: Any) -> None:
        self.config += toml_service(name, program, **settings)

    def add_all_modes(self, program: str, **settings: Any) -> None:
        """Services `run`, `exec` and `process`, all doing the same."""
        self.add("run", "run", program)
        self.add("exec", "exec", program)
        self.add_process("process", program, **settings)

    def write(self) -> None:
        self.project.write(self._services)

    @contextmanager
    def daemon(self, db_url: str, *, environ: Mapping[str, str] | None = None, **options: Any) -> Generator[Daemon]:
        ours = {"DOCKER_HOST": self.environ["DOCKER_HOST"]} if "DOCKER_HOST" in self.environ else {}
        options = {"node": self.name, "config": self.config, **options}
        with daemon.running(self.folder, db_url, environ={**ours, **(environ or {})}, **options) as accsd:
            yield accsd

    # What its tasks did

    def options(self, **more: Any) -> dict[str, Any]:
        return {"note": str(self.note), "go": str(self.go), **more}

    def executions(self, key: str | None = None) -> list[Began]:
        found = [Began(note[0], int(note[1]), note[3], int(note[4])) for note in notes(self.note) if note[2] == "began"]
        return [began for began in found if key in (None, began.key)]

    def ended(self, key: str) -> list[int]:
        """The attempts that noted their end."""
        return [int(note[1]) for note in notes(self.note) if note[0] == key and note[2] == "ended"]

    async def began(self, *keys: str, attempt: int = 1) -> None:
        def there() -> bool:
            assert set(keys) <= {each.key for each in self.executions() if each.attempt == attempt}
            return True

        await eventually(there, within=60)

    # Its engine

    def docker(self, *arguments: str) -> str:
        done = subprocess.run(["docker", *arguments], capture_output=True, timeout=60, check=True, env=self.environ)
        return done.stdout.decode().strip()

    def ours(self, node: str | None = None) -> list[str]:
        """The containers that bear a node's label, running or not."""
        return self.docker("ps", "-aq", "--filter", f"label=accsd.node={node or self.name}").split()

    def of_service(self, service: str) -> list[dict[str, Any]]:
        """The long-running containers of one."""
        labels = {"project": self.project.name, "service": service, "oneoff": "False"}
        filters = [part for name, value in labels.items() for part in ("--filter", f"label={_COMPOSE}.{name}={value}")]
        ids = self.docker("ps", "-aq", *filters).split()
        return orjson.loads(self.docker("inspect", *ids)) if ids else []

    async def none_left(self, *nodes: str) -> None:
        for node in nodes or (self.name,):
            await eventually(
                lambda node=node: not self.ours(node), within=30, interval=0.1, what="an end of containers"
            )

    # Its neighbours

    def add_neighbours(self) -> None:
        """One of another project, one of the same project that bears no label of ours."""
        self._services["neighbour"] = {"image": BUSYBOX, "command": ["sleep", "3600"], "stop_grace_period": "0s"}
        self.write()
        self.docker("compose", "-p", self.project.name, "-f", str(self.project.file), "up", "-d", "neighbour")
        mine = self.of_service("neighbour")[0]["Id"]
        other = self.docker("run", "-d", "--network", "none", "--stop-timeout", "0", BUSYBOX, "sleep", "3600")
        self._neighbours = {container: self._started(container) for container in (mine, other)}

    def neighbours_are_untouched(self) -> None:
        for container, started in self._neighbours.items():
            assert self._started(container) == started

    def neighbours_are_there(self) -> None:
        """After an engine has restarted, which stops them."""
        for container in self._neighbours:
            self._started(container)

    def _started(self, container: str) -> str:
        return self.docker("inspect", "-f", "{{.State.StartedAt}}", container)

    def close(self) -> None:
        """All that bears the project's label, and the neighbours."""
        with suppress(subprocess.CalledProcessError):
            label = f"label={_COMPOSE}.project={self.project.name}"
            found = self.docker("ps", "-aq", "--no-trunc", "--filter", label)
            self.docker("rm", "-f", "-v", *found.split(), *self._neighbours)


def steps_of_all_modes() -> list[dict[str, Any]]:
    """One step for each mode, at the same time; each is called as its service is."""
    return [step(mode, mode) for mode in ("run", "exec", "process")]


def living(task: UUID, attempt: int) -> list[int]:
    """Every process of this machine, in a container or not, whose environment names the attempt."""
    wanted = {b"ACC_JOB_TASK_ID=" + str(task).encode(), b"ACC_ATTEMPT_ID=" + str(attempt).encode()}
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                found.append(int(entry.name))
    return found


def clis_of(accsd: Daemon, *arguments: str) -> list[int]:
    """The docker processes that a daemon has started and that still run, with these words among their arguments."""
    children = Path(f"/proc/{accsd.pid}/task/{accsd.pid}/children").read_text().split()
    return [int(pid) for pid in children if _is_docker(pid, arguments)]


def _is_docker(pid: str, arguments: tuple[str, ...]) -> bool:
    with suppress(OSError):
        program, *words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        return Path(program).name == "docker" and set(arguments) <= set(words)
    return False


def kill_clis(accsd: Daemon) -> list[int]:
    """All of them at once; at least one."""
    found = eventually_sync(lambda: clis_of(accsd), within=10)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


async def job_reaches(conn: Connection, job: UUID, wanted: str, *, within: float = 60) -> None:
    """Or ends otherwise: then its tasks say how."""

    async def there() -> str | None:
        status = await conn.fetchval("SELECT status FROM jobs WHERE id = $1", job)
        assert status in (wanted, "done", "error", "cancelled"), await _told(conn, job)
        return status

    reached = await eventually(there, within=within, interval=0.05)
    assert reached == wanted, await _told(conn, job)


async def _told(conn: Connection, job: UUID) -> list[tuple[Any, ...]]:
    shown = ("task_key", "status", "attempt_id", "attempt", "lost", "error_code", "error_message")
    return [tuple(task[name] for name in shown) for task in (await tasks_of(conn, job)).values()]


async def tasks_of(conn: Connection, job: UUID) -> dict[str, dict[str, Any]]:
    rows = await conn.fetch("SELECT * FROM job_tasks WHERE job_id = $1", job)
    return {row["task_key"]: dict(row) for row in rows}
