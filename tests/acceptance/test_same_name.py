"""Two machines with one name, as cloned disks have it: the second is refused while the first is there."""

from pathlib import Path
from uuid import UUID

from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import step, submit
from tests.support.tasks import NOTE, WAIT, notes, toml_service

LEASE = {"ACC_HEARTBEAT_TTL_SEC": "4"}


async def test_a_clone_of_a_node_is_refused_and_harms_nothing(tmp_path: Path, db_url: str, conn: Connection):
    config, note, go = toml_service("render", WAIT), tmp_path / "notes", tmp_path / "go"
    options = {"note": str(note), "go": str(go)}
    one, two = ({**LEASE, "ACC_BOOT_ID": boot} for boot in ("boot-one", "boot-two"))
    with (
        daemon.running(tmp_path / "control", db_url, role="builder", node="control", environ=LEASE),
        daemon.running(tmp_path / "one", db_url, role="agent", node="render-3", config=config, environ=one) as original,
    ):
        job = await submit(conn, step("a"), options=options)
        await eventually(lambda: bool(notes(note)), within=30)
        with daemon.running(
            tmp_path / "two", db_url, role="agent", node="render-3", config=config, environ=two, http=True
        ) as clone:
            await eventually(lambda: said_by(clone, "boot-one"), within=30)
            await eventually(lambda: "is taken" in str(clone.health()), within=10)
            go.touch()
            await done(conn, job)
            assert await conn.fetchval("SELECT attempt_id FROM job_tasks") == 1, "nobody took it for a leftover"
            assert original.stop() == 0
            await done(conn, await submit(conn, step("a"), options=options))  # after its goodbye the name is free
            assert await conn.fetchval("SELECT boot_id FROM nodes WHERE name = 'render-3'") == "boot-two"
            assert clone.stop() == 0
    await check(conn)


async def test_a_node_that_was_removed_by_mistake_registers_again(tmp_path: Path, db_url: str, conn: Connection):
    with daemon.running(tmp_path, db_url, config=toml_service("render", NOTE), environ=LEASE) as accsd:
        accsd.wait_for("node_registered")
        await conn.execute("DELETE FROM nodes")
        accsd.wait_for("node_registered", times=2)
        await done(conn, await submit(conn, step("a"), options={"note": str(tmp_path / "notes")}))


def said_by(clone: daemon.Daemon, word: str) -> bool:
    return any("is taken" in str(line) and word in str(line) for line in clone.log())


async def done(conn: Connection, job: UUID) -> None:
    async def there() -> bool:
        return await conn.fetchval("SELECT status FROM jobs WHERE id = $1", job) == "done"

    await eventually(there, within=60)
