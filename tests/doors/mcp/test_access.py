"""Who gets in at /mcp, and what each caller is shown (MC1, MC4)."""

import json
from typing import Any

from accsd.gateway.mcp.calls import TOOLS
from tests.support.assistants import over_http
from tests.support.cluster import Connection
from tests.support.factory import fail, node, started, step, submit, submit_to
from tests.support.factory import workflow as workflow_of
from tests.support.gateway import Gateway
from tests.support.goldens import compare

LIST: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
HEADERS = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}


async def ask(gateway: Gateway, token: str | None, *, method: str = "POST", body: Any = LIST, **headers: str):
    credential = {} if token is None else {"Authorization": f"Bearer {token}"}
    return await gateway.client.request(method, "/mcp", json=body, headers=HEADERS | credential | headers)


async def test_only_a_live_token_gets_in(gateway: Gateway, conn: Connection):
    """MC1, G-5: the verifier is accs.tokens, on loopback, too."""
    assert (await ask(gateway, await gateway.token("read"))).status_code == 200
    cookie = (await gateway.post("/session", {"token": await gateway.token("admin")})).headers["set-cookie"]
    gateway.client.cookies.clear()
    for token in (None, "accs_aaaaaaaa_" + "A" * 43, "x", await gateway.expired(), await gateway.revoked()):
        refused = await ask(gateway, token)
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated"), token
        assert refused.headers["www-authenticate"].startswith("Bearer")
    by_cookie = await ask(gateway, None, Cookie=cookie.partition(";")[0], **{"X-Accsd": "1"})
    assert by_cookie.status_code == 401, "a browser's session is no credential of an assistant"
    share = await ask(gateway, await gateway.share(await submit(conn)))
    assert (share.status_code, share.json()["code"]) == (403, "scope_missing")


async def test_a_token_of_another_door_stays_outside(gateway: Gateway):
    """MC1, G-4."""
    elsewhere = await ask(gateway, await gateway.token("submit", actor="a", limits={"door": "joblib"}))
    assert elsewhere.status_code == 403
    assert "joblib" in elsewhere.json()["detail"]
    assert (await ask(gateway, await gateway.token("submit", actor="b", limits={"door": "mcp"}))).status_code == 200


async def test_hosts_and_origins_are_those_that_are_named(gateway: Gateway):
    """MC1: neither a foreign name that resolves to us, nor a page of another origin."""
    token = await gateway.token("read")
    assert (await ask(gateway, token, Host="evil.example")).status_code == 421
    refused = await ask(gateway, token, Origin="https://evil.example")
    assert (refused.status_code, refused.json()["code"]) == (403, "not_same_origin")
    assert (await ask(gateway, token, Origin="null")).status_code == 403
    assert (await ask(gateway, token, Origin=gateway.url)).status_code == 200


async def test_what_is_no_call_is_refused(gateway: Gateway):
    """G-2, G-10: there is no session and no stream to open or to end; nothing is redirected; a body has its limit."""
    token = await gateway.token("read")
    for method in ("GET", "DELETE", "PUT"):
        refused = await ask(gateway, token, method=method)
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    slash = await gateway.client.post("/mcp/", json=LIST, headers=HEADERS | {"Authorization": f"Bearer {token}"})
    assert slash.status_code == 200
    assert (await ask(gateway, token, body={"x": "y" * 2**20})).status_code == 413
    for body in ({"jsonrpc": "1.0"}, [], "text", {"jsonrpc": "2.0", "id": 1, "method": "no/such"}):
        answer = await ask(gateway, token, body=body)
        assert answer.status_code in (200, 400, 404), body
        assert "error" in answer.json(), body


def test_the_tools_their_scopes_and_hints_are_those_of_the_golden_file():
    """MC2, MC4: a new tool changes the file, so that somebody has looked at who may call it and what it takes."""
    compare(
        "mcp_tools",
        (
            f"{tool.name} {tool.scope} {tool.kind}{' idempotent' if tool.is_idempotent else ''}:"
            f" {' '.join(tool.input_schema['properties'])}"
            for tool in TOOLS.values()
        ),
    )


async def test_a_caller_is_shown_the_tools_of_its_scopes_and_told_what_the_others_need(gateway: Gateway):
    """MC4."""
    allowed = {"read": ["read"], "submit": ["read", "submit"], "operate": ["read", "submit", "operate"], "agent": []}
    for scope, scopes in allowed.items():
        async with over_http(gateway, await gateway.token(scope)) as assistant:
            shown = await assistant.tools()
            assert set(shown) == {tool.name for tool in TOOLS.values() if tool.scope.value in scopes}
            for tool in (tool for tool in TOOLS.values() if tool.name not in shown):
                refused = await assistant.error(tool.name)
                assert refused["code"] == "scope_missing"
                assert refused["scope"] == tool.scope
                assert f'the tool {tool.name} needs the scope "{tool.scope}"' in refused["detail"]
                assert f"--scope {tool.scope}" in refused["hint"]


async def test_hints_say_what_a_tool_may_do(gateway: Gateway):
    """MC2: read-only, idempotent, destructive; and a schema of what it gives."""
    async with over_http(gateway, await gateway.token("admin")) as assistant:
        tools = await assistant.tools()
    for tool in tools.values():
        known = TOOLS[tool.name]
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint == (known.kind == "read")
        assert tool.annotations.destructive_hint == (known.kind == "destructive")
        assert tool.output_schema is not None
        assert tool.output_schema["type"] == "object"
        assert ("confirm" in tool.input_schema["properties"]) == (known.kind != "read")
    destructive = {name for name, tool in tools.items() if tool.annotations and tool.annotations.destructive_hint}
    assert destructive == {"cancel_job", "end_schedule", "backfill", "retry", "redrive", "undo_made"}


def test_no_tool_takes_sql_a_url_a_path_or_a_command():
    """MC6."""
    forbidden = {"sql", "query", "statement", "url", "uri", "path", "file", "folder", "command", "cmd", "args", "shell"}
    for tool in TOOLS.values():
        names = set(json.dumps(tool.input_schema).replace('"', " ").replace(":", " ").split())
        assert not forbidden & set(tool.input_schema["properties"]), tool.name
        assert not {"uri", "uri-reference"} & names, tool.name


async def test_a_schedule_that_an_assistant_writes_has_no_probe_and_files_come_with_no_pipeline(gateway: Gateway):
    """MC6: not by way of a document either."""
    async with over_http(gateway, await gateway.token("operate")) as assistant:
        for source in ({"sql": "SELECT 1"}, {"http": "http://localhost/"}):
            condition = {"source": source, "every": "60s", "above": 1}
            refused = await assistant.error("create_schedule", name="s", workflow="w", condition=condition)
            assert (refused["code"], "no probe by SQL or HTTP" in refused["detail"]) == ("invalid", True)
        refused = await assistant.error("create_schedule", name="s", workflow="w", event="**")
        assert refused["scope"] == "admin"
        document = {"name": "w", "steps": [{"key": "a", "service": "s", "command": ["rm"]}]}
        assert (await assistant.error("save_pipeline", document=document))["code"] == "workflow_invalid"


# What a token's limits leave


async def test_the_limits_of_a_token_hold_here_too(gateway: Gateway, conn: Connection):
    for name in ("media-cut", "payroll"):
        await conn.execute('INSERT INTO workflows (name, steps) VALUES ($1, \'[{"key": "a", "service": "s"}]\')', name)
        await conn.execute(
            "INSERT INTO schedules (name, schedule_kind, schedule_expr, workflow) VALUES ($1, 'cron', '0 5 * * *', $2)",
            f"of {name}",
            name,
        )
    hidden = (await gateway.post("/jobs", {"workflow": "payroll"}, scope="operate")).json()["id"]
    task = await conn.fetchval("SELECT id::text FROM job_tasks")
    await gateway.post("/events", {"topic": "pay.day"}, scope="operate")
    limits = {"workflows": ["media-*"], "events": ["media.*"]}
    async with over_http(gateway, await gateway.token("operate", actor="studio", limits=limits)) as assistant:
        (row,) = (await assistant.call("list_schedules"))["items"]
        assert row["untrusted"]["name"] == "of media-cut"
        (row,) = (await assistant.call("list_workflows"))["items"]
        assert row["untrusted"]["name"] == "media-cut"
        assert (await assistant.call("list_events"))["items"] == []
        resources = (await assistant.client.list_resources()).resources
        assert not any("payroll" in str(each) for each in resources)
        for tool, given in {
            "show_schedule": {"schedule": "of payroll"},
            "pause": {"schedule": "of payroll"},
            "run_now": {"schedule": "of payroll"},
            "list_workflows": {"workflow": "payroll"},
            "show_job": {"job": hidden},
            "cancel_job": {"job": hidden},
            "why": {"task": task},
            "logs": {"task": f"{hidden}/a"},
        }.items():
            assert (await assistant.error(tool, **given))["code"] == "not_found", tool
        assert (await assistant.error("why", job=hidden[:8]))["code"] == "not_found", "parts of ids would tell"
        for tool, given in {
            "submit": {"workflow": "payroll"},
            "create_schedule": {"name": "s", "workflow": "payroll", "every": "1h"},
            "edit_schedule": {"schedule": "of media-cut", "changes": {"workflow": "payroll"}},
            "emit_event": {"topic": "pay.day"},
            "save_pipeline": {"document": {"name": "payroll", "steps": [{"key": "a", "service": "s"}]}},
        }.items():
            assert (await assistant.error(tool, **given))["code"] == "scope_missing", tool


