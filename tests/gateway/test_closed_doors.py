"""What nobody reaches by a way round: through schedules, events, comparisons, the audit, keys of others, odd heads."""

import asyncio
import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from accsd.db.access import create_token
from accsd.model.access import Scope
from tests.gateway.test_limits import Two
from tests.gateway.test_limits import two as two
from tests.support.cluster import Connection
from tests.support.factory import fail, started, step, submit_to, workflow
from tests.support.gateway import PLENTY, Gateway, serving

SQL_PROBE = {"name": "rows", "source": {"sql": "SELECT 1"}, "every": "1m", "above": 5}


async def test_a_probe_by_sql_and_listening_to_all_topics_need_the_scope_admin(gateway: Gateway, conn: Connection):
    """CO9, EV3: also where a schedule that is there becomes one."""
    await workflow(conn, step("a"), name="w")
    for more in ({"condition": SQL_PROBE}, {"event": "**"}):
        for path in ("/schedules", "/schedules?dry_run=true"):
            refused = await gateway.post(path, {"name": "s", "workflow": "w", **more}, scope="operate")
            assert (refused.status_code, refused.json().get("scope")) == (403, "admin"), refused.text
    made = await gateway.post("/schedules", {"name": "s", "workflow": "w", "every": "1h"}, scope="submit")
    assert made.status_code == 201
    changed: list[dict[str, Any]] = [{"condition": SQL_PROBE}, {"event": "**"}]
    for more in changed:
        refused = await gateway.ask(
            "PATCH", "/schedules/s", json={"every": None, **more}, scope="submit", headers={"If-Match": "*"}
        )
        assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing"), refused.text
    for name, more in (("probing", {"condition": SQL_PROBE}), ("all", {"event": "**"})):
        made = await gateway.post("/schedules", {"name": name, "workflow": "w", **more}, scope="admin")
        assert made.status_code == 201, made.text
    kept = await gateway.ask(
        "PATCH", "/schedules/all", json={"priority": 3}, scope="operate", headers={"If-Match": "*"}
    )
    assert kept.status_code == 200, "what an admin has written stays, whoever changes the rest"


async def test_a_limited_token_listens_to_nothing_that_it_may_not_read(two: Two):
    wanted = {"workflow": "media-cut", "options": {"all": "${event.payload}"}}
    for topic in ("accs.job.done", "accs.**", "accs.job.*"):
        refused = await two.gateway.post("/schedules", {"name": "spy", **wanted, "event": topic}, token=two.token)
        assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing"), topic
    narrow = await two.gateway.token("submit", actor="narrow", limits={"events": ["studio.*"]})
    for topic, status in (("shop.order", 403), ("studio.**", 201)):
        made = await two.gateway.post("/schedules", {"name": "narrow", **wanted, "event": topic}, token=narrow)
        assert made.status_code == status, topic


async def test_events_tell_a_limited_token_nothing_of_other_workflows(two: Two, conn: Connection):
    """Neither what accsd says of their jobs, nor what an event of everybody's has started there."""
    for name, target, topic in (
        ("on-cut", "media-cut", "studio.*"),
        ("on-pay", "payroll", "studio.*"),
        ("after", "payroll", "accs.job.error"),
    ):
        body = {"name": name, "workflow": target, "event": topic}
        assert (await two.gateway.post("/schedules", body, scope="operate")).status_code == 201
    assert (await two.gateway.post("/events", {"topic": "studio.new"}, scope="submit")).status_code == 202
    await conn.execute("SELECT accs.choose_outcomes()")
    for name in ("media-cut", "payroll"):
        which = await conn.fetchval("SELECT id FROM workflows WHERE name = $1", name)
        await submit_to(conn, which)
        await fail(conn, *await started(conn), message=f"secret of {name}")
    everything = await two.gateway.get("/events", scope="read")
    assert all(word in everything.text for word in ("secret of payroll", "secret of media-cut", "on-pay"))
    shown = await two.gateway.get("/events", token=two.token)
    assert sorted(each["topic"] for each in shown.json()["items"]) == ["accs.job.error", "studio.new"]
    assert not any(word in shown.text for word in ("payroll", "on-pay", "after"))
    assert "on-cut" in shown.text


async def test_a_part_of_an_id_tells_a_limited_token_of_no_other_job(two: Two, conn: Connection):
    """Whoever gives a part that several ids have is told all of them, with their workflows."""
    await submit_to(conn, await workflow(conn, step("a"), name="payroll-2"))
    shared = str(two.own)[:3]
    answer = await two.gateway.get(f"/jobs/{two.own}/compare?with={shared}", token=two.token)
    assert answer.status_code == 404
    assert "payroll" not in answer.text
    assert (await two.gateway.get(f"/jobs/{two.own}/compare?with={two.own}", token=two.token)).status_code == 200


