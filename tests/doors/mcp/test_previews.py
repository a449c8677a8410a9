"""Writes in two steps (MC3): what a preview says is what its confirmation does, or nothing is done."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from accsd.errors import AccsdError
from accsd.gateway.mcp.confirmation import Confirmation, Confirmations, digest
from accsd.model.access import Caller, Scope
from tests.support.assistants import Action, over_http
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import pass_time
from tests.support.gateway import Gateway, serving
from tests.support.schedules import plan_all

NIGHTLY: dict[str, Any] = {
    "name": "nightly",
    "workflow": "backup",
    "cron": "30 2 * * *",
    "timezone": "Europe/Berlin",
}


async def a_token(gateway: Gateway, scope: str = "submit", actor: str = "helper", **more: Any) -> str:
    return await gateway.token(scope, actor=actor, kind="assistant", **more)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_assistant_makes_a_schedule_is_told_what_it_does_and_undoes_it(
    gateway: Gateway, conn: Connection, workflow: str, mode: str
):
    """MC3, by the revision of 2026-07-28 and by the handshake before it."""
    async with over_http(gateway, await a_token(gateway), mode=mode) as assistant:
        preview = await assistant.call("create_schedule", **NIGHTLY)

        assert preview["status"] == "preview"
        assert preview["effect"]["words"].startswith("At 02:30 every day, Europe/Berlin. If accsd was down: once")
        assert len(preview["effect"]["next"]) == 3
        assert preview["cost"]["runs_per_day"] == 1
        assert preview["cost"]["untrusted"]["services_without_a_machine"] == ["dumper", "shipper"]
        assert "id" not in preview["effect"], "nothing has an id before it is there"
        assert await conn.fetchval("SELECT count(*) FROM schedules") == 0

        done = await assistant.call("create_schedule", **NIGHTLY, confirm=preview["confirm"])
        assert done["status"] == "done"
        assert done["effect"]["next"] == preview["effect"]["next"]
        row = await conn.fetchrow("SELECT id::text, schedule_expr, created_by, state FROM schedules")
        assert tuple(row or ()) == (done["effect"]["id"], "30 2 * * *", "helper", "active")

        again = await assistant.error("create_schedule", **NIGHTLY)
        assert (again["code"], "it is active" in again["detail"]) == ("already_there", True)

        ended = await assistant.do("end_schedule", schedule="nightly", reason="it was a try")
        assert ended["effect"]["was"] == "active"
        assert await conn.fetchval("SELECT state FROM schedules") == "ended"
        history = await conn.fetch("SELECT what, by, reason FROM accs.schedule_history ORDER BY id")
        assert [tuple(row) for row in history] == [("created", "helper", None), ("ended", "helper", "it was a try")]


async def test_a_preview_says_which_machines_a_run_would_wake(gateway: Gateway, conn: Connection, workflow: str):
    """MC3: cost."""
    await conn.execute(
        "INSERT INTO nodes (name, awake_state, wake_method, mac, max_concurrency, last_seen)"
        " VALUES ('attic', 'sleep', 'wol', '00:11:22:33:44:55', '{\"dumper\": 1}', now() - interval '1 hour')"
    )
    async with over_http(gateway, await a_token(gateway)) as assistant:
        cost = (await assistant.call("submit", workflow="backup"))["cost"]
    assert cost["machines_to_wake"] == 1
    assert cost["untrusted"]["machines_to_wake"] == ["attic"]
    assert cost["untrusted"]["services_without_a_machine"] == ["shipper"]


async def test_a_preview_ends_after_ten_minutes(gateway: Gateway, conn: Connection, workflow: str):
    async with over_http(gateway, await a_token(gateway)) as assistant:
        preview = await assistant.call("submit", workflow="backup")
        await pass_time(conn, 601)
        refused = await assistant.error("submit", workflow="backup", confirm=preview["confirm"])
    assert refused["code"] == "confirmation_expired"
    assert "nothing was done" in refused["detail"]
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 0


async def test_a_confirmation_belongs_to_its_caller_tool_and_arguments(
    gateway: Gateway, conn: Connection, workflow: str
):
    async with over_http(gateway, await a_token(gateway)) as assistant:
        confirm = (await assistant.call("submit", workflow="backup"))["confirm"]
        others = [
            await assistant.error("submit", workflow="backup", options={"all": True}, confirm=confirm),
            await assistant.error("submit", workflow="backup", reason="another", confirm=confirm),
            await assistant.error("emit_event", topic="a.b", confirm=confirm),
        ]
        forged = await assistant.error("submit", workflow="backup", confirm=confirm[:-4] + "AAAA")
        nonsense = await assistant.error("submit", workflow="backup", confirm="!")
    for actor in ("helper", "somebody"):  # the same actor by another token is another caller
        async with over_http(gateway, await a_token(gateway, actor=actor, lives=None)) as assistant:
            others.append(await assistant.error("submit", workflow="backup", confirm=confirm))
    assert {each["code"] for each in others} == {"other_confirmation"}
    assert {forged["code"], nonsense["code"]} == {"unknown_confirmation"}
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 0


async def test_a_confirmation_twice_is_one_write(gateway: Gateway, conn: Connection, workflow: str):
    async with over_http(gateway, await a_token(gateway)) as assistant:
        for tool, given in (("submit", {"workflow": "backup"}), ("emit_event", {"topic": "a.b"})):
            confirm = (await assistant.call(tool, **given))["confirm"]
            first = await assistant.call(tool, **given, confirm=confirm)
            again = await assistant.call(tool, **given, reason=None, confirm=confirm)
            assert (first["effect"]["repeated"], again["effect"]["repeated"]) == (False, True)
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 1
    assert await conn.fetchval("SELECT count(*) FROM events") == 1


async def test_what_has_changed_since_the_preview_is_not_written(gateway: Gateway, conn: Connection, workflow: str):
    """By an edit, by another state, by a newer version of the workflow, by a job that was run again."""
    async with over_http(gateway, await a_token(gateway)) as assistant:
        await assistant.do("create_schedule", **NIGHTLY)
        await plan_all(gateway.context.verbs)
        calls: dict[str, dict[str, Any]] = {
            "pause": {"schedule": "nightly"},
            "snooze": {"schedule": "nightly", "for": "2h"},
            "edit_schedule": {"schedule": "nightly", "changes": {"priority": 5}},
            "end_schedule": {"schedule": "nightly"},
            "run_now": {"schedule": "nightly"},
        }
        previews = {tool: (await assistant.call(tool, **given))["confirm"] for tool, given in calls.items()}
        await conn.execute("UPDATE schedules SET title = 'by somebody else'")
        for tool, given in calls.items():
            refused = await assistant.error(tool, **given, confirm=previews[tool])
            assert refused["code"] == "stale", tool
        assert await conn.fetchval("SELECT state || priority FROM schedules") == "active0"

        preview = await assistant.call("resume", schedule="nightly")
        await conn.execute("SELECT * FROM accs.pause_schedule('nightly')")
        assert (await assistant.error("resume", schedule="nightly", confirm=preview["confirm"]))["code"] == "stale"
        assert await conn.fetchval("SELECT state FROM schedules") == "paused"

        preview = await assistant.call("submit", workflow="backup")
        await conn.execute(
            "INSERT INTO workflows (name, version, steps) SELECT name, 2, steps FROM workflows WHERE name = 'backup'"
        )
        assert (await assistant.error("submit", workflow="backup", confirm=preview["confirm"]))["code"] == "stale"
        assert await conn.fetchval("SELECT count(*) FROM jobs") == 0


async def test_a_schedule_is_not_called_like_an_id(gateway: Gateway, conn: Connection, workflow: str):
    """Neither here nor over HTTP: a deed that is confirmed for one would run into the other."""
    name = "019a0000-0000-7000-8000-000000000000"
    async with over_http(gateway, await gateway.token("operate")) as assistant:
        refused = await assistant.error("create_schedule", **{**NIGHTLY, "name": name})
    answer = await gateway.post("/schedules", {"name": name, "workflow": workflow, "every": "1h"}, scope="submit")
    for said in (refused["untrusted"], answer.json()):
        assert "name looks like the id of a schedule: give it a name that is no UUID" in said["detail"]
    assert (answer.status_code, await conn.fetchval("SELECT count(*) FROM schedules")) == (422, 0)


async def test_nobody_comes_between_the_look_and_the_deed(gateway: Gateway, conn: Connection, workflow: str):
    """G-3: an edit is under way when the confirmation comes: the pause waits for it, sees it, and is taken back."""
    async with over_http(gateway, await a_token(gateway)) as assistant:
        await assistant.do("create_schedule", **NIGHTLY)
        preview = await assistant.call("pause", schedule="nightly")
        async with conn.transaction():
            await conn.execute("UPDATE schedules SET workflow = 'another'")
            confirmed = asyncio.create_task(assistant.error("pause", schedule="nightly", confirm=preview["confirm"]))
            await eventually(lambda: _waits(gateway))
        assert (await confirmed)["code"] == "stale"
    assert await conn.fetchval("SELECT state FROM schedules") == "active"


async def _waits(gateway: Gateway) -> bool:
    return bool(
        await gateway.context.reads.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
    )


@pytest.mark.parametrize(("action", "status"), [("accept", "done"), ("decline", "cancelled"), ("cancel", "cancelled")])
async def test_a_client_that_can_ask_its_person_does(
    gateway: Gateway, conn: Connection, workflow: str, action: Action, status: str
):
    """MC3: elicitation, by an answer that wants input. What the person does not agree to is not done."""
    async with over_http(gateway, await a_token(gateway), answer=lambda: action) as assistant:
        said = await assistant.call("create_schedule", **NIGHTLY)
        assert said["status"] == status
        assert "confirm" not in said
        (question,) = assistant.asked
        assert "would be created" in question
        assert "At 02:30 every day, Europe/Berlin." in question
        assert "Runs a day: 1." in question
    assert await conn.fetchval("SELECT count(*) FROM schedules") == (1 if status == "done" else 0)


async def test_a_client_that_can_not_be_asked_over_this_way_gets_a_preview(gateway: Gateway, workflow: str):
    """Before 2026-07-28 a question is a request of the server's, which HTTP without sessions has no way for."""
    async with over_http(gateway, await a_token(gateway), mode="legacy", answer=lambda: "accept") as assistant:
        assert (await assistant.call("submit", workflow="backup"))["status"] == "preview"
        assert assistant.asked == []


