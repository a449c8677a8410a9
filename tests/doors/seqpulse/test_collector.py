"""The collector against SeqPulse's own middleware in an application that uvicorn serves (SP-20 to SP-25), and what
becomes of samples that fail (SP-24, SP-31, SP-32)."""

import base64
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from accsd.errors import ConfigError
from accsd.gateway.seqpulse.collector import SampleFailed, sample, signature, signed_headers, values_in
from accsd.gateway.seqpulse.projects import WatchedProject
from accsd.settings import SeqpulseProject
from tests.support.applications import WELL, Application, application
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.deployments import SECRET, Shop, jobs_of, judged, samples, settings_of
from tests.support.eventually import eventually
from tests.support.factory import pass_time
from tests.support.gateway import Gateway, serving

SOON = timedelta(seconds=5)


def project(url: str, **given: Any) -> WatchedProject:
    known = {"endpoint": url, "hmac_secret": SECRET, "allow_private": True}
    return WatchedProject("shop", SeqpulseProject.model_validate(known | given))


async def sampled(app: Application, url: str | None = None, **given: Any) -> dict[str, float]:
    url = url or app.metrics_url
    return await sample(project(url, **given), url, within=SOON)


# The signature


def test_the_signature_is_that_of_the_contract():
    """SP-22: the test vector."""
    assert (
        signature("hmac_test", "2026-01-07T12:00:00Z", "/seqpulse-metrics", "A" * 22)
        == "sha256=3874925b1e9306c471bafee434057ebe8cfb098c8b0052774924ae4c59dceb8e"
    )


def test_the_headers_of_a_request():
    """SP-21, SP-23: every request has a nonce of 16 random bytes and a time of its own."""
    url = "https://shop.example:8443/seq%20pulse/?x=1"
    headers = [signed_headers(project(url), url) for _ in range(100)]
    assert len({each["X-SeqPulse-Nonce"] for each in headers}) == 100
    first = headers[0]
    assert len(base64.urlsafe_b64decode(first["X-SeqPulse-Nonce"] + "==")) == 16
    sent = datetime.strptime(first["X-SeqPulse-Timestamp"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert abs(datetime.now(UTC) - sent) < timedelta(seconds=10)
    assert first["X-SeqPulse-Canonical-Path"] == "/seq%20pulse"
    assert (first["X-SeqPulse-Method"], first["X-SeqPulse-Signature-Version"]) == ("GET", "v2")
    assert (first["X-SeqPulse-Nonce-TTL"], first["X-SeqPulse-Project-Id"]) == ("330", "shop")
    assert first["X-SeqPulse-Signature"].startswith("sha256=")
    assert not any(name.startswith("X-SeqPulse") for name in signed_headers(project(url, hmac_secret=None), url))


def test_a_secret_of_a_file_is_read_anew(tmp_path: Path):
    file = tmp_path / "secret"
    url = "https://shop.example/m"
    shop = project(url, hmac_secret=None, hmac_secret_file=file)
    with pytest.raises(ConfigError, match="can't be read"):
        shop.secret()
    for text in ("the-first-secret-of-all", "another-one-tomorrow"):
        file.write_text(f"{text}\n")
        assert shop.secret() == text


# The real middleware


async def test_the_middleware_lets_each_request_in(app: Application):
    """SP-20, SP-21: with the values that it measures."""
    app.metrics = None
    before = set(app.pulse._nonces_seen_at_ms)
    first = await sampled(app)
    await app.visit("/broken", times=3)
    again = await sampled(app)
    assert app.said == [200, 200]
    assert len(set(app.pulse._nonces_seen_at_ms) - before) == 2
    assert set(first) == set(WELL)
    assert again["error_rate"] > 0
    assert again["requests_per_sec"] > first["requests_per_sec"], "the requests for metrics are not counted (SP-25)"


@pytest.mark.parametrize(
    ("late", "said"), [(301, "Timestamp too old"), (-40, "Timestamp too far in the future"), (290, None), (-25, None)]
)
async def test_the_middleware_bounds_the_skew(app: Application, late: int, said: str | None):
    """SP-23: 300 s back, 30 s ahead."""
    headers = signed_headers(project(app.metrics_url), app.metrics_url, now=datetime.now(UTC) - timedelta(seconds=late))
    assert await refusal(app, headers) == said


async def test_the_middleware_refuses_what_is_used_again_or_changed(app: Application):
    """SP-23: a nonce seen before, a wrong signature, another version, no headers; so does the collector with another
    secret find out at once (SP-24)."""
    headers = signed_headers(project(app.metrics_url), app.metrics_url)
    assert await refusal(app, headers) is None
    assert await refusal(app, headers) == "Nonce reuse"
    fresh = signed_headers(project(app.metrics_url), app.metrics_url)
    assert await refusal(app, fresh | {"X-SeqPulse-Nonce": "A" * 22}) == "Invalid signature"
    assert await refusal(app, fresh | {"X-SeqPulse-Signature-Version": "v1"}) == "Missing or invalid HMAC headers"
    assert await refusal(app, {}) == "Missing or invalid HMAC headers"
    with pytest.raises(SampleFailed, match=r"401.*Invalid signature") as failed:
        await sampled(app, hmac_secret="another-secret-than-its")
    assert failed.value.permanent


async def refusal(app: Application, headers: dict[str, str]) -> str | None:
    async with httpx.AsyncClient() as client:
        answer = await client.get(app.metrics_url, headers=headers)
    return None if answer.status_code == 200 else answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/seq%20pulse", "/seq%20pulse"),  # the middleware's own, decoded path would not match (SP-22)
        ("/m%C3%A9triques", "/m%C3%A9triques"),
        ("/metrics", "/metrics/"),
        ("/metrics", "/metrics?format=v2"),
        ("/a/b/c", "/a/b/c#top"),
    ],
)
async def test_paths_are_signed_as_they_are_written(path: str, asked: str):
    """SP-22, SP-25: percent signs stay, one slash at the end and the query do not count."""
    with application(secret=SECRET, path=path) as app:
        app.metrics = WELL
        assert await sampled(app, app.url + asked) == WELL
        assert "%" not in path or app.asked[-1]["x-seqpulse-canonical-path"] == path