async def test_the_audit_of_a_limited_admin_is_its_own(two: Two):
    made = await create_token(
        two.gateway.context.verbs, "half", [Scope.ADMIN], actor="half", limits={"workflows": ["media-*"]}
    )
    await two.gateway.post(f"/jobs/{two.other}/retry", scope="operate")
    assert (await two.gateway.get("/audit", scope="admin")).json()["items"]
    assert (await two.gateway.get("/audit", token=made.token)).json()["items"] == []


# Keys


async def test_the_keys_of_two_actors_never_meet(gateway: Gateway, conn: Connection):
    """Whatever their names are: a/b with the key c is not a with the key b/c."""
    await workflow(conn, step("a"), name="w")
    first, second = await gateway.token("submit", actor="a"), await gateway.token("submit", actor="a/b")
    for path, body in (("/jobs", {"workflow": "w"}), ("/events", {"topic": "x.y"})):
        one = await gateway.post(path, body, token=first, headers={"Idempotency-Key": "b/c"})
        other = await gateway.post(path, body, token=second, headers={"Idempotency-Key": "c"})
        assert one.status_code == other.status_code != 200, other.text
    assert await conn.fetchval("SELECT count(DISTINCT created_by) FROM jobs") == 2


async def test_a_batch_whose_key_belongs_to_another_batch_is_refused(gateway: Gateway, conn: Connection):
    await workflow(conn, step("a"), name="w")
    key = {"Idempotency-Key": "k"}
    batch = {"jobs": [{"workflow": "w", "options": {"n": 1}}, {"workflow": "w", "options": {"n": 2}}]}
    first = await gateway.post("/jobs/batch", batch, scope="submit", headers=key)
    again = await gateway.post("/jobs/batch", batch, scope="submit", headers=key)
    assert [[each["status"] for each in said.json()["items"]] for said in (first, again)] == [[201, 201], [200, 200]]
    other = {"jobs": [batch["jobs"][0], {"workflow": "w", "options": {"n": 3}}, {"workflow": "w"}]}
    refused = await gateway.post("/jobs/batch", other, scope="submit", headers=key)
    assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_mismatch")
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 2, "and nothing of it is submitted"


async def test_a_schedule_that_is_made_again_with_its_key_is_the_same(gateway: Gateway, conn: Connection):
    await workflow(conn, step("a"), name="w")
    body, key = {"name": "s", "workflow": "w", "every": "1h"}, {"Idempotency-Key": "k"}
    said = [await gateway.post("/schedules", body, scope="submit", headers=key) for _ in range(2)]
    assert [each.status_code for each in said] == [201, 200]
    assert said[0].json()["id"] == said[1].json()["id"]
    assert said[1].headers["idempotency-replayed"] == "true"
    for other, scope in ((body | {"every": "2h"}, "submit"), (body, "operate")):
        refused = await gateway.post("/schedules", other, scope=scope, headers=key)
        assert (refused.status_code, refused.json()["code"]) == (409, "already_there")


async def test_a_backfill_that_is_asked_for_again_with_its_key_is_the_same(gateway: Gateway, conn: Connection):
    await workflow(conn, step("a"), name="w")
    for name in ("s", "t"):
        assert (
            await gateway.post("/schedules", {"name": name, "workflow": "w", "every": "1h"}, scope="submit")
        ).is_success
    begin = datetime.now(UTC) - timedelta(hours=3)
    asked: dict[str, Any] = {"schedule": "s", "from": begin.isoformat(), "parallel": 2}
    key = {"Idempotency-Key": "k"}
    first, again = [await gateway.post("/backfills", asked, scope="submit", headers=key) for _ in range(2)]
    assert (first.status_code, again.status_code, first.json()["id"]) == (202, 200, again.json()["id"])
    assert (again.headers["idempotency-replayed"], again.json()["verdict"]) == ("true", "repeated")
    await gateway.ask("PATCH", "/schedules/s", json={"every": "30m"}, scope="submit", headers={"If-Match": "*"})
    changed = await gateway.post("/backfills?dry_run=true", asked, scope="submit", headers=key)
    assert changed.json()["id"] == first.json()["id"], "whatever has become of the schedule since"
    for other in (asked | {"parallel": 3}, asked | {"schedule": "t"}):
        refused = await gateway.post("/backfills", other, scope="submit", headers=key)
        assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_mismatch")
    ahead = {"schedule": "s", "from": (begin + timedelta(hours=9)).isoformat()}
    nothing = await gateway.post("/backfills", ahead, scope="submit", headers={"Idempotency-Key": "l"})
    assert (nothing.status_code, nothing.json()["code"]) == (404, "not_found")
    assert await conn.fetchval("SELECT count(*) FROM accs.backfills") == 1


