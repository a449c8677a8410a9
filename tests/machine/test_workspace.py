"""The folder of an attempt: what is laid into it, what is taken from it, and that nothing of it is left."""

import hashlib
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import pytest

from accsd import failpoints
from accsd.errors import AttemptFailed, StorageUnavailable
from accsd.model.fence import Fence
from accsd.model.outcome import ErrorCode
from accsd.model.state import ArtifactKind
from accsd.runners.base import Workdir
from accsd.settings import StorageSettings
from accsd.storage import ObjectStore, Timing, build_key, open_store
from accsd.work.files import InputArtifact, lay_inputs, take_output
from accsd.work.workspace import make_folder, write_envelope
from tests.support.cable import Cable
from tests.support.eventually import eventually
from tests.support.objectstore import S3Server, ailing, free_ports
from tests.support.privileged import tiny_disk

JOB = UUID(int=1)
KEY = Fence(UUID(int=2), 3)
BRIEF = Timing(connect=timedelta(seconds=0.3), silence=timedelta(seconds=5), request=timedelta(seconds=9), tries=1)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ObjectStore]:
    async with open_store(StorageSettings(url=f"file://{tmp_path}/objects")) as opened:
        yield opened


@pytest.fixture
async def workdir(tmp_path: Path) -> Workdir:
    (tmp_path / "attempts").mkdir()
    return Workdir(await make_folder(tmp_path / "attempts", KEY) / "work", "/box")


async def take(store: ObjectStore, workdir: Workdir, path: str, **options: Any) -> Any:
    return await take_output(store, workdir, JOB, "render", 3, path, "audio/wav", **options)


def made(step: str | None, name: str, data: bytes, **fields: Any) -> InputArtifact:
    key = fields.pop("key", None) or build_key(JOB, step or "x", "output", attempt_id=7, name=name)
    checksum = f"sha256:{hashlib.sha256(data).hexdigest()}"
    usual: dict[str, Any] = {
        "bucket": "accs",
        "size_bytes": len(data),
        "content_type": "image/png",
        "checksum": checksum,
    }
    return InputArtifact(step, ArtifactKind.OUTPUT, key=key, **(usual | fields))


# The folder


async def test_the_folder_is_private_and_the_tasks_own_is_open_to_any_container_user(tmp_path: Path):
    (tmp_path / "attempts").mkdir()
    old = os.umask(0o077)
    try:
        folder = await make_folder(tmp_path / "attempts", KEY)
        assert await make_folder(tmp_path / "attempts", KEY) == folder
        await write_envelope(folder, b'{"schema_version":1}\n')
    finally:
        os.umask(old)

    assert folder.name == f"{UUID(int=2)}.3"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "work").stat().st_mode & 0o777 == 0o777
    assert (folder / "task.json").stat().st_mode & 0o777 == 0o644
    assert (folder / "task.json").read_bytes() == b'{"schema_version":1}\n'
    assert sorted(os.listdir(folder)) == ["task.json", "work"]


# Inputs


async def test_inputs_lie_by_step_and_name_and_the_envelope_says_where(store: ObjectStore, workdir: Workdir):
    wanted = [made("frames", "a/1.png", b"one"), made("audio", "out.wav", b"two", content_type=None)]
    for artifact, data in zip(wanted, (b"one", b"two"), strict=True):
        await store.put_bytes(artifact.key, data)

    laid = await lay_inputs(store, workdir, wanted)

    assert (workdir.here / "inputs/frames/a/1.png").read_bytes() == b"one"
    assert (workdir.here / "inputs/audio/out.wav").stat().st_mode & 0o777 == 0o644
    assert (workdir.here / "inputs/frames/a").stat().st_mode & 0o777 == 0o755
    first = {"task_key": "frames", "kind": "output", "name": "a/1.png", "path": "inputs/frames/a/1.png"}
    assert laid[0] == first | {"content_type": "image/png", "size_bytes": 3}
    assert laid[1]["path"] == "inputs/audio/out.wav"