async def test_the_port_is_the_one_that_is_asked(app: Application):
    """SP-14: the original drops it, and asks another program."""
    with application(secret=SECRET) as other:
        other.metrics = WELL | {"latency_p95": 7.0}
        assert (await sampled(other))["latency_p95"] == 7.0
        assert (await sampled(app))["latency_p95"] == WELL["latency_p95"]
        assert app.asked[-1]["host"] == app.url.removeprefix("http://")


# What is no sample


@pytest.mark.parametrize(
    ("status", "signed", "is_permanent"),
    [
        (401, True, True),
        (403, True, True),
        (401, False, False),
        (404, True, False),
        (500, True, False),
        (302, True, False),
    ],
)
async def test_only_who_refuses_a_signature_is_not_asked_again(
    app: Application, status: int, signed: bool, is_permanent: bool
):
    """SP-24."""
    app.is_down(status)
    with pytest.raises(SampleFailed, match=str(status)) as failed:
        await sampled(app, **({} if signed else {"hmac_secret": None}))
    assert failed.value.permanent is is_permanent


async def test_a_redirect_is_not_followed(app: Application):
    """SP-20."""
    app.redirects_to(f"{app.url}/")
    with pytest.raises(SampleFailed, match="307"):
        await sampled(app)
    assert len(app.asked) == 1


async def test_an_application_that_hangs_is_given_up(app: Application):
    """SP-20: after 5 s, or what the setting says."""
    app.hangs(10)
    with pytest.raises(SampleFailed, match=r"did not answer within 0\.2 s"):
        await sample(project(app.metrics_url), app.metrics_url, within=timedelta(seconds=0.2))


async def test_private_addresses_need_the_project_s_word(app: Application):
    """SP-14: the rules of outgoing calls."""
    own = WatchedProject("shop", SeqpulseProject.model_validate({"endpoint": "from_trigger"}))
    with pytest.raises(SampleFailed, match=r"127\.0\.0\.1"):
        await sample(own, app.metrics_url, within=SOON)
    assert app.asked == []
    with pytest.raises(SampleFailed):
        await sample(project("http://127.0.0.1:1/m"), "http://127.0.0.1:1/m", within=SOON)


@pytest.mark.parametrize(
    "change",
    [
        {"latency_p95": None},
        {"latency_p95": "120"},
        {"latency_p95": -1},
        {"latency_p95": True},
        {"requests_per_sec": -0.1},
        {"error_rate": 1.01},
        {"error_rate": -0.01},
        {"cpu_usage": 2},
        {"memory_usage": []},
    ],
)
async def test_all_five_values_are_numbers_in_their_ranges(app: Application, change: dict[str, Any]):
    """SP-20."""
    app.says({"metrics": WELL | change})
    with pytest.raises(SampleFailed, match=next(iter(change))):
        await sampled(app)
    app.says({"metrics": {name: value for name, value in WELL.items() if name not in change}})
    with pytest.raises(SampleFailed, match=next(iter(change))):
        await sampled(app)


@pytest.mark.parametrize(
    "body",
    [b"", b"hello", b"[]", b"{}", b'{"metrics": 7}', b'{"metrics": {"error_rate": NaN}}', b"[" * 100_000, b"\xff"],
)
def test_what_is_no_answer_of_the_middleware_is_no_sample(body: bytes):
    """SP-20."""
    with pytest.raises(SampleFailed):
        values_in(body)


async def test_a_flood_instead_of_an_answer_is_cut_off(app: Application):
    app.says("x" * 1_000_000)
    with pytest.raises(SampleFailed, match="longer than"):
        await sampled(app)


