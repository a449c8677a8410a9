"""S3 when it is away, slow, failing, or does not let us in."""

import os
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import SecretStr

from accsd.errors import AccsdError, ConfigError, StorageUnavailable
from accsd.settings import StorageSettings
from accsd.storage import ObjectStore, Timing, open_store, s3
from tests.support.cable import Cable
from tests.support.eventually import eventually
from tests.support.objectstore import SECRET, S3Server, ailing, free_ports

MIB = 1024 * 1024
HASTY = Timing(connect=timedelta(seconds=0.5), silence=timedelta(seconds=0.5), request=timedelta(seconds=2), tries=2)


@pytest.fixture
async def cable(s3_server: S3Server) -> AsyncIterator[Cable]:
    async with Cable.to("127.0.0.1", s3_server.port) as plugged:
        yield plugged


async def every_call(store: ObjectStore, tmp_path: Path) -> AsyncIterator[AccsdError]:
    for call in (
        store.check(),
        store.put_bytes("outputs/x", b"x"),
        store.put_file("outputs/x", Path(__file__)),
        store.get_bytes("outputs/x"),
        store.get_to("outputs/x", tmp_path / "x"),
        store.stat("outputs/x"),
        store.delete("outputs/x"),
        anext(aiter(store.list())),
    ):
        with pytest.raises(AccsdError) as caught:
            await call
        yield caught.value


async def test_a_server_that_is_down_is_unavailable_within_the_deadline(s3_server: S3Server, tmp_path: Path):
    settings = s3_server.settings(port=free_ports(1)[0])
    timing = Timing(connect=timedelta(seconds=0.5), request=timedelta(seconds=2), tries=1)
    async with open_store(settings, timing=timing) as store:
        began = time.monotonic()
        async for error in every_call(store, tmp_path):
            assert isinstance(error, StorageUnavailable)
            assert f"at {settings.endpoint}" in str(error)
            assert SECRET not in str(error)
        assert time.monotonic() - began < 8 * 2


async def test_a_store_that_came_back_is_used_again(s3_server: S3Server, cable: Cable):
    home, cable.target = cable.target, ("127.0.0.1", free_ports(1)[0])
    async with open_store(s3_server.settings(port=cable.port), timing=HASTY) as store:
        with pytest.raises(StorageUnavailable):
            await store.put_bytes("outputs/x", b"x")
        cable.target = home
        await store.put_bytes("outputs/x", b"x")
        assert await store.get_bytes("outputs/x") == b"x"


async def test_a_server_that_falls_silent_is_unavailable_within_the_deadline(s3_server: S3Server, cable: Cable):
    async with open_store(s3_server.settings(port=cable.port), timing=HASTY) as store:
        await store.put_bytes("outputs/x", b"x")
        cable.fall_silent()
        began = time.monotonic()
        with pytest.raises(StorageUnavailable):
            await store.put_bytes("outputs/x", b"y")
        assert time.monotonic() - began < 4
        cable.flow_again()
        assert await store.get_bytes("outputs/x") in (b"x", b"y")


async def test_a_download_that_stops_halfway_leaves_no_file(s3_server: S3Server, cable: Cable, tmp_path: Path):
    folder = tmp_path / "fetched"
    folder.mkdir()
    (tmp_path / "large").write_bytes(bytes(40 * MIB))

    async def cut_in_the_middle() -> None:
        await eventually(lambda: grown(folder), interval=0.001)
        cable.cut()

    async with open_store(s3_server.settings("halfway")) as store:
        await store.put_file("outputs/large", tmp_path / "large")
    async with (
        open_store(s3_server.settings("halfway", port=cable.port), timing=HASTY) as store,
        anyio.create_task_group() as group,
    ):
        group.start_soon(cut_in_the_middle)
        with pytest.raises(StorageUnavailable):
            await store.get_to("outputs/large", folder / "large")
    assert os.listdir(folder) == []


def grown(folder: Path) -> bool:
    return any(path.stat().st_size > 0 for path in folder.iterdir())


@pytest.mark.parametrize("status", ["500 Internal Server Error", "503 Slow Down"])
async def test_a_passing_error_of_the_server_is_tried_again(s3_server: S3Server, status: str):
    async with ailing(s3_server.port, failures=1, status=status) as server:
        async with open_store(s3_server.settings(port=server.port)) as store:
            await store.check()
        assert server.asked >= 2


