"""The frame of the page: who gets in, what is live, what a hostile name can not do."""

from urllib.parse import quote

from accsd.gateway.routes.page import PAGES
from tests.support.browser import browsing
from tests.support.cluster import Connection
from tests.support.factory import NODE, claim, fail, finish, node, start, step, submit_to, workflow
from tests.support.gateway import Gateway

CANARY = "<img src=x onerror=\"document.title='owned'\">"


async def test_a_job_is_followed_live_from_queued_to_done(conn: Connection, gateway: Gateway):
    """Flow 2: no reload, and every state is told in words."""
    await node(conn, render=1)
    await workflow(conn, step("cut", "render"), name="media")
    async with browsing(gateway) as tab:
        await tab.log_in("operate")
        await tab.open("/workflows/media")
        await tab.page.get_by_role("button", name="Submit").click()
        status = tab.page.locator(".head .state")
        await status.get_by_text("running").wait_for()
        [task] = await claim(conn, service="render")
        await start(conn, task)
        await tab.page.get_by_label("Steps").get_by_text("running").wait_for()
        await finish(conn, task)
        await status.get_by_text("done").wait_for()


async def _hostile(conn: Connection) -> dict[str, str]:
    """A canary in whatever people or programs write. What the pages are about."""
    await node(conn, NODE, {CANARY: CANARY}, render=1)
    await conn.fetch("SELECT * FROM accs.register_node($1, '{}', $2)", CANARY, {CANARY: 1})
    flow = await workflow(conn, step("cut", "render"), name=CANARY)
    await conn.execute("UPDATE workflows SET title = $1", CANARY)
    job = await submit_to(conn, flow, options={CANARY: CANARY})
    [task] = await claim(conn, service="render")
    await start(conn, task)
    await fail(conn, task, message=CANARY, code=CANARY, permanent=True)
    await conn.execute(
        """INSERT INTO schedules (name, title, description, schedule_kind, schedule_expr, workflow, options, condition)
           VALUES ('s', $1, $1, 'cron', '0 3 * * *', $1, $2, NULL), ('e', $1, $1, 'event', 'shop.*', $1, $2, NULL),
                  ('c', $1, $1, 'condition', $1, $1, $2, '{"above": 1}')""",
        CANARY,
        {CANARY: CANARY},
    )
    await conn.fetch("SELECT * FROM accs.pause_schedule('s', p_by => $1, p_reason => $1)", CANARY)
    await conn.fetch("SELECT * FROM accs.emit_event('shop.x', $1, p_source => $2)", {CANARY: CANARY}, CANARY)
    for kind, name in (("service", "render"), ("node", NODE), ("workflow", CANARY)):
        await conn.execute("SELECT accs.pause($1, $2, $3, p_by => $3)", kind, name, CANARY)
    await conn.execute("SELECT accs.hold_schedules(p_by => $1, p_reason => $1)", CANARY)
    await conn.execute(
        "INSERT INTO accs.tool_offers (tool, node, service, document) VALUES ($1, $2, $1, $3)",
        CANARY,
        NODE,
        {"name": CANARY, "description": CANARY},
    )
    await conn.execute("SELECT accs.note_node($1, $2, $2, '{}')", NODE, CANARY)
    await conn.execute("UPDATE accs.power SET because = $1, error = $1", CANARY)
    canary = quote(CANARY, safe="")
    return {"/jobs": str(job), "/fleet": NODE, "/workflows": canary, "/schedules": "s", "/services": "render"} | {
        "/triggers": canary,
        "/tools": "accs.submit",
        "/system": "audit",
    }


async def test_a_hostile_name_is_text_on_every_page(conn: Connection, gateway: Gateway):
    """Flow 18."""
    subjects = await _hostile(conn)
    asked = {"action": "set_priority", "priority": 1, "target": {"ids": [subjects["/jobs"]]}, "reason": CANARY}
    subjects["/operations"] = (await gateway.post("/operations", asked, scope="operate")).json()["id"]
    more = [f"/fleet/{quote(CANARY, safe='')}", "/schedules/e", "/schedules/c", "/system/tokens", "/system/outbox"]
    more += ["/triggers?tab=conditions", "/triggers/e", f"/jobs?q={quote(CANARY, safe='')}", "/schedules/s?edit=1"]
    await gateway.token("read", actor=CANARY)
    async with browsing(gateway) as tab:
        await tab.log_in("admin")
        named = [path.replace("{subject}", subjects.get(path.partition("/{subject}")[0], "")) for path in PAGES]
        seen = 0
        for path in [*named, *more]:
            await tab.open(path)
            await tab.page.wait_for_load_state("load")
            assert await tab.page.title() != "owned"
            assert await tab.page.locator("main img").count() == 0
            seen += await tab.page.get_by_text(CANARY).count() > 0
        assert seen > len(PAGES) / 2  # they are there, as text


async def test_who_may_only_read_sees_what_could_be_done_and_why_not(conn: Connection, gateway: Gateway):
    """Flow 12."""
    flow = await workflow(conn, step("cut", "render"), name="media")
    job = await submit_to(conn, flow)
    async with browsing(gateway) as tab:
        await tab.log_in("read")
        await tab.open(f"/jobs/{job}")
        cancel = tab.page.get_by_role("button", name="Cancel")
        assert await cancel.is_disabled()
        assert await cancel.get_attribute("title") == "needs the scope submit"
        said = await tab.page.evaluate(
            """async path => {
              const headers = {"X-Accsd": "1", "Content-Type": "application/json"};
              const answer = await fetch(path, {method: "POST", headers, body: "{}"});
              return [answer.status, (await answer.json()).code];
            }""",
            f"/api/v1/jobs/{job}/cancel",
        )
        assert said == [403, "scope_missing"]
        tab.forgive("403")
        for path, name in (
            ("/services/render", "Pause"),
            ("/schedules", "New schedule"),
            ("/triggers", "Emit an event"),
        ):
            await tab.open(path)
            refused = tab.page.get_by_role("button", name=name)
            assert await refused.is_disabled()
            assert str(await refused.get_attribute("title")).startswith("needs the scope")
        await tab.open("/system/tokens")
        await tab.page.get_by_text("needs the scope admin").wait_for()
        await tab.page.keyboard.press("Control+k")
        await tab.page.keyboard.type("pause render")
        offered = tab.page.get_by_role("option", name="pause render")
        assert await offered.get_attribute("aria-disabled") == "true"
