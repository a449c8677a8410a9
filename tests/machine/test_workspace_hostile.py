"""A task that does its worst: links, pipes and devices among its files, and trees that resist removal."""

import errno
import os
import socket
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from accsd.errors import AttemptFailed
from accsd.model.outcome import ErrorCode
from accsd.runners.base import Workdir
from accsd.settings import StorageSettings
from accsd.storage import ObjectStore, local, open_store
from accsd.work.files import take_output
from accsd.work.workspace import remove_folder, remove_tree
from tests.support.privileged import NOBODY, as_nobody, mounted, needs_root, tiny_disk

JOB = UUID(int=1)


@pytest.fixture(params=["openat2", "stepwise"])
def way_of_opening(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on this kernel, and as on one that does not know openat2."""

    def unknown(*_: object) -> int:
        raise OSError(errno.ENOSYS, "not implemented")

    if request.param == "stepwise":
        monkeypatch.setattr(local, "_openat2", unknown)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ObjectStore]:
    async with open_store(StorageSettings(url=f"file://{tmp_path}/objects")) as opened:
        yield opened


@pytest.fixture
def workdir(tmp_path: Path) -> Workdir:
    """With `out`, `folder/out` and, outside of it, `secret/out`."""
    work = tmp_path / "attempt" / "work"
    for folder in (work / "folder", tmp_path / "secret"):
        folder.mkdir(parents=True)
        (folder / "out").write_bytes(b"secret" if folder.name == "secret" else b"harmless")
    return Workdir(work, "/container/work")


async def refused(store: ObjectStore, workdir: Workdir, path: str) -> str:
    with pytest.raises(AttemptFailed) as failed:
        await take_output(store, workdir, JOB, "render", 3, path)
    assert failed.value.code == ErrorCode.ARTIFACT_MISSING
    assert [listed async for listed in store.list()] == []
    assert failed.value.message.isprintable()
    return failed.value.message


@pytest.mark.usefixtures("way_of_opening")
@pytest.mark.parametrize(
    ("link", "target", "path"),
    [
        ("out", "../../secret/out", "out"),
        ("out", "folder/out", "out"),
        ("sub", "../../secret", "sub/out"),
        ("sub", "folder", "sub/out"),
        ("sub", "/", "sub/etc/passwd"),
        ("out", "nowhere", "out"),
        ("out", "/proc/self/environ", "out"),
    ],
)
async def test_no_link_is_followed_at_any_place(
    store: ObjectStore, workdir: Workdir, link: str, target: str, path: str
):
    (workdir.here / link).symlink_to(target)

    assert "link" in await refused(store, workdir, path)


@pytest.mark.usefixtures("way_of_opening")
@pytest.mark.parametrize(
    "path",
    [
        "../../secret/out",
        "folder/../../../secret/out",
        "folder/../folder/out",
        "..",
        ".",
        "",
        "/",
        "/etc/passwd",
        "/container/work",
        "/container/workshop/out",
        "/container/work/../../secret/out",
        "nothing",
        "folder/nothing",
        "folder/out/more",
        "folder",
        "folder/",
        "fol\0der/out",
        "fol\nder/out",
        "fol\\der",
        "\ud800",
        "x" * 300,
        "/".join(["x" * 200] * 6),
    ],
)
async def test_only_files_beneath_the_folder_are_taken(store: ObjectStore, workdir: Workdir, path: str):
    await refused(store, workdir, path)


async def test_the_path_on_this_machine_is_not_one_that_a_container_may_name(store: ObjectStore, workdir: Workdir):
    assert "outside" in await refused(store, workdir, str(workdir.here / "folder/out"))


async def test_a_folder_that_was_replaced_by_a_link_is_not_entered(
    store: ObjectStore, workdir: Workdir, tmp_path: Path
):
    workdir.here.rename(tmp_path / "moved")
    workdir.here.symlink_to(tmp_path / "secret")

    await refused(store, workdir, "out")


@pytest.mark.usefixtures("way_of_opening")
async def test_a_pipe_is_refused_without_waiting_for_a_writer(store: ObjectStore, workdir: Workdir):
    os.mkfifo(workdir.here / "out")

    assert "a pipe" in await refused(store, workdir, "out")


async def test_a_socket_is_refused(store: ObjectStore, workdir: Workdir, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(workdir.here)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("out")
        assert "a socket" in await refused(store, workdir, "out")


@pytest.mark.usefixtures("way_of_opening")
async def test_a_device_is_refused_and_not_even_opened(store: ObjectStore, workdir: Workdir):
    needs_root()
    # No driver has this number: to open it would fail with ENXIO, and the message would say so.
    os.mknod(workdir.here / "out", stat.S_IFCHR | 0o666, os.makedev(240, 250))

    assert "a device" in await refused(store, workdir, "out")


@pytest.mark.usefixtures("way_of_opening")
@pytest.mark.parametrize("path", ["out", "folder/out"])
async def test_a_file_that_is_swapped_for_a_link_all_the_time_never_leads_outside(
    store: ObjectStore, workdir: Workdir, tmp_path: Path, path: str
):
    (workdir.here / "out").write_bytes(b"harmless")
    place = path.partition("/")[0]
    stop = threading.Event()

    def swap() -> None:
        good, spare, bad = workdir.here / place, tmp_path / "spare", tmp_path / "bad"
        bad.symlink_to(tmp_path / "secret" / ("out" if place == "out" else ""))
        while not stop.is_set():
            good.rename(spare)
            bad.rename(good)
            good.rename(bad)
            spare.rename(good)

    swapping = threading.Thread(target=swap)
    swapping.start()
    taken = failed = 0
    try:
        while (taken < 20 or failed < 20) and taken + failed < 2000:
            try:
                stored = await take_output(store, workdir, JOB, "render", 3, path)
            except AttemptFailed:
                failed += 1
            else:
                assert await store.get_bytes(stored.key) == b"harmless"
                taken += 1
    finally:
        stop.set()
        swapping.join()
    assert taken
    assert failed


# Removal


def files_in(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


async def test_a_folder_goes_with_everything_in_it_and_nothing_else(tmp_path: Path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").touch()
    folder = tmp_path / "attempt"
    (folder / "work/a/b").mkdir(parents=True)
    (folder / "work/a/file").touch()
    (folder / "work/a/link").symlink_to(tmp_path / "outside")
    (folder / "work/link").symlink_to(tmp_path / "outside/file")
    (folder / "task.json").touch()
    os.mkfifo(folder / "work/pipe")

    assert await remove_folder(folder)
    assert await remove_folder(folder)

    assert os.listdir(tmp_path) == ["outside"]
    assert os.listdir(tmp_path / "outside") == ["file"]


async def test_a_link_in_place_of_the_folder_is_all_that_goes(tmp_path: Path):
    (tmp_path / "outside/kept").mkdir(parents=True)
    (tmp_path / "attempt").symlink_to(tmp_path / "outside")

    assert await remove_folder(tmp_path / "attempt")

    assert os.listdir(tmp_path) == ["outside"]
    assert os.listdir(tmp_path / "outside") == ["kept"]


async def test_a_tree_deeper_than_any_path_is_removed(tmp_path: Path):
    (tmp_path / "attempt").mkdir()
    current = os.open(tmp_path / "attempt", os.O_RDONLY)
    for _ in range(1200):  # more than descriptors, stack and PATH_MAX allow
        os.mkdir("d" * 20, dir_fd=current)
        deeper = os.open("d" * 20, os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = deeper
    os.close(current)

    assert await remove_folder(tmp_path / "attempt")
    assert os.listdir(tmp_path) == []


def test_read_only_folders_do_not_resist_their_owner(tmp_path: Path):
    def resists() -> bool:
        os.makedirs("attempt/work/a/b/c")
        for path in ("attempt/work/a/b/c/file", "attempt/work/a/file"):
            with open(path, "w"):
                pass
        os.chmod("attempt/work/a/b/c", 0o000)
        os.chmod("attempt/work/a/b", 0o555)
        os.chmod("attempt/work/a", 0o000)
        return remove_tree(Path("attempt")) == {} and not os.path.exists("attempt")

    tmp_path.chmod(0o777)
    assert as_nobody(tmp_path, resists)


def test_what_belongs_to_root_stays_and_is_told(tmp_path: Path):
    tmp_path.chmod(0o777)
    (tmp_path / "attempt/work/roots").mkdir(parents=True)
    (tmp_path / "attempt/work/roots/file").touch()
    (tmp_path / "attempt/work/mine").touch()
    for path in ("attempt", "attempt/work", "attempt/work/mine"):
        os.chown(tmp_path / path, NOBODY, NOBODY)

    def tells() -> bool:
        left = remove_tree(Path("attempt"))
        return list(left.values()) == ["Permission denied"]

    assert as_nobody(tmp_path, tells)
    assert files_in(tmp_path / "attempt") == ["file"]
    assert remove_tree(tmp_path / "attempt") == {}


@pytest.mark.parametrize("kind", ["another file system", "a folder of this one"])
async def test_what_is_mounted_in_the_folder_is_left_alone(tmp_path: Path, kind: str):
    needs_root()
    (tmp_path / "precious").mkdir()
    place = tmp_path / "attempt/work/deep/mount"
    place.mkdir(parents=True)
    mount = tiny_disk(place) if kind == "another file system" else mounted(place, "--bind", str(tmp_path / "precious"))
    with mount as mounted_at:
        (mounted_at / "file").touch()
        (tmp_path / "attempt/work/deep/other").touch()
        assert not await remove_folder(tmp_path / "attempt")
        assert files_in(tmp_path / "attempt") == ["file"]
    assert await remove_folder(tmp_path / "attempt")
