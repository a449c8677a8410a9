"""What only the store of files can do wrong: links, modes, leftovers, and which store the settings mean."""

import os
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from accsd.errors import ConfigError, InvalidValue, NotFound, StorageUnavailable
from accsd.settings import StorageSettings
from accsd.storage import open_store
from accsd.storage.file import FileStore


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state" / "objects"


@pytest.fixture
def store(root: Path) -> FileStore:
    return FileStore(root, "accs")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(b"secret")
    return folder


async def test_objects_and_folders_are_private(store: FileStore, root: Path):
    old = os.umask(0)
    try:
        await store.put_bytes("outputs/1/a", b"x")
    finally:
        os.umask(old)

    assert (root / "outputs/1/a").stat().st_mode & 0o777 == 0o600
    for folder in (root, root / "outputs", root / "outputs/1", root / ".incoming"):
        assert folder.stat().st_mode & 0o777 == 0o700


async def test_a_link_among_the_folders_is_not_followed(store: FileStore, root: Path, outside: Path):
    await store.check()
    (root / "outputs").symlink_to(outside)

    with pytest.raises(InvalidValue):
        await store.put_bytes("outputs/new", b"x")
    for call in (store.get_bytes("outputs/secret"), store.stat("outputs/secret")):
        with pytest.raises(NotFound):
            await call
    await store.delete("outputs/secret")

    assert [listed async for listed in store.list()] == []
    assert os.listdir(outside) == ["secret"]


async def test_a_link_in_place_of_an_object_is_replaced_and_never_read(store: FileStore, root: Path, outside: Path):
    await store.put_bytes("outputs/x", b"x")
    (root / "outputs/x").unlink()
    (root / "outputs/x").symlink_to(outside / "secret")

    with pytest.raises(NotFound):
        await store.get_bytes("outputs/x")
    await store.put_bytes("outputs/x", b"new")

    assert not (root / "outputs/x").is_symlink()
    assert (outside / "secret").read_bytes() == b"secret"


async def test_the_folder_of_what_is_being_written_is_no_place_for_objects(store: FileStore):
    for call in (store.put_bytes(".incoming/x", b""), store.delete(".incoming/x")):
        with pytest.raises(InvalidValue):
            await call


async def test_deleting_the_last_object_removes_its_empty_folders(store: FileStore, root: Path):
    await store.put_bytes("outputs/1/render/2/a", b"x")
    await store.put_bytes("outputs/1/b", b"x")

    await store.delete("outputs/1/render/2/a")

    assert os.listdir(root / "outputs/1") == ["b"]


async def test_a_put_does_not_mind_that_its_folder_is_being_removed(store: FileStore):
    async def put_and_delete(name: str) -> None:
        for _ in range(60):
            await store.put_bytes(f"outputs/1/{name}", b"x")
            await store.delete(f"outputs/1/{name}")

    async with anyio.create_task_group() as group:
        for name in "abcd":
            group.start_soon(put_and_delete, name)


async def test_a_crash_leaves_a_file_that_a_later_start_removes(store: FileStore, root: Path):
    await store.check()
    for name, age in (("old", 3 * 86400), ("new", 0)):
        (root / ".incoming" / name).write_bytes(b"half")
        then = time.time() - age
        os.utime(root / ".incoming" / name, (then, then))

    await store.check()

    assert os.listdir(root / ".incoming") == ["new"]


async def test_one_object_cannot_lie_inside_another(store: FileStore):
    await store.put_bytes("outputs/a", b"x")
    await store.put_bytes("outputs/b/c", b"x")

    for key in ("outputs/a/b", "outputs/b"):
        with pytest.raises(InvalidValue, match=key):
            await store.put_bytes(key, b"x")
    with pytest.raises(NotFound):
        await store.get_bytes("outputs/b")


async def test_a_folder_that_cannot_be_used_is_the_settings_fault():
    with pytest.raises(ConfigError, match="storage folder /sys/accsd") as caught:
        await FileStore(Path("/sys/accsd"), "accs").check()  # where nobody can make one
    assert "storage.url" in (caught.value.hint or "")


async def test_a_folder_that_is_a_file_does_not_work(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageUnavailable):
        await FileStore(tmp_path / "file", "accs").check()


async def test_the_url_names_the_folder_percent_encoded(tmp_path: Path):
    async with open_store(StorageSettings(url=f"file://{tmp_path}/with%20blank", bucket="studio")) as store:
        await store.put_bytes("a", b"x")

    assert store.bucket == "studio"
    assert (tmp_path / "with blank" / "a").read_bytes() == b"x"


async def test_where_nothing_is_configured_the_default_folder_is_used(tmp_path: Path):
    async with open_store(StorageSettings(), default_folder=tmp_path / "objects") as store:
        await store.put_bytes("a", b"x")

    assert (tmp_path / "objects" / "a").read_bytes() == b"x"
    assert store.bucket == "accs"


def test_those_who_use_files_do_not_wait_for_the_library_of_s3():
    code = "import sys, accsd.storage; sys.exit('aiobotocore' in sys.modules or 'botocore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