# Scheduled


async def test_a_failed_sample_is_tried_again_and_the_verdict_does_without_it(busy_shop: Shop, conn: Connection):
    """SP-23, SP-24, SP-31: with a fresh nonce, after 30 s; accsd's history has why."""
    shop = busy_shop
    made = await shop.triggered()
    await eventually(lambda: samples(conn, made, "pre", 1), within=15)
    await shop.finished(made)
    await eventually(lambda: samples(conn, made, "post", 1), within=15)
    shop.app.is_down()
    await pass_time(conn, 60)
    await shop.build(conn)
    await eventually(lambda: failed_once(conn, made), within=15)
    assert (await jobs_of(conn, made))[2]["last_error"] == "the application answered 503: down for maintenance"
    shop.app.is_well()
    await pass_time(conn, 30)
    await eventually(lambda: samples(conn, made, "post", 2), within=15)
    nonces = [headers["x-seqpulse-nonce"] for headers in shop.app.asked]
    assert len(set(nonces)) == len(nonces)
    await check(conn)


async def failed_once(conn: Connection, deployment: UUID) -> bool:
    return any(job["retry_count"] == 1 for job in await jobs_of(conn, deployment))


async def test_a_refused_signature_ends_the_sample_and_the_analysis_still_runs(busy_shop: Shop, conn: Connection):
    """SP-24, 2.6: permanent; the original cancels the analysis, and the deployment shows as well."""
    shop = busy_shop
    made = await shop.triggered()
    await eventually(lambda: samples(conn, made, "pre", 1), within=15)
    shop.app.is_down(401)
    await shop.finished(made)
    await eventually(lambda: failed(conn, made, 1), within=15)
    await pass_time(conn, 300)
    await shop.build(conn)
    assert await judged(conn, made) == "warning"
    posts = (await jobs_of(conn, made))[1:6]
    assert [(job["job_type"], job["status"]) for job in posts] == [("post_collect", "failed")] * 5
    assert "401" in posts[0]["last_error"]
    assert (await shop.gateway.client.get("/health/scheduler")).json()["failed"] == 5
    status, said = await shop.ask("GET", f"/deployments/{made}")
    assert (status, said["state"], said["verdict"]["verdict"]) == (200, "analyzed", "warning")
    assert "insufficient metrics" in said["verdict"]["summary"]
    await check(conn)


async def failed(conn: Connection, deployment: UUID, least: int) -> bool:
    return sum(job["status"] == "failed" for job in await jobs_of(conn, deployment)) >= least


def working_again(db_url: str, settings: dict[str, Any], folder: Path) -> AbstractAsyncContextManager[Gateway]:
    """Another gateway, which looks often."""
    node = {"state_dir": folder / "again"}
    return serving(db_url, works=True, gateway={"seqpulse": settings}, node=node, poll_sec=0.5)


async def test_after_an_outage_the_verdict_waits_for_what_is_overdue(
    shop: Shop, db_url: str, tmp_path: Path, conn: Connection
):
    """SP-32, S1: everything is due at once; the verdict is given once, so not before the samples were tried."""
    made = await shop.triggered()
    await shop.finished(made)
    await pass_time(conn, 3600)
    await shop.build(conn)
    shop.app.hangs(1.0)
    settings = settings_of(shop.app) | {"concurrency": 3}
    async with working_again(db_url, settings, tmp_path):
        await judged(conn, made)
    assert len([job for job in await jobs_of(conn, made) if job["status"] == "completed"]) == 7
    found = await conn.fetchrow(
        "SELECT results -> 'samples', attempt, lost, attempt_id FROM job_tasks WHERE job_id = $1", made
    )
    assert found is not None
    assert found[0] == {"pre": 1, "post": 5}
    assert (found["attempt"], found["lost"]) == (0, 0), "waiting spends nothing"
    assert found["attempt_id"] > 1
    late = await conn.fetchval("SELECT max(collected_at - scheduled_at) FROM metric_samples WHERE phase = 'post'")
    assert late > timedelta(minutes=50), "when a sample was due is kept beside when it was taken"
    await check(conn)


async def test_the_verdict_does_not_wait_for_ever(shop: Shop, db_url: str, tmp_path: Path, conn: Connection):
    """SP-32: nobody takes the samples; after its patience the analysis says what is missing."""
    made = await shop.triggered()
    await shop.finished(made)
    await conn.execute("SELECT accs.pause('service', 'seqpulse-collect')")
    await pass_time(conn, 300)
    await shop.build(conn)
    settings = settings_of(shop.app) | {"patience": "1s"}
    async with working_again(db_url, settings, tmp_path):
        assert await judged(conn, made) == "warning"
    assert await conn.fetchval("SELECT attempt_id FROM job_tasks WHERE job_id = $1", made) == 2
