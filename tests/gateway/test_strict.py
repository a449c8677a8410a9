"""What a request may not say, and what does not happen by mistake."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from accsd.db.pool import Database
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import submit
from tests.support.gateway import PLENTY, Gateway, serving


@pytest.mark.parametrize(
    "written",
    [
        b"NaN",
        b"Infinity",
        b"1e999",
        b'"\\ud800"',
        b'"\\u0000"',
        b"9" * 30,
        b"-" + b"9" * 5_000,
        b"[" * 2_000 + b"]" * 2_000,
    ],
)
async def test_a_value_that_could_not_be_given_back_as_it_was_is_refused(
    gateway: Gateway, conn: Connection, written: bytes
):
    """G-10."""
    await conn.execute("INSERT INTO workflows (name, steps) VALUES ('w', $1)", [{"key": "a", "service": "s"}])
    body = b'{"workflow": "w", "options": {"a": %b}}' % written
    headers = {"Content-Type": "application/json"}
    answer = await gateway.ask("POST", "/jobs", content=body, scope="submit", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 0


async def test_a_parameter_that_is_not_known_changes_nothing(gateway: Gateway, conn: Connection):
    """`?dryrun=true` would otherwise be the real thing."""
    job = await submit(conn)
    for path in (f"/jobs/{job}/cancel?dryrun=true", "/tokens?dry_run=true", f"/jobs/{job}/shares?dry_run=true"):
        refused = await gateway.post(path, {"name": "x", "scopes": ["read"]}, scope="admin")
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid"), path
    assert await conn.fetchval("SELECT count(*) FROM accs.tokens") == 1
    many = "&".join(f"a{n}=1" for n in range(101))
    assert (await gateway.get(f"/jobs?{many}", scope="read")).status_code == 422


async def test_a_dry_run_of_a_submission_a_rerun_or_a_change_leaves_nothing(gateway: Gateway, conn: Connection):
    await conn.execute("INSERT INTO workflows (name, steps) VALUES ('w', $1)", [{"key": "a", "service": "s"}])
    job = (await gateway.post("/jobs", {"workflow": "w"}, scope="submit")).json()["id"]
    shown = await gateway.get(f"/jobs/{job}", scope="submit")
    before = await conn.fetch("SELECT * FROM jobs")
    dry = [
        await gateway.post("/jobs/batch?dry_run=true", {"jobs": [{"workflow": "w"}] * 3}, scope="submit"),
        await gateway.post(f"/jobs/{job}/rerun?dry_run=true", {"options": {"n": 1}}, scope="submit"),
        await gateway.ask(
            "PATCH",
            f"/jobs/{job}?dry_run=true",
            json={"priority": 7},
            scope="submit",
            headers={"If-Match": shown.headers["etag"]},
        ),
    ]
    assert [(each.status_code, each.json()["dry_run"]) for each in dry] == [(200, True)] * 3
    assert (dry[1].json()["options"], dry[2].json()["priority"]) == ({"n": 1}, 7)
    assert await conn.fetch("SELECT * FROM jobs") == before
    assert await conn.fetchval("SELECT count(*) FROM accs.audit WHERE action = 'change_jobs'") == 0


async def test_a_key_that_was_used_with_another_secret_belongs_to_another_request(gateway: Gateway, conn: Connection):
    await conn.execute("INSERT INTO workflows (name, steps) VALUES ('w', $1)", [{"key": "a", "service": "s"}])
    key = {"Idempotency-Key": "k"}
    first = {"workflow": "w", "options": {"password": "one"}, "scheduled_at": "2030-01-01T00:00:00Z"}
    both = await asyncio.gather(*[gateway.post("/jobs", first, scope="submit", headers=key) for _ in range(2)])
    assert sorted(each.status_code for each in both) == [200, 201]
    for other in ({"options": {"password": "two"}}, {"scheduled_at": "2031-01-01T00:00:00Z"}, {"trace_id": "t"}):
        refused = await gateway.post("/jobs", first | other, scope="submit", headers=key)
        assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_mismatch"), other


async def test_nobody_emits_with_the_key_of_a_webhook_or_of_somebody_else(gateway: Gateway):
    for key in ("hook/repo/abc", "http/ada/k"):
        refused = await gateway.post("/events", {"topic": "a.b", "key": key}, scope="submit")
        assert refused.status_code == 422, key
    assert (await gateway.post("/events", {"topic": "a.b", "key": "orders/7"}, scope="submit")).status_code == 202


async def test_whoever_shows_no_credential_is_counted_too(db_url: str):
    async with serving(db_url, gateway={"limits": PLENTY | {"reads_per_second": 1}}) as gateway:
        said = [(await gateway.client.get("/health")).status_code for _ in range(4)]
    assert said[-1] == 429


async def test_what_stands_before_a_word_that_is_no_address_is_not_believed(db_url: str):
    """Through a proxy that is trusted, so that the address of a hook's sender is always one."""
    hook = {"scheme": "none", "topic": "a.b", "allow": ["127.0.0.0/8"]}
    settings = {"limits": PLENTY, "trusted_proxies": ["127.0.0.0/8"], "hooks": {"h": hook}}
    async with serving(db_url, gateway=settings) as gateway:
        for said, status in (("10.0.0.9, nonsense", 202), ("127.0.0.5", 200), ("10.0.0.9", 401), ("unknown", 200)):
            answer = await gateway.client.post("/hooks/h", content=b"{}", headers={"X-Forwarded-For": said})
            assert answer.status_code == status, said


async def test_a_request_that_waits_is_answered_at_once_when_the_gateway_stops(gateway: Gateway, conn: Connection):
    """G-7."""
    job = await submit(conn)
    reads = 0
    true_fetch = Database.fetch

    async def counted(*args: object, **named: object) -> object:
        nonlocal reads
        reads += 1
        return await true_fetch(*args, **named)  # type: ignore[arg-type]

    waiting = asyncio.create_task(gateway.get(f"/jobs/{job}", scope="read", headers={"Prefer": "wait=60"}))
    hub = gateway.context.hub

    async def is_waiting() -> bool:
        return bool(hub.facts["waiters"])

    await eventually(is_waiting, within=20)
    Database.fetch = counted  # type: ignore[method-assign,assignment]
    try:
        await hub.drain()
        answer = await asyncio.wait_for(waiting, 10)
    finally:
        Database.fetch = true_fetch  # type: ignore[method-assign]
    assert (answer.status_code, answer.json()["status"]) == (200, "running")
    assert reads < 20, "it looks once more, and does not spin"


async def test_a_request_that_finds_no_free_connection_is_told_to_come_back(gateway: Gateway):
    token = await gateway.token("read")
    assert (await gateway.get("/me", token=token)).status_code == 200
    async with AsyncExitStack() as held:
        for _ in range(6):
            await held.enter_async_context(gateway.context.reads.acquire())
        refused = await asyncio.wait_for(gateway.get("/jobs", token=token), 4)
        assert (refused.status_code, refused.json()["code"]) == (503, "database_unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        assert (await gateway.client.get("/health")).json()["status"] == "database_unavailable"
    assert (await gateway.get("/jobs", token=token)).status_code == 200