async def test_a_token_may_be_let_off_the_preview_of_what_can_be_repeated(db_url: str, conn: Connection, workflow: str):
    """MC3: the waiver is for idempotent writes on the caller's own, and for no others. What one gateway has previewed
    another one does."""
    async with serving(db_url, gateway={"mcp": {}}) as first:
        token = await a_token(first)
        other = await a_token(first, scope="operate", actor="boss")
        async with over_http(first, token) as assistant:
            confirm = (await assistant.call("create_schedule", **NIGHTLY))["confirm"]
    ids = [text.split("_")[1] for text in (token, other)]
    async with serving(db_url, gateway={"mcp": {"unconfirmed": ids}}) as gateway:
        async with over_http(gateway, token) as assistant:
            done = await assistant.call("create_schedule", **NIGHTLY, confirm=confirm)
            assert done["status"] == "done"
            submitted = await assistant.call("submit", workflow="backup")
            assert submitted["status"] == "preview"  # could not be repeated
            assert (await assistant.call("pause", schedule="nightly"))["status"] == "done"
            assert (await assistant.call("end_schedule", schedule="nightly"))["status"] == "preview"  # destructive
        async with over_http(gateway, other) as assistant:
            assert (await assistant.call("resume", schedule="nightly"))["status"] == "preview"  # not its own
    assert await conn.fetchval("SELECT state FROM schedules") == "paused"


# The seal alone

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
CALLER = Caller("ada", "assistant", frozenset({Scope.SUBMIT}), {}, token_id="aaaaaaaa", session_id=None)


def test_a_confirmation_can_be_opened_by_every_process_with_the_key_of_the_installation():
    made = Confirmation("1", digest(["a"]), NOW.replace(hour=13))
    text = Confirmations(b"k" * 32).seal(made, CALLER, "pause", {"schedule": "s", "reason": "r"})
    again = Confirmations(b"k" * 32).open(text, CALLER, "pause", {"reason": "r", "schedule": "s"}, now=NOW)
    assert again == made


def test_every_changed_character_of_a_confirmation_breaks_its_seal():
    seals = Confirmations(b"k" * 32)
    text = seals.seal(Confirmation("1", "x", NOW.replace(hour=13)), CALLER, "pause", {})
    assert len(text) < 400, "or its own schema would refuse it"
    for place in range(len(text) - 1):  # of the last one some bits are not used
        other = text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]
        with pytest.raises(AccsdError, match="nothing was done"):
            seals.open(other, CALLER, "pause", {}, now=NOW)