@pytest.mark.parametrize(
    ("step", "key", "path"),
    [
        (None, f"inputs/{JOB}/song.wav", "inputs/_job/song.wav"),
        (None, "uploads/2026/song.wav", "inputs/_job/song.wav"),
        ("mix", f"inputs/{JOB}/mix/song.wav", "inputs/mix/song.wav"),
        ("mix", f"outputs/{JOB}/mix/7/8/9", "inputs/mix/8/9"),
        ("mix", f"outputs/{JOB}/mix/7", "inputs/mix/7"),
        ("mix", "elsewhere/song.wav", "inputs/mix/song.wav"),
    ],
)
async def test_a_key_that_somebody_else_built_has_a_place_too(
    store: ObjectStore, workdir: Workdir, step: str | None, key: str, path: str
):
    await store.put_bytes(key, b"x")

    laid = await lay_inputs(store, workdir, [made(step, "", b"x", key=key, checksum="md5:of-another-kind")])

    assert [item["path"] for item in laid] == [path]
    assert (workdir.here / path).read_bytes() == b"x"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"key": f"outputs/{JOB}/mix/7/gone"}, "is gone"),
        ({"checksum": "sha256:" + "0" * 64}, "is damaged"),
        ({"size_bytes": 2, "checksum": None}, "is damaged"),
        ({"bucket": "another"}, "bucket another"),
    ],
)
async def test_an_input_that_cannot_be_had_is_not_the_tasks_fault(
    store: ObjectStore, workdir: Workdir, fields: dict[str, Any], said: str
):
    await store.put_bytes(made("mix", "x", b"x").key, b"x")

    with pytest.raises(AttemptFailed, match=said) as failed:
        await lay_inputs(store, workdir, [made("mix", "x", b"x", **fields)])
    assert ErrorCode(failed.value.code).is_infrastructure


@pytest.mark.parametrize(
    ("wanted", "limits"),
    [
        ([made("mix", "a", b"x"), made("mix", "b", b"x")], {"most": 1}),
        ([made("mix", "a", b"x"), made("mix", "b", b"x")], {"largest": 1}),
        ([made("mix", "a", b"x", size_bytes=None), made("mix", "b", b"x", size_bytes=None)], {"largest": 1}),
        ([made("mix", "a", b"x"), made("mix", "a", b"x")], {}),
        ([made("mix", "a", b"x"), made("mix", "a/b", b"x")], {}),
        ([made("../mix", "", b"x", key="outputs/x")], {}),
        ([made("mix", "", b"x", key="outputs/../../x")], {}),
    ],
)
async def test_inputs_that_have_no_place_fail_for_good(
    store: ObjectStore, workdir: Workdir, wanted: list[InputArtifact], limits: dict[str, Any]
):
    for name in ("a", "b"):
        await store.put_bytes(build_key(JOB, "mix", "output", attempt_id=7, name=name), b"x")

    with pytest.raises(AttemptFailed) as failed:
        await lay_inputs(store, workdir, wanted, **limits)
    assert failed.value.permanent


async def test_a_link_in_the_way_of_an_input_is_not_followed(store: ObjectStore, workdir: Workdir, tmp_path: Path):
    await store.put_bytes(made("mix", "x", b"x").key, b"x")
    (tmp_path / "outside").mkdir()
    (workdir.here / "inputs").symlink_to(tmp_path / "outside")

    with pytest.raises(AttemptFailed):
        await lay_inputs(store, workdir, [made("mix", "x", b"x")])
    assert os.listdir(tmp_path / "outside") == []


# Outputs (what is hostile about them: test_workspace_hostile.py)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("out.wav", "out.wav"),
        ("./takes//1/out.wav", "takes/1/out.wav"),
        ("/box/out.wav", "out.wav"),
        ("//box/./takes/1/out.wav", "takes/1/out.wav"),
        ("grüße.wav", "grüße.wav"),
    ],
)
async def test_an_announced_file_is_kept_under_the_attempts_key(
    store: ObjectStore, workdir: Workdir, path: str, name: str
):
    (workdir.here / name).parent.mkdir(parents=True, exist_ok=True)
    (workdir.here / name).write_bytes(b"sound")

    stored = await take(store, workdir, path)

    assert stored.key == f"outputs/{JOB}/render/3/{name}"
    assert (stored.size_bytes, stored.content_type, stored.bucket) == (5, "audio/wav", "accs")
    assert await store.get_bytes(stored.key, checksum=stored.checksum) == b"sound"


