"""With a real logind: nobody else puts a machine at work to sleep, and who inhibits sleep or is logged in is respected.

The machine is never suspended: the container shares its kernel with whoever runs the tests.
"""

from collections.abc import Iterator

import pytest

from tests.support.booted import ACCSD, Machine, booted, why_not
from tests.support.eventually import eventually_sync

pytestmark = [pytest.mark.needs_docker, pytest.mark.xdist_group("systemd")]

ENVIRON = "ACC_DB_URL=postgresql://accsd@127.0.0.1:5432/accs ACC_NODE_NAME=n1 ACC_STATE_DIR=/srv/accsd"
CONFIG = """
[services.wait]
runner = "process"
command = ["/bin/sh", "-c", "until [ -e /srv/go ]; do sleep 0.05; done"]
"""
ASK = """
import asyncio
from accsd.power.vetoes import veto
from accsd.settings import SleepSettings
print(asyncio.run(veto(SleepSettings(), "n1", ours=int(sys.argv[1]))))
"""
LET_GO = """
import asyncio, subprocess
from datetime import timedelta
from accsd.power.inhibitor import Inhibitor

def is_listed():
    return "tasks are running" in subprocess.check_output(["systemd-inhibit", "--list"], text=True)

async def main():
    its = Inhibitor(lingers=timedelta(minutes=5))
    serving = asyncio.create_task(its.serve())
    its.want(busy=True)
    while not is_listed():
        await asyncio.sleep(0.05)
    its.want(busy=False)
    await its.let_go()
    print(is_listed(), its.pid)
    serving.cancel()
    await asyncio.wait([serving])

asyncio.run(main())
"""
# A session lasts for as long as somebody holds what logind answers: busctl does, while nobody reads what it writes.
LOG_IN = """
sleep 300 & leader=$!
logind='org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager'
hold='stdbuf -o0 busctl call'
(head -c 65536 /dev/zero
 exec $hold $logind CreateSession 'uusssssussbssa(sv)' 0 $leader test tty user '' '' 0 pts/7 '' false '' '' 0) |
sleep 300
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    if reason := why_not():
        pytest.skip(reason)
    with booted() as made:
        made.run(
            "systemctl unmask systemd-logind && systemctl start dbus.socket systemd-logind && mkdir -p /opt/accsd/bin"
        )
        made.write("/opt/accsd/bin/accsd", ACCSD, mode="755")
        made.write("/opt/accsd/bin/ask", ACCSD.partition("from accsd.cli")[0] + ASK, mode="755")
        yield made


def inhibitors(machine: Machine) -> str:
    return machine.run("systemd-inhibit --list --no-legend --no-pager")


def test_another_programs_inhibitor_and_a_person_are_vetoes(machine: Machine) -> None:
    def vetoed_by(*, ours: int = 0) -> str:
        return machine.run(f"/opt/accsd/bin/ask {ours}")

    assert vetoed_by() == "None"
    for what, mode in (("idle", "block"), ("sleep", "delay")):
        machine.run(f"systemd-run --unit={what} systemd-inhibit --what={what} --mode={mode} --who=tv sleep 300")
    eventually_sync(lambda: inhibitors(machine).count("tv") == 2, what="two inhibitors")
    assert vetoed_by() == "None", "neither keeps a machine from its sleep"
    machine.run("systemd-run --unit=backup systemd-inhibit --what=sleep:shutdown --who=borg --why='a backup' sleep 300")
    eventually_sync(lambda: "borg" in inhibitors(machine), what="the inhibitor")
    assert vetoed_by() == "borg inhibits sleep: a backup"
    assert vetoed_by(ours=machine.pid("backup")) == "None", "our own is no veto"
    machine.run("systemctl stop backup")
    machine.write("/run/log-in", LOG_IN)
    machine.run("systemd-run --unit=person sh /run/log-in")
    eventually_sync(lambda: machine.run("loginctl list-sessions --no-legend"), what="the session")
    assert vetoed_by() == "root (pts/7) is logged in"
    machine.run("systemctl stop person")
    eventually_sync(lambda: vetoed_by() == "None", what="the end of the session")


def test_logind_says_whether_a_sleep_is_under_way(machine: Machine) -> None:
    """What accsd asks after `systemctl suspend` has returned; here without one."""
    asked = "busctl get-property org.freedesktop.login1 /org/freedesktop/login1"
    assert machine.run(f"{asked} org.freedesktop.login1.Manager PreparingForSleep") == "b false"


def test_our_own_lock_is_not_in_the_way_of_a_machine_that_goes_to_sleep(machine: Machine) -> None:
    machine.write("/opt/accsd/bin/let-go", ACCSD.partition("from accsd.cli")[0] + LET_GO, mode="755")
    assert machine.run("timeout 60 /opt/accsd/bin/let-go") == "False None"


def test_a_machine_at_work_is_not_put_to_sleep_by_others(machine: Machine) -> None:
    machine.start_postgres("accs")
    machine.write("/srv/accsd.toml", CONFIG)
    machine.run(f"{ENVIRON} /opt/accsd/bin/accsd db install")
    start = f"env {ENVIRON} /opt/accsd/bin/accsd --role all --config /srv/accsd.toml"
    machine.run(f"systemd-run --unit=accsd --property=KillMode=process {start}")
    machine.sql("""INSERT INTO workflows (name, steps) VALUES ('w', '[{"key": "only", "service": "wait"}]')""")
    machine.sql("INSERT INTO jobs (workflow_id) SELECT id FROM workflows")
    eventually_sync(lambda: "accsd" in inhibitors(machine), within=20, interval=0.1, what="the inhibitor")
    listed = inhibitors(machine)
    assert ("sleep" in listed, "block" in listed, "tasks are running" in listed) == (True, True, True)
    machine.run("touch /srv/go")
    eventually_sync(
        lambda: "accsd" not in inhibitors(machine), within=20, interval=0.1, what="its end, a while after the last task"
    )
    assert machine.sql("SELECT status FROM job_tasks") == "done"

    machine.run("rm /srv/go")
    machine.sql("INSERT INTO jobs (workflow_id) SELECT id FROM workflows")
    eventually_sync(lambda: "accsd" in inhibitors(machine), within=20, interval=0.1, what="the inhibitor")
    machine.run("systemctl kill --kill-whom=main --signal=KILL accsd")
    eventually_sync(lambda: "accsd" not in inhibitors(machine), interval=0.1, what="its end with the daemon")
    machine.run("touch /srv/go")
    assert machine.try_("grep --files-with-matches --line-regexp cat /proc/[0-9]*/comm")[1] == "", "nobody is left"
