"""`accsd doctor --cycle` with a real agent, which goes to sleep (is stopped, as a suspend would do it) and is woken."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import daemon
from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.daemon import Daemon
from tests.support.eventually import eventually

SERVICE = '[services.render]\nrunner = "process"\ncommand = ["true"]\n'


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


class Machine:
    """A node whose sleep is SIGSTOP for its agent, and whose wake is SIGCONT."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder: Path = folder
        self.url: str = url
        self.pid: Path = folder / "pid"
        self.sleep: Path = script(folder / "sleep.sh", f"echo $PPID > {self.pid}\nkill -STOP $PPID")
        self.wake: Path = script(folder / "wake.sh", f"kill -CONT $(cat {self.pid})")
        self.config: str = (
            f'poll_sec = 1\n[node]\nwake_method = "script"\nscript = "{self.wake}"\n'
            f'[sleep]\nmethod = "script"\nscript = "{self.sleep}"\nveto_files = ["{folder}/stay"]\n'
            f"veto_users = false\nveto_inhibitors = false\n{SERVICE}"
        )

    def control(self) -> list[str]:
        """The settings of the control host."""
        path = self.folder / "control.toml"
        path.write_text(f'[wake]\nscript_dir = "{self.folder}"\nboot = "20s"\n[node]\nstate_dir = "{self.folder}/c"\n')
        return ["--config", str(path)]


@pytest.fixture
def machine(tmp_path: Path, db_url: str) -> Machine:
    return Machine(tmp_path, db_url)


@pytest.fixture
def agent(machine: Machine) -> Iterator[Daemon]:
    with daemon.running(machine.folder, machine.url, role="agent", config=machine.config) as running:
        yield running


async def test_a_node_goes_to_sleep_and_comes_back_each_step_with_its_time(
    machine: Machine, agent: Daemon, conn: Connection
):
    (machine.folder / "stay").touch()
    cli = Cli(machine.url)
    await eventually(lambda: conn.fetchval("SELECT awake_state = 'awake' FROM nodes"), within=20)
    kept = await cli(*machine.control(), "nodes", "sleep", "n1")
    kept.ends(1, f"n1 stays awake: {machine.folder}/stay is there", "`accsd nodes show n1`")
    (machine.folder / "stay").unlink()
    said = await cli(*machine.control(), "doctor", "--node", "n1", "--cycle", "--yes", "--settle", "3s")
    steps = [line for line in said.ends(0).out.splitlines() if " cycle " in line]
    told = ("is asked to sleep: it goes to sleep", "says that it sleeps", "called by script", "n1 is awake again, ")
    assert [word in line for word, line in zip(told, steps, strict=True)] == [True] * 4, said
    said_goodbye, *others = await conn.fetch(
        "SELECT state, message FROM accs.node_history WHERE id >= (SELECT max(id) FROM accs.node_history"
        " WHERE state = 'asleep') ORDER BY id"
    )
    assert "asked for it" in said_goodbye["message"]
    # the node may be seen before the call is written down
    assert sorted(row["message"].split(",")[0].split(" for ")[0] for row in others) == [
        "it is there",
        "node n1 woken by script",
    ]
    assert await conn.fetchval("SELECT state FROM accs.power") == "ready"
    assert agent.process.poll() is None
