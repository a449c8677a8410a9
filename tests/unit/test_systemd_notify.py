"""The daemon's side of sd_notify, against a real datagram socket."""

import os
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import anyio
import pytest

from accsd.daemon.systemd import Notifier

Manager = tuple[socket.socket, str]


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    """A socket such as systemd's, and how it would be named in the environment."""
    name = f"@accsd-test-{uuid4()}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.settimeout(5)
        bound.bind(name.replace("@", "\0"))
        yield bound, name


def told(manager: Manager) -> dict[str, str]:
    lines = manager[0].recv(4096).decode().split("\n")
    return dict(line.split("=", 1) for line in lines)


def notifier_of(manager: Manager, **environ: str) -> Notifier:
    return Notifier.from_environ({"NOTIFY_SOCKET": manager[1], **environ})


def test_ready_says_so_and_what_it_does(manager: Manager) -> None:
    assert notifier_of(manager).ready("builder, cleanup and wake run")
    assert told(manager) == {"READY": "1", "STATUS": "builder, cleanup and wake run"}


def test_a_status_of_several_lines_cannot_assign_anything_else(manager: Manager) -> None:
    notifier_of(manager).status("a pass failed:\nMAINPID=1\n")
    assert told(manager) == {"STATUS": "a pass failed: MAINPID=1"}


def test_a_long_status_is_cut(manager: Manager) -> None:
    notifier_of(manager).status("é" * 10_000)
    assert len(told(manager)["STATUS"]) == 500


def test_the_watchdog_is_fed(manager: Manager) -> None:
    notifier_of(manager).watchdog()
    assert told(manager) == {"WATCHDOG": "1"}


def test_stopping_asks_for_the_time_that_the_drain_needs(manager: Manager) -> None:
    notifier_of(manager).stopping("draining", within=timedelta(seconds=90.5))
    assert told(manager) == {"STOPPING": "1", "EXTEND_TIMEOUT_USEC": "90500000", "STATUS": "draining"}


def test_reloading_carries_the_monotonic_time(manager: Manager) -> None:
    before = time.monotonic_ns() // 1000
    notifier_of(manager).reloading()
    said = told(manager)
    assert said.pop("RELOADING") == "1"
    assert before <= int(said.pop("MONOTONIC_USEC")) <= time.monotonic_ns() // 1000
    assert not said


def test_without_a_manager_nothing_happens() -> None:
    nobody = Notifier.from_environ({})
    assert not nobody.ready()
    assert not nobody.watchdog()
    assert nobody.watchdog_interval() is None


def test_a_manager_that_went_away_is_no_error(tmp_path: Path) -> None:
    assert not Notifier.from_environ({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()


def test_a_manager_that_reads_nothing_holds_nobody_up(manager: Manager) -> None:
    nobody_reads = notifier_of(manager)
    began = time.monotonic()
    while nobody_reads.watchdog():  # until its queue is full
        pass
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("address", ["", "relative/path", "vsock:2:1234"])
def test_an_address_of_another_kind_is_not_used(address: str) -> None:
    assert Notifier.from_environ({"NOTIFY_SOCKET": address}).address is None


def test_children_do_not_inherit_the_way_to_the_manager() -> None:
    environ = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "PATH": "/bin"}
    Notifier.from_environ(environ)
    assert environ == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("environ", "interval"),
    [
        ({"WATCHDOG_USEC": "30000000"}, timedelta(seconds=15)),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, timedelta(seconds=15)),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_fed_twice_within_its_limit(environ: dict[str, str], interval: timedelta | None) -> None:
    assert Notifier.from_environ(environ).watchdog_interval() == interval


async def test_keep_alive_feeds_the_watchdog_only_while_all_is_well(manager: Manager) -> None:
    checks: list[bool] = []

    def is_well() -> bool:
        """Well the first two times; the third check shows that the loop went on."""
        checks.append(len(checks) < 2)
        if len(checks) == 3:
            scope.cancel()
        return checks[-1]

    with anyio.fail_after(5), anyio.CancelScope() as scope:
        await notifier_of(manager, WATCHDOG_USEC="2000").keep_alive(is_well)
    assert [told(manager), told(manager)] == [{"WATCHDOG": "1"}] * 2
    manager[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        manager[0].recv(100)


async def test_keep_alive_ends_at_once_where_nobody_watches(manager: Manager) -> None:
    with anyio.fail_after(5):
        await notifier_of(manager).keep_alive()
