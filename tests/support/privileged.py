"""What only root can set up for a test: a tiny file system, a mount, somebody else's identity, hosts with networks."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

NOBODY = 65534


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can do this")


def needs_programs(**packages: str) -> None:
    """By name, with the Debian package that has each."""
    for program, package in packages.items():
        if shutil.which(program) is None:
            pytest.skip(f"no {program} (apt-get install {package})")


def needs_network_namespaces() -> None:
    needs_root()
    needs_programs(ip="iproute2")
    done = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no network namespaces here: {done.stderr.strip()}")


@contextmanager
def mounted(target: Path, *options: str) -> Generator[Path]:
    """`mount <options> <target>`, and a umount afterwards."""
    needs_root()
    target.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(target)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"mount is not permitted here: {done.stderr.strip()}")
    inside = os.open(target, os.O_RDONLY)
    try:
        yield target
    finally:
        where = os.readlink(f"/proc/self/fd/{inside}")  # the folder around it may have been moved
        os.close(inside)
        subprocess.run(["umount", where], check=True)


@contextmanager
def tiny_disk(target: Path) -> Generator[Path]:
    """A file system of one mebibyte."""
    with mounted(target, "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
        yield target


def as_nobody(folder: Path, work: Callable[[], bool]) -> bool:
    """What `work` answers in a child without privileges, whose working folder is `folder`."""
    needs_root()
    child = os.fork()
    if child == 0:
        answer = 2
        try:
            os.chdir(folder)
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            answer = 0 if work() else 1
        finally:
            os._exit(answer)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 1), "the work failed in the child"
    return code == 0


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


@dataclass(frozen=True, slots=True)
class Lan:
    """`here` is this machine's address in the network, too."""

    network: str  # 10.64.0.0/24
    here: str
    hosts: list[Host]
    switch: str

    def address(self, number: int) -> str:
        return f"{self.here.rpartition('.')[0]}.{number + 2}"

    def mac(self, number: int) -> str:
        [link] = json.loads(_ip("-n", self.hosts[number].namespace, "-j", "link", "show", "eth0"))
        return link["address"]

    def isolate(self, *numbers: int) -> None:
        """Those reach this machine and all others, but not each other: as if the switch blocked it. The others do."""
        for number in range(len(self.hosts)):
            isolated = "on" if number in numbers else "off"
            _ip("-n", self.switch, "link", "set", f"port{number}", "type", "bridge_slave", "isolated", isolated)


@contextmanager
def hosts(count: int) -> Generator[list[Host]]:
    needs_network_namespaces()
    with ExitStack() as resources:
        yield [resources.enter_context(_host(number)) for number in range(count)]


@contextmanager
def lan(count: int) -> Generator[Lan]:
    """The switch is in a namespace of its own, where no firewall of this machine meddles."""
    needs_network_namespaces()
    tag, network = f"{os.getpid() % 100_000}", f"10.{64 + os.getpid() // 256 % 64}.{os.getpid() % 256}"
    made = Lan(
        f"{network}.0/24", f"{network}.1", [Host(f"acc{tag}l{n}", f"{network}.1") for n in range(count)], f"acc{tag}sw"
    )
    with ExitStack() as resources:
        for namespace in (made.switch, *(host.namespace for host in made.hosts)):
            _ip("netns", "add", namespace)
            resources.callback(_ip, "netns", "del", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", made.switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", made.switch, "link", "set", "br0", "up")
        _ip("link", "add", f"acc{tag}l", "type", "veth", "peer", "name", "uplink", "netns", made.switch)
        resources.callback(_ip, "link", "del", f"acc{tag}l")
        _ip("addr", "add", f"{made.here}/24", "broadcast", "+", "dev", f"acc{tag}l")
        _ip("link", "set", f"acc{tag}l", "up")
        _attach(made.switch, "uplink")
        for number, host in enumerate(made.hosts):
            _ip(
                "-n",
                host.namespace,
                "link",
                "add",
                "eth0",
                "type",
                "veth",
                "peer",
                f"port{number}",
                "netns",
                made.switch,
            )
            _ip("-n", host.namespace, "addr", "add", f"{made.address(number)}/24", "broadcast", "+", "dev", "eth0")
            _ip("-n", host.namespace, "link", "set", "eth0", "up")
            _attach(made.switch, f"port{number}")
        yield made


def _attach(switch: str, port: str) -> None:
    _ip("-n", switch, "link", "set", port, "master", "br0")
    _ip("-n", switch, "link", "set", port, "up")


@contextmanager
def _host(number: int) -> Generator[Host]:
    # several runs of the tests may be under way on one machine
    tag = f"{os.getpid() % 100_000}h{number}"
    network = f"10.{128 + os.getpid() // 256 % 128}.{os.getpid() % 256}"
    host = Host(f"acc{tag}", f"{network}.{4 * number + 1}")
    with ExitStack() as resources:
        _ip("netns", "add", host.namespace)
        resources.callback(_ip, "netns", "del", host.namespace)
        _ip("link", "add", f"acc{tag}", "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
        # with the namespace it would go too, but only some time later: the next host of that name would meet it
        resources.callback(_ip, "link", "del", f"acc{tag}")
        _ip("addr", "add", f"{host.here}/30", "dev", f"acc{tag}")
        _ip("link", "set", f"acc{tag}", "up")
        _ip("-n", host.namespace, "addr", "add", f"{network}.{4 * number + 2}/30", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", host.namespace, "link", "set", device, "up")
        yield host


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout
