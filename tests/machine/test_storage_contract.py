"""What every store promises: one suite for files and for S3, against a real server."""

import hashlib
import os
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from accsd.errors import InvalidValue, NotFound
from accsd.settings import StorageSettings
from accsd.storage import ChecksumMismatch, ObjectStore, TooLarge, open_store
from accsd.storage.base import MOST_BYTES_AT_ONCE
from tests.support.eventually import eventually
from tests.support.objectstore import S3Server

MIB = 1024 * 1024


@pytest.fixture(params=["file", "s3"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> StorageSettings:
    if request.param == "file":
        return StorageSettings(url=f"file://{tmp_path}/objects")
    server: S3Server = request.getfixturevalue("s3_server")
    return server.settings()


@pytest.fixture
async def store(settings: StorageSettings) -> AsyncIterator[ObjectStore]:
    async with open_store(settings) as opened:
        yield opened


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


async def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return sorted([listed.key async for listed in store.list(prefix)])


async def leftovers(store: Any, settings: StorageSettings) -> list[Any]:
    """What an unfinished put would leave that no listing shows."""
    if settings.url is not None and settings.url.startswith("file:"):
        return os.listdir(f"{settings.url.removeprefix('file://')}/.incoming")
    answer = await store._client.list_multipart_uploads(Bucket=store.bucket)
    return answer.get("Uploads", [])


async def test_what_was_put_comes_back_with_its_size_and_checksum(store: ObjectStore, tmp_path: Path):
    (tmp_path / "out.wav").write_bytes(b"sound")

    stored = await store.put_file("outputs/1/out.wav", tmp_path / "out.wav", content_type="audio/wav")
    fetched = await store.get_to("outputs/1/out.wav", tmp_path / "in.wav", checksum=stored.checksum)

    assert (stored.bucket, stored.key, stored.size_bytes) == (store.bucket, "outputs/1/out.wav", 5)
    assert stored.checksum == fetched.checksum == sha256(b"sound")
    assert stored.content_type == "audio/wav"
    assert (tmp_path / "in.wav").read_bytes() == b"sound"
    assert (await store.stat("outputs/1/out.wav")).size_bytes == 5


async def test_bytes_come_back_whole_and_in_parts(store: ObjectStore):
    stored = await store.put_bytes("logs/a.jsonl", b"0123456789")

    assert stored.checksum == sha256(b"0123456789")
    assert await store.get_bytes("logs/a.jsonl", checksum=stored.checksum) == b"0123456789"
    assert await store.get_bytes("logs/a.jsonl", start=3, length=4) == b"3456"
    assert await store.get_bytes("logs/a.jsonl", start=8) == b"89"
    assert await store.get_bytes("logs/a.jsonl", start=8, length=100) == b"89"
    assert await store.get_bytes("logs/a.jsonl", start=10, length=5) == b""
    assert await store.get_bytes("logs/a.jsonl", start=2, length=0) == b""


async def test_an_empty_object_is_an_object(store: ObjectStore, tmp_path: Path):
    (tmp_path / "empty").touch()

    stored = await store.put_file("outputs/empty", tmp_path / "empty")
    await store.get_to("outputs/empty", tmp_path / "back", checksum=stored.checksum)

    assert (tmp_path / "back").read_bytes() == b""
    assert await store.get_bytes("outputs/empty") == b""
    assert (await store.stat("outputs/empty")).size_bytes == 0


async def test_a_put_replaces_what_was_there(store: ObjectStore):
    await store.put_bytes("outputs/x", b"first, and longer")
    await store.put_bytes("outputs/x", b"second")

    assert await store.get_bytes("outputs/x") == b"second"
    assert await keys(store) == ["outputs/x"]


@pytest.mark.parametrize("name", ["grüße/日本 語.txt", "a b+c%20&d=e#f?.txt", "-.hidden", "~'\"*;,@:()[]{}", "é/é"])
async def test_names_are_kept_as_they_are(store: ObjectStore, tmp_path: Path, name: str):
    await store.put_bytes(f"outputs/{name}", b"x")

    assert await keys(store, "outputs/") == [f"outputs/{name}"]
    assert (await store.get_to(f"outputs/{name}", tmp_path / "back")).size_bytes == 1
    await store.delete(f"outputs/{name}")
    assert await keys(store) == []


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "a/../b", "..", "a//b", "a/", "./a", "a\0b", "a\\b", "\ud800", "a\n"]
)
async def test_what_could_mean_another_place_is_no_key(store: ObjectStore, tmp_path: Path, key: str):
    for call in (
        store.put_bytes(key, b""),
        store.get_bytes(key),
        store.stat(key),
        store.delete(key),
        store.get_to(key, tmp_path / "x"),
    ):
        with pytest.raises(InvalidValue):
            await call


async def test_a_listing_has_what_begins_with_the_prefix(store: ObjectStore):
    names = ["a/1", "a/10", "a/2/z", "a-b", "a/2-x", "b", "ab/c"]
    for name in names:
        await store.put_bytes(name, name.encode())

    assert await keys(store) == sorted(names)
    assert await keys(store, "a/") == ["a/1", "a/10", "a/2-x", "a/2/z"]
    assert await keys(store, "a/1") == ["a/1", "a/10"]
    assert await keys(store, "a/2") == ["a/2-x", "a/2/z"]
    assert await keys(store, "nothing/") == []
    assert [listed.size_bytes async for listed in store.list("b")] == [1]


async def test_a_missing_key_is_not_found(store: ObjectStore, tmp_path: Path):
    for call in (store.get_bytes("no/such"), store.stat("no/such"), store.get_to("no/such", tmp_path / "x")):
        with pytest.raises(NotFound, match="no/such"):
            await call
    assert "x" not in os.listdir(tmp_path)


