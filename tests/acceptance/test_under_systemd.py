"""The units under a real systemd: installed as their README says, ready when they say so, restarted when they hang."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.support.booted import ACCSD, STAND_IN, Machine, booted, why_not
from tests.support.cluster import ROOT
from tests.support.eventually import eventually_sync

pytestmark = [pytest.mark.needs_docker, pytest.mark.xdist_group("systemd")]

DB_URL = "postgresql://accsd:pass-word@127.0.0.1:5432/accs"
# a task that runs until it is told to end
CONFIG = """
[http]
listen = "127.0.0.1:9464"
[services.wait]
runner = "process"
command = ["/bin/sh", "-c", "until [ -e /var/lib/accsd/go ]; do sleep 0.05; done"]
"""
HEALTH = "from urllib.request import urlopen; print(urlopen('http://127.0.0.1:9464/health', timeout=5).read().decode())"
# somebody who listens where the engine would, for its group only
ENGINE = """
import os, shutil, socket, time
listener = socket.create_server("/run/docker.sock", family=socket.AF_UNIX)
shutil.chown("/run/docker.sock", "root", "docker"); os.chmod("/run/docker.sock", 0o660)
while True: listener.accept()
"""


def install_steps() -> str:
    """The README's commands, but for those that need a package index: accsd is put there by other means."""
    steps = (ROOT / "systemd/README.md").read_text().partition("## Install")[2].partition("## Start")[0]
    return "\n".join(block for block in re.findall(r"```sh\n(.*?)```", steps, re.DOTALL) if "pip install" not in block)


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    if reason := why_not():
        pytest.skip(reason)
    with booted() as made:
        made.run(f"set -e; cd /opt/accsd\n{install_steps()}\nmkdir -p /opt/accsd/bin")
        for unit in ("builder", "agent"):
            made.write(f"/etc/accsd/credentials/{unit}/DB_URL", f"{DB_URL}\n", mode="600")
        made.write("/opt/accsd/bin/accsd", STAND_IN, mode="755")
        made.write("/run/engine.py", ENGINE)
        made.run("systemd-run --unit=engine python3 /run/engine.py")
        yield made


@pytest.fixture(params=["accsd-builder", "accsd-agent"])
def unit(request: pytest.FixtureRequest, machine: Machine) -> Iterator[str]:
    """One of the units, stopped before and after, impatient."""
    machine.configure(request.param, "WatchdogSec=1s", "RestartSec=100ms", "TimeoutStopSec=1s")
    yield request.param
    # what the agent's KillMode left is in its control group still
    machine.run(f"systemctl kill --signal=KILL {request.param} || true; systemctl stop {request.param}")
    machine.run("rm -f /etc/accsd/hold /etc/accsd/slow")


@pytest.mark.parametrize("unit", ["accsd-agent"], indirect=True)
def test_it_is_active_when_it_has_said_that_it_is_ready(machine: Machine, unit: str) -> None:
    machine.run("touch /etc/accsd/hold")
    machine.run(f"systemctl start --no-block {unit}")
    eventually_sync(lambda: machine.said(unit), what="the first words")
    assert machine.shown(unit, "ActiveState", "SubState") == {"ActiveState": "activating", "SubState": "start"}
    machine.run("rm /etc/accsd/hold")
    eventually_sync(lambda: machine.shown(unit, "ActiveState")["ActiveState"] == "active", what="being active")
    assert machine.shown(unit, "StatusText")["StatusText"] == f"{unit.removeprefix('accsd-')} runs"


@pytest.mark.parametrize("unit", ["accsd-builder"], indirect=True)
def test_a_process_that_hangs_is_restarted_by_the_watchdog(machine: Machine, unit: str) -> None:
    machine.run(f"systemctl start {unit}")
    hung = machine.pid(unit)
    machine.run(f"kill -STOP {hung}")
    eventually_sync(lambda: machine.pid(unit) not in (0, hung), within=10, interval=0.1, what="another process")
    assert "Watchdog timeout" in machine.run(f"journalctl --unit={unit} --no-pager")
    eventually_sync(lambda: machine.shown(unit, "ActiveState")["ActiveState"] == "active", what="being active again")


@pytest.mark.parametrize("unit", ["accsd-builder"], indirect=True)
def test_one_that_is_fed_is_left_alone_and_a_reload_reaches_it(machine: Machine, unit: str) -> None:
    machine.run(f"systemctl start {unit}")
    before = machine.pid(unit)
    machine.run("sleep 1.5")  # longer than the watchdog's limit
    machine.run(f"systemctl reload {unit}")
    eventually_sync(lambda: "reloaded" in machine.shown(unit, "StatusText")["StatusText"], what="the reload")
    assert machine.pid(unit) == before


