"""Providers: registered, read, answered (JB-40 to JB-46)."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from accsd.gateway.joblib.board import Board, hash_of
from accsd.settings.doors import JoblibSettings
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.gateway import serving
from tests.support.joblib import User, Users, problem, refused_input
from tests.support.sockets import Listening, connected

LOCAL = {"category": "files", "name": "local", "schema_": {"type": "object"}}
NAME = "lab:files:local"


async def registered(user: User, room: str = "lab", **more: Any) -> dict[str, Any]:
    answer = await user.put(f"/rooms/{room}/providers", LOCAL | more)
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


@pytest.fixture
async def serving_local(ada: User) -> AsyncIterator[tuple[dict[str, Any], Listening]]:
    """A provider of ada's, with a socket that hears what it is asked."""
    provider = await registered(ada)
    async with connected(ada) as listening:
        await listening.emit("join_provider_room", provider_name=NAME, worker_id=provider["worker_id"])
        yield provider, listening


async def test_a_provider_is_registered_and_replaced(ada: User, bob: User, root: User):
    """JB-40: by room, category and name the same id; another user's is refused unless to an admin."""
    first = await ada.put("/rooms/lab/providers", LOCAL)
    assert first.status_code == 201
    made = first.json()
    assert set(made) == {"id", "room_id", "category", "name", "full_name", "schema", "worker_id", "created_at"}
    assert (made["full_name"], made["schema"]) == (NAME, {"type": "object"})
    assert made["worker_id"] in [each["id"] for each in (await ada.get("/workers")).json()["items"]]
    again = await ada.put("/rooms/lab/providers", LOCAL | {"schema": {"v": 2}, "worker_id": made["worker_id"]})
    assert (again.status_code, again.json()["id"], again.json()["schema"]) == (200, made["id"], {"v": 2})
    workers = (await ada.get("/workers")).json()["total"]
    problem(await bob.put("/rooms/lab/providers", LOCAL), "forbidden", 403)
    problem(await bob.put("/rooms/lab/providers", LOCAL | {"worker_id": made["worker_id"]}), "worker-not-found", 404)
    assert (await ada.get("/workers")).json()["total"] == workers, "a refused call leaves nothing"
    taken = await root.put("/rooms/lab/providers", LOCAL)
    assert (taken.status_code, taken.json()["id"]) == (200, made["id"])
    problem(await ada.delete(f"/providers/{made['id']}"), "forbidden", 403)


async def test_providers_of_everybody_are_an_admins(ada: User, root: User):
    """JB-40."""
    for room in ("@global", "@internal"):
        problem(await ada.put(f"/rooms/{room}/providers", LOCAL), "forbidden", 403)
        assert (await root.put(f"/rooms/{room}/providers", LOCAL)).status_code == 201


async def test_categories_of_providers_may_be_limited(db_url: str):
    """JB-40."""
    async with serving(db_url, works=True, gateway={"joblib": {"allowed_provider_categories": ["files"]}}) as gateway:
        ada = await Users(gateway).user("ada")
        problem(await ada.put("/rooms/lab/providers", LOCAL | {"category": "frames"}), "invalid-category", 400)
        assert (await ada.put("/rooms/lab/providers", LOCAL)).status_code == 201


async def test_providers_are_seen_from_their_room_and_from_everywhere(ada: User, root: User):
    """JB-41, JB-42, JB-5."""
    own, everywhere = await registered(ada), await registered(root, "@global")
    other = await registered(ada, "other")
    assert [each["id"] for each in (await ada.get("/rooms/lab/providers")).json()["items"]] == [
        everywhere["id"],
        own["id"],
    ]
    assert [each["id"] for each in (await ada.get("/rooms/@global/providers")).json()["items"]] == [everywhere["id"]]
    assert (await ada.get(f"/rooms/lab/providers/{NAME}/info")).json() == own
    assert (await ada.get(f"/rooms/@global/providers/{other['full_name']}/info")).json() == other
    assert (await ada.get(f"/rooms/lab/providers/{everywhere['full_name']}/info")).status_code == 200
    for name in (other["full_name"], "lab:files:none", "nothing"):
        problem(await ada.get(f"/rooms/lab/providers/{name}/info"), "provider-not-found", 404)
        problem(await ada.get(f"/rooms/lab/providers/{name}"), "provider-not-found", 404)


async def test_a_provider_is_removed_by_its_owner_or_with_its_worker(ada: User, bob: User):
    """JB-45, JB-30."""
    first = await registered(ada)
    problem(await bob.delete(f"/providers/{first['id']}"), "forbidden", 403)
    assert (await ada.delete(f"/providers/{first['id']}")).status_code == 204
    problem(await ada.delete(f"/providers/{first['id']}"), "provider-not-found", 404)
    second = await registered(ada)
    async with connected(bob) as viewer:
        await viewer.emit("room_join", room_id="lab")
        await ada.delete(f"/workers/{second['worker_id']}")
        await viewer.awaits("providers_invalidate")
        assert (await ada.get("/rooms/lab/providers")).json()["total"] == 0
        await registered(ada)
        await eventually(lambda: len(viewer.of("providers_invalidate")) == 2)
        assert viewer.of("providers_invalidate") == [{}, {}]