# Who is counted, and how


async def test_a_credential_that_lets_nobody_in_locks_nobody_out(db_url: str):
    """A program with an expired token, or a page whose session is over, must not keep people behind the same address
    from logging in; and it is told 401 each time, or it would not know what is wrong."""
    async with serving(db_url, gateway={"limits": PLENTY | {"logins_per_minute": 2}}) as gateway:
        said = [(await gateway.get("/jobs", token="accs_aaaaaaaa_nobody")).status_code for _ in range(8)]
        assert said == [401] * 8
        opened = await gateway.post("/session", {"token": await gateway.token("read")})
        assert opened.status_code == 201
        tried = [(await gateway.post("/session", {"code": "guessed"})).status_code for _ in range(4)]
        assert tried[-1] == 429


async def test_logins_from_one_network_of_ipv6_are_counted_together(db_url: str):
    """Whoever has one address there has 2^64."""
    limits = PLENTY | {"logins_per_minute": 2}
    async with serving(db_url, gateway={"limits": limits, "trusted_proxies": ["127.0.0.0/8"]}) as gateway:
        said = [
            (await gateway.post("/session", {"code": "x"}, headers={"X-Forwarded-For": f"2001:db8::{n}"})).status_code
            for n in range(1, 6)
        ]
    assert said[-1] == 429


# Heads and bodies


async def _raw(gateway: Gateway, head: bytes, body: bytes = b"") -> bytes:
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.replace(b"\n", b"\r\n") + b"\r\n" + body)
    await writer.drain()
    try:
        return await asyncio.wait_for(reader.read(65536), 5)
    finally:
        writer.close()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\nHost: 127.0.0.1\nHost: evil.example\n",
        b"GET /health HTTP/1.1\nHost: evil.example\nHost: 127.0.0.1\n",
        b"GET http://evil.example/health HTTP/1.1\nHost: evil.example\n",
        b"POST /hooks/x HTTP/1.1\nHost: 127.0.0.1\nContent-Length: 5\nContent-Length: 6\n",
        b"POST /hooks/x HTTP/1.1\nHost: 127.0.0.1\nContent-Length: 5\nTransfer-Encoding: chunked\n",
        b"POST /hooks/x HTTP/1.1\nHost: 127.0.0.1\nTransfer-Encoding: chunked, identity\n",
        b"POST /hooks/x HTTP/1.1\nHost: 127.0.0.1\nTransfer-Encoding : chunked\n",
        b"POST /hooks/x HTTP/1.1\nHost: 127.0.0.1\nContent-Length: +5\n",
        b"GET /health HTTP/1.1\nX: y\n",
    ],
)
async def test_a_head_that_a_proxy_could_read_otherwise_is_refused(gateway: Gateway, head: bytes):
    """Two of us that disagree on where a request ends, or for whom it is, are how one is smuggled past the other."""
    has_body = head.startswith(b"POST")
    said = await _raw(gateway, head, b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" if has_body else b"")
    status = said.split(b" ", 2)[1:2]
    assert said == b"" or status in ([b"400"], [b"421"]), said[:300]
    assert b"no such path" not in said, "what followed was taken for a request"


async def test_a_document_that_is_nested_deep_and_has_a_long_number_is_refused_in_words(gateway: Gateway):
    """Within orjson's depth, beyond that of Python's own parser, which checks long numbers."""
    for depth in (300, 900, 1000, 1020):
        body = b'{"topic": "a.b", "payload": {"a": %b123456789012345678%b}}' % (b"[" * depth, b"]" * depth)
        body = body.replace(b"123456789012345678", b"1234567890123456789")
        answer = await gateway.ask(
            "POST", "/events", content=body, scope="submit", headers={"Content-Type": "application/json"}
        )
        assert answer.status_code in (202, 422), (depth, answer.text)


async def test_a_signed_delivery_that_nobody_could_store_is_refused_in_words(db_url: str, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("of some length\n")
    hook = {"scheme": "github", "topic": "repo.push", "secret_file": str(secret)}
    async with serving(db_url, gateway={"hooks": {"repo": hook}}) as gateway:
        for body in (
            b'{"a": "\\u0000"}', b'{"a": "\\ud800"}', b"NaN", b"[" * 100_000, b'"\xff"', b"", b'{"a": 1e999}',
            b'{"a": ' + b"9" * 400 + b"}", b"[" * 1000 + b"]" * 1000,
        ):  # fmt: skip
            signature = hmac.new(b"of some length", body, hashlib.sha256).hexdigest()
            said = await gateway.client.post(
                "/hooks/repo", content=body, headers={"X-Hub-Signature-256": f"sha256={signature}"}
            )
            assert said.status_code in (202, 422), (body[:30], said.text)
