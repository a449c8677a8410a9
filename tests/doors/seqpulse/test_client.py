"""SeqPulse's own CI client, as it is on PyPI (SP-1 to SP-7), and a whole deployment by it (SP-12, SP-13)."""

import json
import os
import sys
from uuid import UUID

import anyio
import pytest

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.deployments import Shop, jobs_of, judged, samples
from tests.support.eventually import eventually

PIPELINE = """
import json, sys
from seqpulse import create_ci_client
client = create_ci_client(env="prod", non_blocking=sys.argv[1] == "non_blocking")
begun = client.trigger(branch="main")
ended = client.finish(deployment_id=begun.get("deployment_id", ""), pipeline_status="passed") if begun["ok"] else None
print(json.dumps([begun, ended]))
"""


async def test_a_pipeline_announces_a_deployment_and_it_is_judged(busy_shop: Shop, conn: Connection):
    """SP-1, SP-4, SP-5, SP-12, SP-13; S2: one job before, five after, one analysis, each done once."""
    ci = await busy_shop.ci()
    begun = await ci.trigger(branch="main")
    assert (begun["ok"], begun["status"], begun["http_status"], begun["message"]) == (True, "created", 200, None)
    deployment = UUID(begun["deployment_id"])
    await eventually(lambda: samples(conn, deployment, "pre", 1), within=15)
    ended = await ci.finish(deployment_id=str(deployment), result="success")
    assert (ended["ok"], ended["status"], ended["message"]) == (True, "accepted", None)
    await busy_shop.sampled(conn, deployment)
    assert await judged(conn, deployment) == "ok"
    jobs = await jobs_of(conn, deployment)
    assert [(job["job_type"], job["sequence_index"], job["status"]) for job in jobs] == [
        ("pre_collect", None, "completed"),
        *(("post_collect", index, "completed") for index in range(5)),
        ("analysis", None, "completed"),
    ]
    assert (await ci.finish(deployment_id=str(deployment)))["status"] == "ignored"
    await check(conn)


@pytest.mark.parametrize("mode", ["blocking", "non_blocking"])
async def test_a_pipeline_in_a_process_of_its_own(shop: Shop, conn: Connection, mode: str):
    """SP-1, SP-2, SP-3: the client has everything from its environment, and its key from the CI."""
    environment = {
        "SEQPULSE_BASE_URL": f"{shop.gateway.url}/",
        "SEQPULSE_API_KEY": await shop.key(),
        "SEQPULSE_METRICS_ENDPOINT": shop.app.metrics_url,
        "GITHUB_RUN_ID": "77",
        "GITHUB_REF_NAME": "main",
    }
    said = await _pipeline(mode, environment)
    begun, ended = json.loads(said)
    assert (begun["status"], ended["status"]) == ("created", "accepted")
    row = await conn.fetchrow("SELECT idempotency_key, branch, env, created_by FROM accs.seqpulse_deployments")
    assert tuple(row or ()) == ("gha-77-1", "main", "prod", "ci-of-shop")
    begun, ended = json.loads(await _pipeline(mode, environment))
    assert (begun["status"], ended["status"]) == ("existing", "ignored"), "the same run of the CI again"


async def _pipeline(mode: str, environment: dict[str, str]) -> str:
    done = await anyio.run_process([sys.executable, "-c", PIPELINE, mode], env=os.environ | environment)
    return done.stdout.decode()


async def test_errors_are_swallowed_or_raised_as_the_pipeline_wants(shop: Shop, conn: Connection):
    """SP-7: a pipeline never fails because of us, unless it wants to."""
    for given, status in (({"api_key": "accs_aaaaaaaa_" + "A" * 43}, 401), ({"env": "moon"}, 400)):
        quiet = await shop.ci(non_blocking=True, **given)
        refused = await quiet.trigger()
        assert (refused["ok"], refused["skipped"], refused["http_status"]) == (False, True, status)
        assert json.loads(refused["response_text"])["detail"]
        with pytest.raises(RuntimeError, match=f"http {status}"):
            await (await shop.ci(**given)).trigger()
    unreachable = await shop.ci(non_blocking=True, base_url="http://127.0.0.1:1")
    assert (await unreachable.trigger())["skipped"]
    assert await conn.fetchval("SELECT count(*) FROM accs.seqpulse_deployments") == 0