async def test_deleting_twice_is_fine_and_leaves_the_neighbours(store: ObjectStore):
    await store.put_bytes("outputs/a/1", b"x")
    await store.put_bytes("outputs/b", b"x")

    await store.delete("outputs/a/1")
    await store.delete("outputs/a/1")

    assert await keys(store) == ["outputs/b"]


async def test_a_large_file_goes_in_parts_through_little_memory(store: ObjectStore, tmp_path: Path):
    data = os.urandom(MIB) * 30 + b"the end"
    (tmp_path / "large").write_bytes(data)
    expected = sha256(data)
    del data

    tracemalloc.start()
    try:
        stored = await store.put_file("outputs/large", tmp_path / "large")
        await store.get_to("outputs/large", tmp_path / "back", checksum=stored.checksum)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (stored.size_bytes, stored.checksum) == (30 * MIB + 7, expected)
    assert sha256((tmp_path / "back").read_bytes()) == expected
    assert peak < 20 * MIB  # two parts and a little


async def test_a_descriptor_is_read_from_its_beginning_and_left_open(store: ObjectStore, tmp_path: Path):
    with (tmp_path / "x").open("w+b") as file:
        file.write(b"abc")
        file.flush()
        for _ in range(2):
            assert (await store.put_file("outputs/x", file.fileno())).checksum == sha256(b"abc")
        assert file.tell() == 3


async def test_a_wrong_checksum_is_refused_and_leaves_no_file(store: ObjectStore, tmp_path: Path):
    await store.put_bytes("outputs/x", b"not what was stored")
    target = tmp_path / "fetched" / "x"
    target.parent.mkdir()

    with pytest.raises(ChecksumMismatch, match="outputs/x"):
        await store.get_to("outputs/x", target, checksum=sha256(b"what was stored"))
    with pytest.raises(ChecksumMismatch):
        await store.get_bytes("outputs/x", checksum=sha256(b"what was stored"))

    assert list(target.parent.iterdir()) == []


async def test_a_file_takes_its_name_only_when_it_is_complete(store: ObjectStore, tmp_path: Path):
    await store.put_bytes("outputs/x", b"x" * 100)
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "x").write_bytes(b"old")

    with pytest.raises(TooLarge):
        await store.get_to("outputs/x", tmp_path / "target" / "x", limit=99)

    assert [path.read_bytes() for path in (tmp_path / "target").iterdir()] == [b"old"]


async def test_the_mode_of_a_fetched_file_is_the_wanted_one(store: ObjectStore, tmp_path: Path):
    await store.put_bytes("outputs/x", b"x")

    await store.get_to("outputs/x", tmp_path / "private")
    await store.get_to("outputs/x", tmp_path / "readable", mode=0o644)

    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "readable").stat().st_mode & 0o777 == 0o644


async def test_a_put_that_fails_in_the_middle_leaves_nothing(
    store: ObjectStore, settings: StorageSettings, tmp_path: Path
):
    (tmp_path / "large").write_bytes(bytes(20 * MIB))

    with pytest.raises(TooLarge):  # which shows only after two parts
        await store.put_file("outputs/large", tmp_path / "large", limit=17 * MIB)

    assert await keys(store) == []
    assert await leftovers(store, settings) == []


async def test_a_put_that_is_cancelled_leaves_nothing(store: ObjectStore, settings: StorageSettings, tmp_path: Path):
    await store.check()
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 200 * MIB)

    async with anyio.create_task_group() as group:
        group.start_soon(store.put_file, "outputs/large", tmp_path / "large")
        await eventually(lambda: leftovers(store, settings), what="the beginning of the upload")
        group.cancel_scope.cancel()

    assert await keys(store) == []
    assert await leftovers(store, settings) == []


async def test_parallel_puts_and_deletes_do_not_disturb_each_other(store: ObjectStore):
    async def put(number: int) -> None:
        await store.put_bytes(f"outputs/{number % 4}/{number}", str(number).encode())
        await store.put_bytes("outputs/same", str(number).encode() * 1000)
        await store.delete(f"outputs/{number % 4}/{number}")
        await store.put_bytes(f"outputs/{number % 4}/{number}", str(number).encode())

    async with anyio.create_task_group() as group:
        for number in range(24):
            group.start_soon(put, number)

    for number in range(24):
        assert await store.get_bytes(f"outputs/{number % 4}/{number}") == str(number).encode()
    last = await store.get_bytes("outputs/same")
    assert last in {str(number).encode() * 1000 for number in range(24)}
    assert len(await keys(store)) == 25


async def test_more_than_fits_in_memory_is_not_read_at_once(store: ObjectStore, tmp_path: Path):
    with pytest.raises(TooLarge):
        await store.get_bytes("outputs/x", length=MOST_BYTES_AT_ONCE + 1)
    with pytest.raises(InvalidValue):
        await store.get_bytes("outputs/x", start=-1)


@pytest.mark.parametrize(
    "written", ["text/plain\r\nX-Evil: 1", "nothing", "", None, "a/b" * 200, "text/plain; charset=ü"]
)
async def test_what_is_no_content_type_is_stored_as_unknown(store: ObjectStore, written: str | None):
    stored = await store.put_bytes("outputs/x", b"x", content_type=written)

    assert stored.content_type == "application/octet-stream"


async def test_a_file_that_cannot_be_read_is_no_failure_of_the_store(store: ObjectStore, tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        await store.put_file("outputs/x", tmp_path / "not there")
    with pytest.raises(IsADirectoryError):
        await store.put_file("outputs/x", tmp_path)
    assert await keys(store) == []


async def test_a_store_that_can_be_used_says_so(store: ObjectStore):
    await store.check()
    await store.check()
