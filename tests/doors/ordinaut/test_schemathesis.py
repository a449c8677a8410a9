"""Requests made up from the description of the door: no answer is a 5xx, and each one is as the description says."""

import asyncio
from uuid import UUID

from accsd.gateway.ordinaut.app import openapi
from tests.doors.ordinaut.client import ECHO, Client
from tests.gateway.test_schemathesis import hammer
from tests.support.gateway import Gateway


async def test_no_request_leads_to_a_bug_and_every_answer_is_as_described(gateway: Gateway):
    client = Client(gateway, await gateway.token("admin"))
    task = await client.create(payload=ECHO)
    run = (await client.post(f"/tasks/{task['id']}/run_now"))["details"]["run_id"]
    agent = await client.post("/agents", {"name": "helper", "scopes": ["read"]}, 201)
    known = {"task_id": task["id"], "run_id": run, "agent_id": agent["id"]}
    assert all(map(UUID, known.values()))
    assert client.token is not None
    sent = await asyncio.to_thread(hammer, gateway.url, client.token, known, 2, openapi())
    assert sent > 50
