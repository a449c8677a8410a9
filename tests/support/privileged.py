"""What only root can set up for a test: a tiny file system, a mount, somebody else's identity."""

import os
import shutil
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
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
