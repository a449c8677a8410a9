"""Tools: versions that never change, workflows that are bound to them, and the four checks of TL4 (TL1 to TL4)."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from accsd.builder.resolver import Resolver
from accsd.db import Database, Submission, Verdict, apply_workflow, claim_tasks, submit_job, upsert_heartbeat
from accsd.db.tools import find_tools, put_tool, retire_tool
from accsd.db.workflows import apply_workflows, find_workflow
from accsd.errors import NotFound, VerbRefused, WorkflowInvalid
from accsd.model import WorkflowDef
from accsd.model.tool import ToolDef
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import LEASE, job, step, task, tasks
from tests.support.library import opened

PROBE: dict[str, Any] = {
    "name": "media.probe",
    "service": "prober",
    "input_schema": {"required": ["url"], "properties": {"url": {"type": "string"}, "depth": {"type": "integer"}}},
    "output_schema": {"required": ["seconds"], "properties": {"seconds": {"type": "number"}}},
    "defaults": {"timeout": "2m", "max_attempts": 5},
}


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as database:
        yield database


async def put(db: Database, **changed: Any) -> int:
    return (await put_tool(db, ToolDef.model_validate(PROBE | changed))).version


def using(uses: str, given: dict[str, Any], **fields: Any) -> WorkflowDef:
    steps = [{"key": "a", "uses": uses, "with": given, **fields}]
    return WorkflowDef.model_validate({"name": "w", "steps": steps})


async def submitted(db: Database, workflow: WorkflowDef, **options: Any) -> UUID:
    return await submit_job(db, Submission(await apply_workflow(db, workflow), options))


async def resolved(db: Database) -> str | None:
    return (await Resolver(db).run_once()).did


async def test_what_differs_becomes_the_next_version_and_the_same_changes_nothing(db: Database):
    assert [await put(db), await put(db), await put(db, description="looks"), await put(db)] == [1, 1, 2, 3]
    assert [tool.version for tool in await find_tools(db, ["media.probe"])] == [3, 2, 1]


async def test_a_version_can_not_be_changed_and_one_that_is_used_not_be_deleted(db: Database, conn: Connection):
    await put(db)
    await apply_workflow(db, using("media.probe", {"url": "x"}))

    with pytest.raises(asyncpg.PostgresError, match="can't be changed"):
        await conn.execute("UPDATE tools SET description = 'other' WHERE name = 'media.probe'")
    with pytest.raises(asyncpg.PostgresError, match="is used by a workflow"):
        await conn.execute("DELETE FROM tools WHERE name = 'media.probe'")


async def test_a_step_is_bound_to_the_newest_version_when_its_workflow_is_written(db: Database):
    """TL2"""
    await put(db)
    await apply_workflow(db, using("media.probe", {"url": "x"}, max_attempts=2))
    await put(db, description="newer")

    found = await find_workflow(db, "w")
    assert found is not None
    bound = found.definition().steps[0]
    assert (bound.uses, bound.service, bound.timeout, bound.max_attempts) == ("media.probe@1", "prober", 120.0, 2)
    (again,) = await apply_workflows(db, [using("media.probe", {"url": "x"}, max_attempts=2)])
    assert (again.change, again.version) == ("created", 2), "a newer tool makes a newer workflow"
    (same,) = await apply_workflows(db, [using("media.probe@2", {"url": "x"}, max_attempts=2)])
    assert same.change == "unchanged"


async def test_a_retired_tool_is_for_no_new_workflow(db: Database):
    await put(db)
    await apply_workflow(db, using("media.probe", {"url": "x"}))
    assert await retire_tool(db, "media.probe") is Verdict.ACCEPTED
    assert await retire_tool(db, "media.probe") is Verdict.REPEATED

    for uses in ("media.probe", "media.probe@1"):
        with pytest.raises(WorkflowInvalid, match="which is retired"):
            await apply_workflow(db, using(uses, {"url": "x"}))
    await submitted_is_resolved(db)
    with pytest.raises(NotFound):
        await retire_tool(db, "media.prob")
    with pytest.raises(VerbRefused, match="builtin"):
        await retire_tool(db, "accs.submit")


async def submitted_is_resolved(db: Database) -> None:
    found = await find_workflow(db, "w")
    assert found is not None
    await submit_job(db, Submission(found.id))
    assert await resolved(db) == "1 resolved"


@pytest.mark.parametrize(
    ("uses", "given", "said"),
    [
        ("media.prob", {"url": "x"}, "names the tool media.prob, which is not there"),
        ("media.probe@7", {"url": "x"}, "of media.probe there are the versions 1"),
        ("media.probe", {"depth": "deep"}, "with.depth must be a whole number; .* with.url is missing"),
        ("media.probe", {"url": "x", "colour": 1}, 'with has an unknown field "colour"'),
        ("media.probe", {"url": "${params.url}", "depth": "deep"}, "with.depth must be a whole number$"),
    ],
)
async def test_what_is_wrong_with_a_use_is_said_when_the_workflow_is_written(
    db: Database, uses: str, given: dict[str, Any], said: str
):
    """TL3, TL4: templated places are left open."""
    await put(db)
    with pytest.raises(WorkflowInvalid, match=said):
        await apply_workflow(db, using(uses, given))


async def test_a_use_that_was_written_by_hand_must_be_bound(db: Database, conn: Connection):
    await put(db)
    for wrong, said in (
        ({"uses": "media.probe"}, "a tool and its version"),
        ({"uses": "media.probe@2"}, "there is no tool"),
        ({"uses": "media.probe@1", "service": "other"}, 'needs the service "prober"'),
        ({"service": "accs"}, "say which one"),
    ):
        with pytest.raises(asyncpg.PostgresError, match=said):
            await conn.execute(
                "INSERT INTO workflows (name, steps) VALUES ('h', $1)", [{"key": "a", "service": "prober", **wrong}]
            )


async def test_the_rendered_input_is_checked_and_every_path_named(db: Database, conn: Connection):
    """TL4"""
    await put(db)
    made = await submitted(
        db, using("media.probe", {"url": "${params.url}", "depth": "${params.depth}"}), url=7, depth="x"
    )

    assert await resolved(db) == "1 in error"
    found = await task(conn, made)
    assert (found["status"], found["error_code"], found["attempt"]) == ("error", "input_invalid", 1)
    assert found["error_message"] == 'step "a": with.depth must be a whole number; with.url must be a text'
    assert (await job(conn, made))["status"] == "error"
    await check(conn)


async def test_the_output_schema_travels_with_the_claim_only_where_there_is_one(db: Database):
    await put(db)
    await put(db, name="media.untyped", output_schema=None)
    for workflow in (using("media.probe", {"url": "x"}), using("media.untyped", {"url": "x"})):
        await submitted(db, workflow.model_copy(update={"name": workflow.steps[0].uses}))
    assert await resolved(db) == "1 resolved", "the other has nothing to resolve"

    await upsert_heartbeat(db, "n1")
    claimed = await claim_tasks(db, "prober", owner="n1", node="n1", limit=5, lease=LEASE)
    assert sorted((each.tool, (each.output_schema or {}).get("required")) for each in claimed if each.tool) == [
        ("media.probe@1", ["seconds"])
    ]
    assert [each.output_schema for each in claimed if each.tool is None] == [None]


async def test_transform_and_assert_need_no_node(db: Database, conn: Connection):
    """TL6"""
    steps = [
        {"key": "sum", "uses": "accs.transform", "with": {"n": "${params.n + 1}", "who": "x"}},
        {"key": "ok", "uses": "accs.assert", "with": {"that": "${steps.sum.n == 3}"}, "depends_on": ["sum"]},
        {
            "key": "no",
            "uses": "accs.assert",
            "with": {"that": "${steps.sum.n > 3}", "message": "only ${steps.sum.n}"},
            "depends_on": ["ok"],
        },
    ]
    made = await submitted(db, WorkflowDef.model_validate({"name": "w", "steps": steps}), n=2)

    assert [await resolved(db) for _ in range(3)] == ["1 done", "1 done", "1 in error"]
    assert await tasks(conn, made) == {"sum": "done", "ok": "done", "no": "error"}
    assert (await task(conn, made, "sum"))["results"] == {"n": 3, "who": "x"}
    failed = await task(conn, made, "no")
    assert (failed["error_code"], failed["error_message"]) == ("assertion_failed", "only 3")
    await check(conn)


async def test_a_secret_is_named_and_never_a_value(db: Database, conn: Connection):
    """PL5"""
    await put(
        db, input_schema={"properties": {"url": {"type": "string", "minLength": 99}, "x": {}}, "required": ["url"]}
    )
    given = {"url": "${secret('token')}", "x": "${params.x}"}
    made = await submitted(db, using("media.probe", given), x={"$secret": "token", "secrets": 1})

    assert await resolved(db) == "1 resolved"
    assert (await task(conn, made))["given"] | {"now": ""} == {
        "now": "",
        "with": {"url": None, "x": {"$secret": "token", "secrets": 1}},
        "secrets": [{"at": ["url"], "name": "token"}],
        "tool": "media.probe@1",
    }


def test_a_step_without_service_and_tool_is_refused():
    with pytest.raises(WorkflowInvalid, match='step "a": service is missing'):
        WorkflowDef.model_validate({"name": "w", "steps": [{"key": "a"}]})
    with pytest.raises(WorkflowInvalid, match="reserved for tools"):
        WorkflowDef.model_validate({"name": "w", "steps": [step("a", "accs")]})


async def test_a_tool_is_for_those_whose_limits_allow_it_when_it_is_written_and_when_it_runs(
    db: Database, conn: Connection
):
    """TL9"""
    await put(db)
    workflow = using("media.probe", {"url": "${params.url}"})

    async def may(*tools: str, actor: str = "eva") -> None:
        await conn.fetchval("SELECT accs.put_actor($1, 'person', $2)", actor, {"tools": list(tools)})

    await may("chat.*", "accs.")
    with pytest.raises(WorkflowInvalid, match=r'step "a": eva may not use the tool media\.probe') as refused:
        await apply_workflow(db, workflow, created_by="eva")
    assert refused.value.complaints[0][0] == ("steps", 0, "uses")
    by_hand = "INSERT INTO workflows (name, steps, created_by) SELECT 'v', steps, 'eva' FROM workflows WHERE name = 'w'"
    await apply_workflow(db, workflow, created_by="tom")
    with pytest.raises(asyncpg.PostgresError, match=r'eva may not use the tool "media\.probe@1"'):
        await conn.execute(by_hand)

    await may("media.")
    await conn.execute(by_hand)
    (v,) = await conn.fetch("SELECT id FROM workflows WHERE name = 'v'")
    runs = await submit_job(db, Submission(v["id"], {"url": "x"}))
    assert await resolved(db) == "1 resolved"
    late = await submit_job(db, Submission(v["id"], {"url": "x"}))
    await may("chat.")
    assert await resolved(db) == "1 in error"
    found = await task(conn, late)
    assert (found["status"], found["error_code"]) == ("error", "tool_refused")
    assert found["error_message"] == 'step "a": eva may not use the tool media.probe'
    assert (await task(conn, runs))["status"] == "queued", "what was resolved before goes on"

    w = await conn.fetchval("SELECT id FROM workflows WHERE name = 'w'")
    hers = await submit_job(db, Submission(w, {"url": "x"}), created_by="eva")
    assert await resolved(db) == "1 in error", "who submits it may not, though the workflow is another's"
    assert (await job(conn, hers))["status"] == "error"
    for wrong in ({"tools": "media."}, {"tools": [7]}, {"schedules": []}):
        with pytest.raises(asyncpg.CheckViolationError):
            await conn.fetchval("SELECT accs.put_actor('x', 'person', $1)", wrong)
    await check(conn)


# What nodes offer


async def _offer(conn: Connection, *tools: Any, node: str = "n1") -> None:
    await conn.fetch("SELECT * FROM accs.register_node($1, p_tools => $2)", node, list(tools))


async def _offers(conn: Connection) -> list[tuple[str, str, str]]:
    rows = await conn.fetch("SELECT node, service, tool FROM accs.tool_offers ORDER BY node, service")
    return [tuple(row) for row in rows]


async def test_a_node_says_which_tools_its_services_offer_and_they_are_no_tools_yet(conn: Connection):
    probe = {"name": "media.probe", "service": "prober", "input_schema": {"type": "nonsense"}}
    await _offer(conn, probe, {"name": "media.cut", "service": "cutter"})
    assert await _offers(conn) == [("n1", "cutter", "media.cut"), ("n1", "prober", "media.probe")]
    assert await conn.fetchval("SELECT count(*) FROM tools WHERE name LIKE 'media.%'") == 0
    await conn.fetch("SELECT * FROM accs.register_node('n1')")
    assert len(await _offers(conn)) == 2, "who says nothing of tools changes nothing"
    await _offer(conn, {"name": "media.trim", "service": "cutter"})
    assert await _offers(conn) == [("n1", "cutter", "media.trim")]
    await _offer(conn)
    assert await _offers(conn) == []


async def test_an_offer_that_is_too_large_is_left_out_and_the_node_is_registered(conn: Connection):
    large = {"description": "x" * 70_000}
    wrong = [{"name": "a.b", "service": "s1", "input_schema": large}, {"name": "a.b", "service": "s2", **large}, 5]
    await _offer(conn, {"name": "a.b"}, {"service": "s3"}, *wrong, {"name": "a.c", "service": "s4"})
    assert await _offers(conn) == [("n1", "s4", "a.c")]
    with pytest.raises(asyncpg.InvalidParameterValueError, match="at most 50"):
        await _offer(conn, *({"name": "a.b", "service": f"s{n}"} for n in range(51)))


async def test_the_offers_of_a_node_go_with_it(conn: Connection):
    await _offer(conn, {"name": "a.b", "service": "s"})
    await _offer(conn, {"name": "a.b", "service": "s"}, node="n2")
    await conn.execute("SELECT accs.node_leaves('n1')")
    await conn.fetch("SELECT * FROM accs.forget_node('n1', '0')")
    assert await _offers(conn) == [("n2", "s", "a.b")]
