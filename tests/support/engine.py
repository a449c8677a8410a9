"""A Docker engine of a test's own, which may be stopped and killed: in namespaces, with folders of its own.

Two engines in one network namespace delete each other's bridge; so this one gets one of its own.
"""

import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from itertools import chain
from pathlib import Path

from accsd import proc
from tests.support.eventually import eventually_sync


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
