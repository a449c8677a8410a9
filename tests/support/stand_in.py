"""Stands in for the daemon in the units' test: talks to systemd as it does, and says what it finds around itself.

Runs in the container as /opt/accsd/bin/accsd. A file `hold` beside the configuration keeps it from being ready, `slow`
from stopping at once.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import anyio

from accsd.daemon.systemd import Notifier

CONFIG = Path("/etc/accsd/accsd.toml")
MARK = "ACC_TEST_ATTEMPT"


def survivors() -> list[int]:
    """Processes that an earlier one left, found as the daemon finds them: by what their environment says."""
    found: list[int] = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"{MARK}=1".encode() in Path(f"/proc/{entry}/environ").read_bytes():
                found.append(int(entry))
        except OSError:
            continue
    return found


def can_connect(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


def can_write(folder: str) -> bool:
    try:
        Path(folder, "written").write_text("")
    except OSError:
        return False
    return True


def look_around(role: str) -> dict[str, object]:
    here = sorted(survivors())
    if role == "agent" and not here:
        here = [subprocess.Popen(["sleep", "7343"], env={MARK: "1"}, start_new_session=True).pid]
    return {
        "uid": os.getuid(),
        "environ": sorted(os.environ),
        "credentials": sorted(os.listdir(os.environ["CREDENTIALS_DIRECTORY"])),
        "attempts": here,
        "docker": can_connect("/run/docker.sock"),
        "writes": [
            folder
            for folder in ("/etc", "/var/lib/accsd", "/var/lib/accsd-builder", "/tmp", "/opt", "/run")
            if can_write(folder)
        ],
        "sees_init": Path("/proc/1/status").exists(),
    }


async def main(role: str) -> None:
    notifier = Notifier.from_environ(os.environ)
    print(json.dumps(look_around(role)), flush=True)
    async with anyio.create_task_group() as group:
        group.start_soon(notifier.keep_alive)
        while CONFIG.with_name("hold").exists():  # noqa: ASYNC110 - another process's file sets no event of ours
            await anyio.sleep(0.02)
        notifier.ready(f"{role} runs")
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
            async for received in signals:
                if received is signal.SIGTERM:
                    break
                notifier.reloading()
                notifier.ready(f"{role} reloaded")
        notifier.stopping("draining", within=timedelta(seconds=20))
        if CONFIG.with_name("slow").exists():
            await anyio.sleep(2)
        group.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main, sys.argv[sys.argv.index("--role") + 1])