@pytest.mark.parametrize("unit", ["accsd-agent"], indirect=True)
def test_a_stop_waits_for_a_drain_that_asked_for_its_time(machine: Machine, unit: str) -> None:
    """The drain takes two seconds, and the drop-in's TimeoutStopSec is one."""
    machine.run(f"touch /etc/accsd/slow; systemctl start {unit}; systemctl stop {unit}")
    ended = machine.shown(unit, "ActiveState", "Result", "ExecMainStatus")
    assert ended == {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"}


def test_secrets_come_as_credentials_and_not_by_the_environment(machine: Machine, unit: str) -> None:
    machine.run(f"systemctl start {unit}")
    found = machine.said(unit)[-1]
    assert found["credentials"] == ["ACC_DB_URL"]
    assert not [name for name in found["environ"] if name.startswith(("ACC_", "NOTIFY", "WATCHDOG"))]
    assert "pass-word" not in machine.run(
        f"cat /proc/{machine.pid(unit)}/environ | tr '\\0' '\\n'; systemctl show {unit}"
    )
    # nobody else, not even a process of the same user outside of the unit's folder for it
    assert machine.try_("setpriv --reuid=accsd --clear-groups cat /etc/accsd/credentials/agent/DB_URL")[0] != 0


@pytest.mark.parametrize("unit", ["accsd-builder"], indirect=True)
def test_the_builder_is_nobody_and_writes_only_its_own(machine: Machine, unit: str) -> None:
    machine.run(f"systemctl start {unit}")
    found = machine.said(unit)[-1]
    assert found["uid"] > 60000
    assert (found["writes"], found["docker"], found["sees_init"]) == (["/var/lib/accsd-builder", "/tmp"], False, False)


@pytest.mark.parametrize("unit", ["accsd-agent"], indirect=True)
def test_the_agent_writes_its_state_and_reaches_the_engine(machine: Machine, unit: str) -> None:
    machine.run(f"systemctl start {unit}")
    found = machine.said(unit)[-1]
    assert found["uid"] == int(machine.run("id -u accsd"))
    assert (found["writes"], found["docker"], found["sees_init"]) == (["/var/lib/accsd", "/tmp"], True, False)


@pytest.mark.parametrize("unit", ["accsd-agent"], indirect=True)
@pytest.mark.parametrize("how", ["crash", "restart"])
def test_an_attempt_outlives_its_agent_and_is_found_by_the_next(machine: Machine, unit: str, how: str) -> None:
    machine.run(f"systemctl start {unit}")
    before, [attempt] = machine.pid(unit), machine.said(unit)[-1]["attempts"]
    machine.run(f"kill -KILL {before}" if how == "crash" else f"systemctl restart {unit}")
    eventually_sync(lambda: machine.pid(unit) not in (0, before), what="the next agent")
    eventually_sync(lambda: machine.shown(unit, "ActiveState")["ActiveState"] == "active", what="being active again")
    assert machine.said(unit)[-1]["attempts"] == [attempt]


@pytest.fixture
def accsd(machine: Machine) -> Iterator[Machine]:
    """The machine with the real daemon in place of the one that stands in, and a database."""
    machine.start_postgres("accs")
    machine.write("/opt/accsd/bin/accsd", ACCSD, mode="755")
    machine.write("/etc/accsd/accsd.toml", CONFIG)
    machine.write("/etc/default/accsd-builder", "ACC_HTTP_LISTEN=127.0.0.1:9465\n")
    machine.run(f"ACC_DB_URL={DB_URL} /opt/accsd/bin/accsd db install")
    for unit in ("accsd-builder", "accsd-agent"):
        machine.configure(unit, "RestartSec=100ms")
    yield machine
    machine.run("systemctl stop accsd-builder accsd-agent")
    machine.write("/opt/accsd/bin/accsd", STAND_IN, mode="755")


def test_a_job_is_done_by_both_units_though_the_agent_is_killed(accsd: Machine) -> None:
    accsd.run("systemctl enable --now accsd-builder accsd-agent")
    accsd.sql(
        """INSERT INTO workflows (name, version, steps) VALUES ('w', 1, '[{"key": "only", "service": "wait"}]')"""
    )
    accsd.sql("INSERT INTO jobs (workflow_id) SELECT id FROM workflows")
    state = "SELECT status, attempt_id FROM job_tasks"
    eventually_sync(lambda: accsd.sql(state) == "running|1", within=20, interval=0.2, what="a task that runs")
    accsd.run("systemctl kill --kill-whom=main --signal=KILL accsd-agent")
    adopted = (
        'journalctl --sync; journalctl --unit=accsd-agent --output=cat --no-pager | grep -c \'"action":"adopted"\''
    )
    eventually_sync(lambda: accsd.try_(adopted)[1] == "1", within=20, interval=0.2, what="the adoption of the attempt")
    health = json.loads(accsd.run(f'python3 -c "{HEALTH}"'))
    assert (health["status"], health["listener"]["state"], health["database"]["reachable"]) == ("ok", "listening", True)
    accsd.run("touch /var/lib/accsd/go")
    eventually_sync(lambda: accsd.sql(state) == "done|1", within=20, interval=0.2, what="its end")
    accsd.run("systemctl stop accsd-agent accsd-builder")
    for unit in ("accsd-agent", "accsd-builder"):
        assert accsd.shown(unit, "ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}
