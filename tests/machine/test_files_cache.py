"""Files of workflows on a node: fetched once, found damaged, removed when room is needed; from a folder and from S3."""

import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from accsd.errors import NotFound
from accsd.settings import StorageSettings
from accsd.storage import ChecksumMismatch, ObjectStore, build_file_key, open_store
from accsd.work.cache import FileCache
from tests.support.objectstore import S3Server


class Counting:
    """A store that counts what is fetched from it, and may be held up."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.fetched: list[str] = []
        self.begun: anyio.Event = anyio.Event()
        self.go: anyio.Event = anyio.Event()
        self.go.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get_to(self, key: str, *given: Any, **named: Any) -> Any:
        self.fetched.append(key)
        self.begun.set()
        await self.go.wait()
        return await self._store.get_to(key, *given, **named)


@pytest.fixture(params=["file", "s3"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    if request.param == "file":
        settings = StorageSettings(url=f"file://{tmp_path}/objects")
    else:
        server: S3Server = request.getfixturevalue("s3_server")
        settings = server.settings()
    async with open_store(settings) as opened:
        yield Counting(opened)


@pytest.fixture
def cache(tmp_path: Path) -> FileCache:
    return FileCache(tmp_path / "files", limit=2**30)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def put(store: Any, data: bytes) -> str:
    digest = sha256(data)
    await store.put_bytes(build_file_key(digest), data)
    return digest


async def read(cache: FileCache, store: Any, digest: str, size: int) -> bytes:
    with cache.using([digest]):
        found = await cache.opened(store, build_file_key(digest), digest, size)
        try:
            return os.read(found, size + 1)
        finally:
            os.close(found)


def kept(tmp_path: Path) -> set[str]:
    return set(os.listdir(tmp_path / "files"))


async def test_a_file_is_fetched_once(store: Any, cache: FileCache, tmp_path: Path):
    digest = await put(store, b"model")
    assert await read(cache, store, digest, 5) == await read(cache, store, digest, 5) == b"model"
    another = FileCache(tmp_path / "files", limit=2**30)  # after a restart, or of another node of this machine
    assert await read(another, store, digest, 5) == b"model"
    assert store.fetched == [build_file_key(digest)]
    assert kept(tmp_path) == {digest}


async def test_two_at_the_same_time_wait_for_one_download_that_appears_when_it_is_complete(
    store: Any, cache: FileCache, tmp_path: Path
):
    digest = await put(store, b"model")
    store.go = anyio.Event()
    got: list[bytes] = []

    async def one() -> None:
        got.append(await read(cache, store, digest, 5))

    async with anyio.create_task_group() as group:
        group.start_soon(one)
        group.start_soon(one)
        await store.begun.wait()
        await anyio.wait_all_tasks_blocked()
        assert digest not in kept(tmp_path)
        store.go.set()
    assert got == [b"model", b"model"]
    assert len(store.fetched) == 1


async def test_who_waited_for_a_download_that_was_given_up_fetches_it_himself(store: Any, cache: FileCache):
    digest = await put(store, b"model")
    store.go = anyio.Event()
    scope = anyio.CancelScope()
    got: list[bytes] = []

    async def gives_up() -> None:
        with scope:
            await read(cache, store, digest, 5)

    async def waits() -> None:
        got.append(await read(cache, store, digest, 5))

    async with anyio.create_task_group() as group:
        group.start_soon(gives_up)
        await store.begun.wait()
        group.start_soon(waits)
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
        store.go.set()
    assert got == [b"model"]
    assert len(store.fetched) == 2


async def test_a_file_that_was_written_to_is_replaced(store: Any, cache: FileCache, tmp_path: Path):
    digest = await put(store, b"model")
    await read(cache, store, digest, 5)
    file = tmp_path / "files" / digest
    file.chmod(0o600)
    file.write_bytes(b"MODEL")
    assert await read(cache, store, digest, 5) == b"model"
    assert len(store.fetched) == 2


async def test_a_file_that_rotted_unseen_is_found_by_the_next_process(store: Any, cache: FileCache, tmp_path: Path):
    digest = await put(store, b"model")
    await read(cache, store, digest, 5)
    file = tmp_path / "files" / digest
    before = file.stat()
    file.chmod(0o600)
    file.write_bytes(b"mobel")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert await read(FileCache(tmp_path / "files", limit=2**30), store, digest, 5) == b"model"


async def test_an_object_that_is_gone_or_another_one_leaves_nothing(store: Any, cache: FileCache, tmp_path: Path):
    digest = sha256(b"model")
    with pytest.raises(NotFound):
        await read(cache, store, digest, 5)
    await store.put_bytes(build_file_key(digest), b"other")
    with pytest.raises(ChecksumMismatch):
        await read(cache, store, digest, 5)
    assert kept(tmp_path) == set()
    assert len(store.fetched) == 3, "what came damaged is asked for once more"


async def test_what_was_not_used_for_longest_goes_first_and_never_what_is_in_use(
    store: Any, cache: FileCache, tmp_path: Path
):
    a, b, c, d = [await put(store, letter * 100) for letter in (b"a", b"b", b"c", b"d")]
    cache.limit = 300
    for age, digest in enumerate((b, a, c)):
        await read(cache, store, digest, 100)
        file = tmp_path / "files" / digest
        os.utime(file, ns=(10**18 + age, file.stat().st_mtime_ns))
    with cache.using([b]):
        await read(cache, store, d, 100)
    assert kept(tmp_path) == {b, c, d}
    cache.limit = 0
    with cache.using([c]):
        assert cache.make_room()
    assert kept(tmp_path) == {c}
    assert cache.make_room()
    assert not cache.make_room()
    assert kept(tmp_path) == set()


async def test_a_disk_that_others_need_is_given_back(store: Any, cache: FileCache, tmp_path: Path):
    digest = await put(store, b"model")
    await read(cache, store, digest, 5)
    cache.min_free = 2**60
    assert cache.make_room()
    assert kept(tmp_path) == set()


async def test_what_an_earlier_process_began_to_fetch_is_removed_after_days(cache: FileCache, tmp_path: Path):
    (tmp_path / "files").mkdir()
    for name in (".old.part", ".young.part"):
        (tmp_path / "files" / name).write_bytes(b"x")
    os.utime(tmp_path / "files" / ".old.part", (0, 0))
    cache.make_room()
    assert kept(tmp_path) == {".young.part"}
