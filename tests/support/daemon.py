"""The real daemon as a child process: started, asked, killed. Its log is what it wrote to stdout, line by line."""

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
    starts = log_file.read_bytes().count(b'"started"') if log_file.exists() else 0
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            [*prefix, *ACCSD, "--role", role, "--config", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **ours, **(environ or {})},
            start_new_session=True,
        )
    daemon = Daemon(process, log_file, path, address)
    try:
        if ready:
            eventually_sync(lambda: len(daemon.log("started")) > starts or process.poll() is not None, within=20)
            assert process.poll() is None, daemon.tail()
        yield daemon
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(timeout=10)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