async def test_an_error_that_stays_is_unavailable_after_so_many_tries(s3_server: S3Server):
    async with ailing(s3_server.port, failures=1000, status="500 Internal Server Error") as server:
        async with open_store(s3_server.settings(port=server.port), timing=Timing(tries=2)) as store:
            with pytest.raises(StorageUnavailable, match="500"):
                await store.put_bytes("outputs/x", b"x")
        assert server.asked == 2


async def test_a_wrong_secret_is_named_as_the_setting_and_never_shown(s3_server: S3Server, tmp_path: Path):
    wrong = "this-is-not-the-secret"
    async with open_store(s3_server.settings(secret_key=wrong), timing=HASTY) as store:
        async for error in every_call(store, tmp_path):
            assert isinstance(error, ConfigError)
            assert "storage.secret_key" in str(error)
            assert wrong not in f"{error!r} {error.hint} {error.__cause__!r}"


async def test_an_unknown_access_key_is_named_as_the_setting(s3_server: S3Server):
    settings = s3_server.settings().model_copy(update={"access_key": SecretStr("nobody")})
    async with open_store(settings, timing=HASTY) as store:
        with pytest.raises(ConfigError, match=r"storage\.access_key"):
            await store.check()


async def test_a_bucket_that_is_missing_is_made_by_whoever_comes_first(s3_server: S3Server):
    settings = s3_server.settings()
    async with open_store(settings) as one, open_store(settings) as two, anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(one.put_bytes, f"outputs/one/{number}", b"x")
            group.start_soon(two.put_bytes, f"outputs/two/{number}", b"x")
    async with open_store(settings) as third:
        assert len([listed async for listed in third.list()]) == 8


async def test_a_name_that_no_bucket_can_have_is_the_settings_fault(s3_server: S3Server):
    settings = s3_server.settings().model_copy(update={"bucket": "b1"})
    async with open_store(settings, timing=HASTY) as store:
        with pytest.raises(ConfigError, match=r"storage\.bucket.*b1"):
            await store.check()


async def test_a_listing_has_more_than_one_page(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(s3, "PAGE", 2)
    async with open_store(s3_server.settings()) as store:
        for number in range(5):
            await store.put_bytes(f"outputs/{number}", b"")
        assert [listed.key async for listed in store.list("outputs/")] == [f"outputs/{n}" for n in range(5)]


async def test_the_event_loop_goes_on_while_a_large_file_travels(s3_server: S3Server, tmp_path: Path):
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 32 * MIB)
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        last = time.monotonic()
        while True:
            await anyio.sleep(0.005)
            now = time.monotonic()
            longest, last = max(longest, now - last), now

    async with open_store(s3_server.settings()) as store:
        await store.check()
        async with anyio.create_task_group() as group:
            group.start_soon(beat)
            stored = await store.put_file("outputs/large", tmp_path / "large")
            await store.get_to("outputs/large", tmp_path / "back", checksum=stored.checksum)
            group.cancel_scope.cancel()
    assert longest < 0.5  # a heartbeat is due every few seconds


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"endpoint": "http://127.0.0.1:9", "access_key": "only-this"}, "storage.secret_key"),
        ({"endpoint": "http://127.0.0.1:9"}, "storage.access_key and storage.secret_key"),
        ({"access_key": "a-key", "secret_key": "its-secret"}, "neither a url nor an endpoint"),
        ({"endpoint": "http://a b", "access_key": "a-key", "secret_key": "its-secret"}, "storage.endpoint"),
        ({}, "no storage is configured"),
    ],
)
async def test_half_a_configuration_is_refused(settings: dict[str, str], named: str):
    with pytest.raises(ConfigError, match=named) as caught:
        async with open_store(StorageSettings.model_construct(bucket="accs", **secretly(settings))):
            pass
    assert "its-secret" not in str(caught.value)


def secretly(settings: dict[str, str]) -> dict[str, Any]:
    blank: dict[str, Any] = dict.fromkeys(("url", "endpoint", "access_key", "secret_key"))
    return blank | {name: SecretStr(value) if "key" in name else value for name, value in settings.items()}
