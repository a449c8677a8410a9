"""Machines of their own for the nodes of a test: network namespaces, each joined to this machine by one cable."""

import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.support.privileged import needs_network_namespaces


@dataclass(frozen=True, slots=True)
class Host:
    namespace: str
    here: str  # this machine's address on the cable

    @property
    def prefix(self) -> list[str]:
        """Before a command that is to run there; it becomes that command."""
        return ["ip", "netns", "exec", self.namespace]

    def plug(self, *, connected: bool) -> None:
        _ip("-n", self.namespace, "link", "set", "eth0", "up" if connected else "down")

    def lose_power(self, first: int) -> None:
        """kill -9 for all that runs there; `first` before the others, or it would see them die."""
        os.kill(first, signal.SIGKILL)
        for pid in _ip("netns", "pids", self.namespace).split():
            if int(pid) != first:
                os.kill(int(pid), signal.SIGKILL)


@contextmanager
def hosts(count: int) -> Generator[list[Host]]:
    needs_network_namespaces()
    with ExitStack() as resources:
        yield [resources.enter_context(_host(number)) for number in range(count)]


@contextmanager
def _host(number: int) -> Generator[Host]:
    # several runs of the tests may be under way on one machine
    tag = f"{os.getpid() % 100_000}h{number}"
    network = f"10.{128 + os.getpid() // 256 % 128}.{os.getpid() % 256}"
    host = Host(f"acc{tag}", f"{network}.{4 * number + 1}")
    _ip("netns", "add", host.namespace)
    try:
        _ip("link", "add", f"acc{tag}", "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
        _ip("addr", "add", f"{host.here}/30", "dev", f"acc{tag}")
        _ip("link", "set", f"acc{tag}", "up")
        _ip("-n", host.namespace, "addr", "add", f"{network}.{4 * number + 2}/30", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", host.namespace, "link", "set", device, "up")
        yield host
    finally:
        _ip("netns", "del", host.namespace)  # with both ends of the cable


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout
