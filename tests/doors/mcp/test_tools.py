"""Each tool once, as an assistant would use it (MC2); resources (MC7); all that one actor has made (MC8)."""

import json
import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from mcp import MCPError

from accsd.gateway.mcp.calls import TOOLS
from tests.support.assistants import over_http
from tests.support.cluster import Connection, TestServer
from tests.support.factory import node, pass_time
from tests.support.gateway import Gateway, serving
from tests.support.library import url_as
from tests.support.roles import roles as roles
from tests.support.schedules import all_roles, plan_all


async def test_the_life_of_a_schedule(gateway: Gateway, conn: Connection, workflow: str):
    """MC2: preview, create, list, show, edit, skip, snooze, pause, resume, run_now, explain, backfill, end."""
    token = await gateway.token("submit", actor="helper", kind="assistant")
    async with over_http(gateway, token) as assistant:
        ahead = await assistant.call("preview_schedule", when={"every": "1h"}, n=5)
        assert len(ahead["occurrences"]) == 5
        assert ahead["words"].startswith("Every hour")

        await assistant.do("create_schedule", name="hourly", workflow="backup", every="1h", title="of the shop")
        await plan_all(gateway.context.verbs)
        (row,) = (await assistant.call("list_schedules", made_by="assistant"))["items"]
        assert (row["made_by"], row["is_yours"], row["kind"]) == ("assistant", True, "interval")
        assert (await assistant.call("list_schedules", made_by="person"))["items"] == []
        shown = (await assistant.call("show_schedule", schedule=row["id"]))["schedule"]
        assert shown["untrusted"]["words"].startswith("Every hour")

        edited = await assistant.do("edit_schedule", schedule="hourly", changes={"priority": 7, "title": None})
        assert edited["effect"]["change"] == "updated"
        assert await conn.fetchval("SELECT priority FROM schedules WHERE title IS NULL") == 7

        first = datetime.fromisoformat(shown["next"][1]["due_at"])
        skipped = await assistant.do("skip", schedule="hourly", nominal=first.isoformat())
        assert skipped["effect"]["due_at"] == shown["next"][1]["due_at"]
        snoozed = await assistant.do("snooze", schedule="hourly", **{"for": "10m"})
        due, was = (datetime.fromisoformat(each) for each in (snoozed["effect"]["due_at"], shown["next"][0]["due_at"]))
        assert due == was + timedelta(minutes=10)
        assert (await assistant.do("pause", schedule="hourly", reason="a holiday"))["effect"]["state"] == "paused"
        assert (await assistant.do("resume", schedule="hourly"))["effect"]["state"] in ("active", "snoozed")

        ran = await assistant.do("run_now", schedule="hourly", options={"all": True})
        job = ran["effect"]["job_id"]
        assert (await assistant.call("show_job", job=job))["job"]["untrusted"]["options"] == {"all": True}

        await pass_time(conn, 5 * 3600)
        await all_roles(gateway.context.verbs)
        happened = await assistant.call("explain", schedule="hourly", at=first.isoformat())
        assert happened["found"]["answer"] == "settled"
        again = {"schedule": "hourly", "from": shown["next"][0]["due_at"], "existing": "all"}
        filled = await assistant.do("backfill", **again)
        assert await conn.fetchval("SELECT count(*) FROM accs.backfills WHERE id::text = $1", filled["effect"]["id"])

        ended = await assistant.do("end_schedule", schedule="hourly", cancel=True)
        assert ended["effect"]["cancelled_jobs"] >= 1
        assert (await assistant.call("list_schedules"))["items"] == []


async def test_the_life_of_a_job(gateway: Gateway, conn: Connection):
    """MC2: check_pipeline, save_pipeline, list_workflows, list_tools, submit, why, logs, explain, cancel, retry."""
    document = {"name": "thumbs", "steps": [{"key": "cut", "service": "cutter"}]}
    async with over_http(gateway, await gateway.token("operate", actor="helper", kind="assistant")) as assistant:
        assert (await assistant.call("check_pipeline", document=document))["steps"] == 1
        wrong = await assistant.error("check_pipeline", document={"name": "w", "steps": [{"key": "a", "service": 1}]})
        assert wrong["untrusted"]["errors"][0]["pointer"] == "/steps/0/service"
        cost = (await assistant.call("save_pipeline", document=document))["cost"]
        assert cost["untrusted"]["services_without_a_machine"] == ["cutter"]
        saved = await assistant.do("save_pipeline", document=document)
        assert (saved["effect"]["version"], saved["effect"]["change"]) == (1, "created")
        assert (await assistant.do("save_pipeline", document=document))["effect"]["change"] == "unchanged"
        (row,) = (await assistant.call("list_workflows", workflow="thumbs"))["items"]
        assert row["untrusted"]["definition"][0]["key"] == "cut"
        names = [each["untrusted"]["name"] for each in (await assistant.call("list_tools"))["items"]]
        assert all(name.startswith("accs.") for name in names)

        job = (await assistant.do("submit", workflow="thumbs", options={"n": 1}))["effect"]["job_id"]
        created = await conn.fetchrow("SELECT created_by, trigger FROM jobs")
        assert tuple(created or ()) == ("helper", {"via": "mcp"})
        reasons = (await assistant.call("why", job=job))["items"]
        assert any("cutter" in json.dumps(each["untrusted"]) for each in reasons)
        task = (await assistant.call("show_job", job=job))["job"]["task_ids"][0]
        assert (await assistant.error("logs", task=task))["code"] == "not_found"  # nobody has begun

        await node(conn, "n1", cutter=1)
        await conn.execute("SELECT * FROM accs.claim_tasks('cutter', 'n1', 'n1', 1, interval '60 s')")
        log = (await assistant.call("logs", task=f"{job}/cut"))["log"]
        assert (log["attempt"], log["total_lines"]) == (1, 0)
        assert "seconds" in (await assistant.call("explain", job=job))["found"]

        preview = await assistant.call("cancel_job", job=job)
        assert (preview["effect"]["stops"], preview["effect"]["untrusted"]["stops"]) == (1, ["cut"])
        await assistant.call("cancel_job", job=job, confirm=preview["confirm"])
        assert await conn.fetchval("SELECT status FROM jobs") == "cancelled"
        audited = await conn.fetchrow("SELECT via, actor, request_id FROM accs.audit WHERE action LIKE 'cancel%'")
        assert audited is not None
        assert (audited["via"], audited["actor"]) == ("mcp", "helper")
        assert audited["request_id"]

        again = await assistant.do("retry", job=job)
        assert again["effect"]["untrusted"]["runs_again"] == ["cut"]
        assert await conn.fetchval("SELECT status FROM jobs") == "running"


async def test_events_and_dead_letters(gateway: Gateway, conn: Connection, workflow: str):
    """MC2: emit_event, list_events, list_dead_letters, redrive."""
    async with over_http(gateway, await gateway.token("operate", actor="helper", kind="assistant")) as assistant:
        await assistant.do("create_schedule", name="on order", workflow="backup", event="shop.order.created")
        await plan_all(gateway.context.verbs)
        emitted = await assistant.do("emit_event", topic="shop.order.created", payload={"id": 7})
        assert emitted["effect"]["matched"] == 1
        await all_roles(gateway.context.verbs)
        (event,) = (await assistant.call("list_events", topic="shop.**"))["items"]
        assert event["untrusted"]["payload"] == {"id": 7}
        assert len(event["job_ids"]) == 1

        await node(conn, "n1", dumper=1)
        await conn.execute("SELECT * FROM accs.claim_tasks('dumper', 'n1', 'n1', 1, interval '60 s')")
        await conn.execute(
            "SELECT * FROM accs.finish_tasks(ARRAY(SELECT id FROM job_tasks WHERE lease_owner IS NOT NULL), ARRAY[1],"
            " 'n1', ARRAY['error'], p_error_codes => ARRAY['no_disk'], p_permanent => ARRAY[true])"
        )
        (letter,) = (await assistant.call("list_dead_letters"))["items"]
        assert letter["untrusted"]["error_code"] == "no_disk"
        too_many = await assistant.error("redrive", ids=list(range(1, 200)))
        assert "ids: List should have at most 100 items" in too_many["detail"]
        preview = await assistant.call("redrive", ids=[letter["id"]])
        await conn.execute("SELECT * FROM accs.dismiss(ARRAY[$1::bigint])", letter["id"])
        refused = await assistant.error("redrive", ids=[letter["id"]], confirm=preview["confirm"])
        assert refused["code"] == "stale", "somebody has settled it meanwhile"
        await assistant.do("redrive", ids=[letter["id"]])  # knowing that it was dismissed
        assert await conn.fetchval("SELECT redriven_at IS NOT NULL FROM dead_letters")


async def test_all_that_an_assistant_has_made_is_listed_paused_and_undone_together(
    gateway: Gateway, conn: Connection, workflow: str
):
    """MC8: by itself, or by somebody who may operate."""
    helper = await gateway.token("submit", actor="helper", kind="assistant")
    async with over_http(gateway, helper) as assistant:
        for name in ("one", "two"):
            await assistant.do("create_schedule", name=name, workflow="backup", every="1h")
        await assistant.do("run_now", schedule="one")
        await assistant.do("submit", workflow="backup")
    await conn.execute(
        "INSERT INTO schedules (name, schedule_kind, schedule_expr, workflow, created_by)"
        " VALUES ('hers', 'cron', '0 5 * * *', 'backup', 'ada')"
    )
    async with over_http(gateway, await gateway.token("operate", actor="ada", kind="person")) as boss:
        made = await boss.call("list_made", created_by="helper")
        assert made["made_by"] == "assistant"
        assert [each["untrusted"]["name"] for each in made["schedules"]] == ["one", "two"]
        assert len(made["jobs"]) == 2
        assert len((await boss.do("pause_made", created_by="helper"))["effect"]["schedules"]) == 2
        assert await states(conn) == {"hers": "active", "one": "paused", "two": "paused"}

        preview = await boss.call("undo_made", created_by="helper")
        async with over_http(gateway, helper) as assistant:
            await assistant.do("submit", workflow="backup")  # one more than was previewed
        refused = await boss.error("undo_made", created_by="helper", confirm=preview["confirm"])
        assert refused["code"] == "stale"
        await boss.do("undo_made", created_by="helper", reason="it was too eager")
        assert await states(conn) == {"hers": "active", "one": "ended", "two": "ended"}
        assert await conn.fetchval("SELECT count(*) FROM jobs WHERE status <> 'cancelled'") == 0
        assert (await boss.call("list_made", created_by="helper"))["schedules"] == []


async def states(conn: Connection) -> dict[str, str]:
    return {row["name"]: row["state"] for row in await conn.fetch("SELECT name, state FROM schedules ORDER BY name")}


async def test_the_door_needs_no_more_than_the_database_role_of_a_gateway(
    server: TestServer, db_url: str, conn: Connection, workflow: str, roles: None
):
    """G-11: a role's grants are what its own process calls."""
    async with serving(db_url) as owner:  # whoever makes tokens
        token = await owner.token("operate", actor="helper", kind="assistant")
    async with (
        serving(url_as(server, db_url, "accs_api"), gateway={"mcp": {}}) as gateway,
        over_http(gateway, token) as assistant,
    ):
        document = {"name": "thumbs", "steps": [{"key": "cut", "service": "cutter"}]}
        await assistant.do("save_pipeline", document=document)
        await assistant.do("create_schedule", name="hourly", workflow="thumbs", every="1h")
        await assistant.do("run_now", schedule="hourly")
        await assistant.do("submit", workflow="backup")
        await assistant.do("emit_event", topic="a.b")
        await assistant.do("pause_made")
        for tool in ("list_schedules", "list_workflows", "list_tools", "list_events", "list_dead_letters"):
            await assistant.call(tool)
        assert "2 open jobs" in (await assistant.do("undo_made"))["said"]


async def test_resources_show_what_the_tools_show(gateway: Gateway, conn: Connection, workflow: str):
    """MC7."""
    async with over_http(gateway, await gateway.token("submit")) as assistant:
        await assistant.do("create_schedule", name="nightly run", workflow="backup", cron="30 2 * * *")
        job = (await assistant.do("submit", workflow="backup"))["effect"]["job_id"]
        templates = (await assistant.client.list_resource_templates()).resource_templates
        assert [each.uri_template for each in templates] == ["schedule://{name}", "job://{id}", "workflow://{name}"]
        listed = {each.uri for each in (await assistant.client.list_resources()).resources}
        assert "workflow://backup" in listed
        for uri in (*listed, "schedule://nightly%20run", f"job://{job}"):
            (content,) = (await assistant.client.read_resource(uri)).contents
            said = json.loads(content.text)  # pyright: ignore[reportAttributeAccessIssue]
            assert "untrusted" in json.dumps(said), uri
        for uri in ("schedule://none", "file:///etc/passwd", "job://x", "nothing"):
            with pytest.raises(MCPError):
                await assistant.client.read_resource(uri)


def test_every_tool_is_called_by_a_test_of_this_file():
    text = Path(__file__).read_text(encoding="utf-8")
    assert [tool for tool in TOOLS if not re.search(rf'\.(call|do)\(\s*"{tool}"', text)] == []