async def test_what_belongs_to_others_needs_the_scope_operate(gateway: Gateway, conn: Connection, workflow: str):
    await conn.execute(
        "INSERT INTO schedules (name, schedule_kind, schedule_expr, workflow, created_by)"
        " VALUES ('hers', 'cron', '0 5 * * *', 'backup', 'ada')"
    )
    job = (await gateway.post("/jobs", {"workflow": "backup"}, scope="operate")).json()["id"]
    calls: dict[str, dict[str, Any]] = {
        "pause": {"schedule": "hers"},
        "run_now": {"schedule": "hers"},
        "edit_schedule": {"schedule": "hers", "changes": {"priority": 1}},
        "end_schedule": {"schedule": "hers"},
        "cancel_job": {"job": job},
        "undo_made": {"created_by": "ada"},
    }
    async with over_http(gateway, await gateway.token("submit")) as assistant:
        for tool, given in calls.items():
            refused = await assistant.error(tool, **given)
            assert (refused["code"], refused["scope"]) == ("not_yours", "operate"), tool
    async with over_http(gateway, await gateway.token("operate")) as assistant:
        for tool, given in calls.items():
            assert (await assistant.call(tool, **given))["status"] == "preview", tool


async def test_a_schedule_of_an_assistant_does_not_run_every_second(gateway: Gateway, workflow: str):
    """AG4: 60 s, unless its actor's own limits say otherwise."""
    async with over_http(gateway, await gateway.token("submit", actor="helper", kind="assistant")) as assistant:
        refused = await assistant.error("create_schedule", name="s", workflow="backup", every="10s")
        assert (refused["code"], "every 60 s" in refused["detail"]) == ("quota", True)
        preview = await assistant.call("create_schedule", name="s", workflow="backup", every="1m")
        assert preview["cost"]["runs_per_day"] == 1440


async def test_arguments_that_are_not_known_or_too_large_are_refused_with_their_place(gateway: Gateway):
    """Against G-6: what an assistant misspells does nothing."""
    async with over_http(gateway, await gateway.token("submit")) as assistant:
        unknown = await assistant.error("list_schedules", stat="active")
        assert (unknown["code"], unknown["detail"]) == ("invalid", "stat: Extra inputs are not permitted")
        assert "limit" in (await assistant.error("list_events", limit=5000))["detail"]
        large = await assistant.error("emit_event", topic="a.b", payload={"x": "y" * 600_000})
        assert large["code"] == "too_large"
        assert (await assistant.error("no_such_tool"))["code"] == "unknown_tool"


async def test_what_became_of_work_that_a_token_does_not_reach_is_in_no_list_of_events(
    gateway: Gateway, conn: Connection
):
    await node(conn, svc=5)
    flows = [await workflow_of(conn, step("a"), name=name) for name in ("media-cut", "payroll")]
    ear = {"name": "ear", "workflow": "media-cut", "event": "accs.job.error"}
    assert (await gateway.post("/schedules", ear, scope="operate")).status_code == 201
    await conn.execute("SELECT accs.choose_outcomes()")
    for flow in flows:
        await submit_to(conn, flow)
        await fail(conn, *await started(conn), permanent=True)
    token = await gateway.token("operate", actor="studio", limits={"workflows": ["media-*"]})
    async with over_http(gateway, token) as assistant:
        (row,) = (await assistant.call("list_events", topic="accs.**"))["items"]
        assert row["untrusted"]["payload"]["workflow"] == "media-cut"


async def test_values_that_json_does_not_have_are_refused_and_the_door_stays_well(gateway: Gateway):
    """G-10."""
    token = await gateway.token("submit")
    deep = "[" * 2000 + "]" * 2000
    for value in ("NaN", "-Infinity", "1" * 400, deep, '"\\u0000"', '"\\ud800"'):
        body = (
            '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "emit_event", "arguments":'
            f' {{"topic": "a.b", "payload": {{"x": {value}}}}}}}}}'
        )
        headers = HEADERS | {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        answer = await gateway.client.post("/mcp", content=body, headers=headers)
        assert answer.status_code in (200, 400), value[:20]
        said = answer.json()
        assert "error" in said or said["result"]["isError"], value[:20]
        assert "bug" not in answer.text, value[:20]
    assert (await ask(gateway, token)).status_code == 200
