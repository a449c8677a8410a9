"""A node whose mount vanishes is quarantined, the queue drains elsewhere, and it comes back by itself."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import daemon
from tests.support.checker import check
from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import step, submit
from tests.support.fleet import all_are, is_done, submit_many
from tests.support.privileged import mounted
from tests.support.tasks import PREAMBLE, toml_service


class Mount:
    """A file system with a model on it, that can vanish and come back."""

    def __init__(self, folder: Path) -> None:
        self.model: Path = folder / "model"
        self._held: ExitStack = ExitStack()

    def appear(self) -> None:
        self._held.enter_context(mounted(self.model.parent, "-t", "tmpfs", "-o", "size=1m", "tmpfs"))
        self.model.write_text("weights")

    def vanish(self) -> None:
        self._held.close()


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    made = Mount(tmp_path / "models")
    made.appear()
    yield made
    made.vanish()


def serving(command: list[str], **settings: object) -> str:
    lines = ["[quarantine]", 'probe = "1s"', 'longest_probe = "1s"', "[services.infer]", 'runner = "process"']
    given = {"command": command, "concurrency": 3, **settings}
    return "\n".join([*lines, *(f"{name} = {json.dumps(value)}" for name, value in given.items())])


async def quarantine(conn: Connection) -> str | None:
    return await conn.fetchval("SELECT reason FROM accs.quarantines WHERE node = 'n1' AND service = 'infer'")


async def test_a_node_whose_mount_vanishes_is_quarantined_and_comes_back_by_itself(
    tmp_path: Path, db_url: str, conn: Connection, mount: Mount
):
    model = str(mount.model)
    here = serving(["cat", model], probe=["test", "-e", model])
    with (
        daemon.running(tmp_path, db_url, role="all", node="n1", config=here) as n1,
        daemon.running(tmp_path, db_url, role="agent", node="n2", config=serving(["sleep", "0.05"])),
    ):
        await is_done(conn, await submit(conn, step("a", "infer", node="n1")))

        mount.vanish()
        jobs = await submit_many(conn, 30, step("a", "infer"))
        n1.wait_for("quarantined", node="n1", service="infer")
        await all_are(conn, jobs, "done")
        reason = await quarantine(conn)
        assert reason is not None
        assert "3 attempts in a row" in reason
        assert "node_unfit: its probe test ended with 1" in reason
        spent = await conn.fetchrow("SELECT sum(attempt) AS spent, sum(lost) AS lost FROM job_tasks")
        assert spent is not None
        assert (spent["spent"], spent["lost"]) == (0, 3)
        (await Cli(db_url).process("nodes")).ends(0, "in quarantine")

        only_here = await submit(conn, step("a", "infer", node="n1"))
        n1.wait_for("probe_failed", service="infer")
        (await Cli(db_url).process("why", str(only_here))).ends(
            0, "infer on node n1 is in quarantine", "accsd nodes resume n1"
        )
        mount.appear()
        await is_done(conn, only_here)
        await eventually(lambda: _gone(conn), within=10)
        await all_are(conn, await submit_many(conn, 3, step("a", "infer", node="n1")), "done")
        await check(conn)


async def test_tasks_that_remove_the_folder_of_their_own_attempt_take_the_service_off_no_node(
    tmp_path: Path, db_url: str, conn: Connection
):
    program = PREAMBLE + "if params.get('bad'):\n    import shutil; shutil.rmtree(os.path.dirname(os.getcwd()))\n"
    config = toml_service("infer", program)
    with daemon.running(tmp_path, db_url, role="all", config=config, environ={"ACC_BACKOFF_BASE_SEC": "0.1"}):
        bad = await submit_many(conn, 3, step("a", "infer", max_attempts=5), options={"bad": True})
        await all_are(conn, bad, "error")
        await is_done(conn, await submit(conn, step("a", "infer")))
        assert await conn.fetchval("SELECT count(*) FROM accs.quarantines") == 0
        assert await conn.fetchval("SELECT sum(lost) FROM job_tasks") == 0


async def _gone(conn: Connection) -> bool:
    return await quarantine(conn) is None