async def test_a_log_that_a_task_announces_is_never_a_segment_of_its_own_log(store: ObjectStore, workdir: Workdir):
    (workdir.here / "000001.jsonl").write_bytes(b"forged")

    stored = await take(store, workdir, "000001.jsonl", kind=ArtifactKind.LOG)

    assert stored.key == f"logs/{JOB}/render/3/files/000001.jsonl"


async def test_a_file_larger_than_allowed_is_refused(store: ObjectStore, workdir: Workdir):
    (workdir.here / "out").write_bytes(b"12345")

    with pytest.raises(AttemptFailed, match="larger") as failed:
        await take(store, workdir, "out", largest=4)
    assert failed.value.code == ErrorCode.ARTIFACT_MISSING
    assert [listed async for listed in store.list()] == []


async def test_the_failpoint_is_met_after_the_object_was_stored(store: ObjectStore, workdir: Workdir):
    (workdir.here / "out").write_bytes(b"x")
    failpoints.arm("artifact.put:raise")
    try:
        with pytest.raises(failpoints.Injected):
            await take(store, workdir, "out")
    finally:
        failpoints.arm(None)
    assert [listed.size_bytes async for listed in store.list()] == [1]


async def test_a_store_that_is_away_for_a_while_is_waited_for(s3_server: S3Server, workdir: Workdir):
    (workdir.here / "out").write_bytes(b"x")
    async with (
        ailing(s3_server.port, failures=2) as server,
        open_store(s3_server.settings(port=server.port), timing=BRIEF) as store,
    ):
        stored = await take(store, workdir, "out")
        assert await store.get_bytes(stored.key) == b"x"


async def test_a_store_that_stays_away_is_waited_for_only_so_long(s3_server: S3Server, workdir: Workdir):
    (workdir.here / "out").write_bytes(b"x")
    settings = s3_server.settings(port=free_ports(1)[0])
    async with open_store(settings, timing=BRIEF) as store:
        with anyio.fail_after(10):
            with pytest.raises(StorageUnavailable):
                await take(store, workdir, "out", patience=timedelta(seconds=1))
            with pytest.raises(StorageUnavailable):
                await lay_inputs(
                    store, workdir, [made("mix", "x", b"x", bucket=store.bucket)], patience=timedelta(seconds=1)
                )


async def test_what_is_sent_is_the_file_that_was_opened(s3_server: S3Server, workdir: Workdir, tmp_path: Path):
    (tmp_path / "secret").write_bytes(b"secret")
    (workdir.here / "out").write_bytes(b"harmless")
    async with (
        Cable.to("127.0.0.1", s3_server.port) as cable,
        open_store(s3_server.settings(port=cable.port), timing=BRIEF) as store,
    ):
        await store.check()
        cable.fall_silent()
        async with anyio.create_task_group() as group:
            group.start_soon(take, store, workdir, "out")
            await eventually(lambda: is_open(workdir.here / "out"), what="the file being opened")
            (workdir.here / "out").unlink()
            (workdir.here / "out").symlink_to(tmp_path / "secret")
            cable.flow_again()
        assert await store.get_bytes(f"outputs/{JOB}/render/3/out") == b"harmless"


def is_open(path: Path) -> bool:
    mine = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return any(os.path.islink(link) and os.readlink(link) == str(path) for link in mine)


# A full disk


async def test_a_disk_that_is_full_is_the_machines_failure_wherever_it_shows(store: ObjectStore, tmp_path: Path):
    large = made("mix", "x", bytes(2 * 1024 * 1024))
    await store.put_bytes(large.key, bytes(2 * 1024 * 1024))
    with tiny_disk(tmp_path / "disk") as disk:
        workdir = Workdir(await make_folder(disk, KEY) / "work", "/box")
        async with open_store(StorageSettings(url=f"file://{disk}/objects")) as store_on_it:
            (workdir.here / "out").write_bytes(bytes(700_000))
            for call in (
                lay_inputs(store, workdir, [large]),
                take(store_on_it, workdir, "out"),
                write_envelope(workdir.here.parent, bytes(500_000)),
            ):
                with pytest.raises(AttemptFailed) as failed:
                    await call
                assert failed.value.code == ErrorCode.AGENT_DISK
        assert os.listdir(workdir.here / "inputs/mix") == []
        assert os.listdir(disk / "objects/.incoming") == []
        assert not (workdir.here.parent / "task.json").exists()