def test_the_hash_of_a_request_is_that_of_the_contract():
    """JB-46: sorted, without spaces, what is not ASCII escaped."""
    known = "8498cd6b79d6e386ed5e016d3d6b58b9b152177219b8a4e722cb1e52783576e2"
    assert hash_of({"path": "/data", "glob": "*.xyz"}) == hash_of({"glob": "*.xyz", "path": "/data"}) == known


async def test_a_read_asks_the_provider_and_waits_for_its_answer(
    ada: User, bob: User, serving_local: tuple[dict[str, Any], Listening]
):
    """JB-43, JB-44, JB-46: once for several readers; then from memory, and whoever looks is told."""
    provider, worker = serving_local
    read = f"/rooms/lab/providers/{NAME}?path=/data&glob=x&glob=*.xyz"
    async with connected(bob) as viewer:
        await viewer.emit("room_join", room_id="lab")
        readers = [asyncio.create_task(bob.get(read, headers={"Prefer": "wait=20"})) for _ in range(2)]
        asked = await worker.awaits("provider_request")
        assert asked["provider_name"] == NAME
        assert json.loads(asked["params"]) == {"glob": "*.xyz", "path": "/data"}
        assert asked["request_id"] == hash_of({"path": "/data", "glob": "*.xyz"})
        results = f"/providers/{provider['id']}/results"
        refused_input(await ada.ask("POST", results, content=b"[1]"))
        headers = {"X-Request-Hash": asked["request_id"]}
        problem(await bob.ask("POST", results, content=b"[1]", headers=headers), "forbidden", 403)
        assert (await ada.ask("POST", results, content=b"[1, 2]", headers=headers)).status_code == 204
        for reader in readers:
            answer = await reader
            assert (answer.status_code, answer.content) == (200, b"[1, 2]")
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["preference-applied"] == "wait=20"
        ready = await viewer.awaits("provider_result_ready")
        assert ready == {"provider_name": NAME, "request_hash": asked["request_id"]}
    assert len(worker.of("provider_request")) == 1
    kept = await bob.get(read, headers={"Prefer": "wait=20"})
    assert (kept.content, "preference-applied" in kept.headers) == (b"[1, 2]", False)


async def test_a_provider_that_does_not_answer_times_out(bob: User, serving_local: tuple[dict[str, Any], Listening]):
    """JB-46: 504 with Retry-After; wait=0 does not wait at all; it is not asked again at once."""
    _, worker = serving_local
    for _ in range(2):
        answer = await bob.get(f"/rooms/lab/providers/{NAME}", headers={"Prefer": "wait=0"})
        said = problem(answer, "provider-timeout", 504)
        assert (answer.headers["retry-after"], said["title"]) == ("2", "Gateway Timeout")
    await worker.awaits("provider_request", params="{}")
    assert len(worker.of("provider_request")) == 1


async def test_a_result_may_be_bytes_of_any_kind_and_larger_than_other_bodies(ada: User):
    """JB-44, G-10; JB-46: a provider that comes back finds its results again."""
    provider = await registered(ada, content_type="chemical/x-xyz")
    body = bytes(range(256)) * 8192  # 2 MiB
    headers = {"X-Request-Hash": hash_of({})}
    answer = await ada.ask("POST", f"/providers/{provider['id']}/results", content=body, headers=headers)
    assert answer.status_code == 204, answer.text
    await ada.delete(f"/providers/{provider['id']}")
    problem(await ada.get(f"/rooms/lab/providers/{NAME}"), "provider-not-found", 404)
    await registered(ada, content_type="chemical/x-xyz")
    got = await ada.get(f"/rooms/lab/providers/{NAME}")
    assert (got.content, got.headers["content-type"]) == (body, "chemical/x-xyz")


async def test_a_provider_survives_a_restart_of_the_gateway(db_url: str, conn: Connection):
    """1.9: its row; what it has answered is in memory only."""
    for status in (201, 200):
        async with serving(db_url, works=True, gateway={"joblib": {}}) as gateway:
            ada = await Users(gateway).user("ada")
            assert (await ada.put("/rooms/lab/providers", LOCAL)).status_code == status
    assert await conn.fetchval("SELECT count(*) FROM accs.joblib_providers") == 1


def test_what_is_kept_is_bounded_and_forgotten_after_a_while():
    """JB-44: provider_memory, provider_result_ttl_seconds; JB-46: provider_inflight_ttl_seconds."""
    now = 0.0
    board = Board(JoblibSettings(provider_memory=100), clock=lambda: now)
    for number in range(5):
        board.put((NAME, str(number)), b"x" * 40)
    assert [board.result((NAME, str(number))) is not None for number in range(5)] == [False] * 3 + [True] * 2
    assert [board.ask((NAME, "a")), board.ask((NAME, "a"))] == [True, False]
    now = 31.0
    assert board.ask((NAME, "a"))
    now = 301.0
    assert board.result((NAME, "4")) is None
