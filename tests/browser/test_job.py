"""The page of a job: where a failure opens, what a retry will do, graphs of thousands of steps, the past."""

from collections import Counter
from datetime import datetime, timedelta
from random import Random

from tests.support.browser import Tab, browsing
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import chain, clock, done, fail, node, started, step, submit, task, tasks
from tests.support.gateway import Gateway
from tests.support.resolving import ACCEPTED, fan, fan_out, resolve, retry
from tests.support.stored import log, stored_log


async def test_a_failed_job_opens_at_its_first_error_and_each_line_has_an_address(conn: Connection, gateway: Gateway):
    """Flow 3."""
    await node(conn)
    job = await submit(conn, step("cut"), step("render", after="cut", max_attempts=1))
    await done(conn)
    [failed] = await started(conn)
    lines = ("it goes wrong" if n in (170, 400) else f"line {n}" for n in range(1, 601))
    await stored_log(gateway, failed, log(*lines), step="render")
    await fail(conn, failed, code="oom", message="8.1 of 8 GiB")
    async with browsing(gateway) as tab:
        await tab.log_in("read")
        await tab.open(f"/jobs/{job}")
        shown = tab.page.get_by_role("complementary", name="Step render")
        chosen = shown.locator(".line[data-selected] .n")
        await shown.get_by_text("error 1 of 2").wait_for()
        assert await chosen.inner_text() == "170"
        await shown.get_by_role("button", name="Next error").click()
        await shown.get_by_text("error 2 of 2").wait_for()
        link = await shown.get_by_role("button", name="Copy link").get_attribute("aria-label")
        assert link is not None
    async with browsing(gateway) as other:
        await other.log_in("read")
        await other.page.goto(link.removeprefix("Copy link: "))
        await other.page.locator(".line[data-selected]").get_by_text("it goes wrong").wait_for()
        assert await other.page.locator(".line[data-selected] .n").inner_text() == "400"


async def test_a_retry_runs_exactly_what_its_preview_lists_and_history_has_the_reason(
    conn: Connection, gateway: Gateway
):
    """Flow 4."""
    await node(conn)
    job = await submit(conn, *chain("ingest", "audio", "render"), step("thumb", after="ingest"))
    await done(conn)
    await done(conn, 2)
    await fail(conn, *await started(conn), permanent=True)
    async with browsing(gateway) as tab:
        await tab.log_in("operate")
        await tab.open(f"/jobs/{job}")
        await tab.page.get_by_role("button", name="Retry from render").click()
        sheet = tab.page.get_by_role("dialog")
        await sheet.get_by_text("Runs again (1): render").wait_for()
        await sheet.get_by_label("Begin with").select_option("audio")
        await sheet.get_by_text("Runs again (2): audio, render").wait_for()
        await sheet.get_by_text("Keeps its result (2): ingest, thumb").wait_for()
        await sheet.get_by_label("Reason").fill("more memory")
        await sheet.get_by_role("button", name="Retry", exact=True).click()
        await sheet.wait_for(state="detached")
        await tab.page.locator(".head .state").get_by_text("running").wait_for()
    assert await tasks(conn, job) == {"ingest": "done", "audio": "queued", "render": "queued", "thumb": "done"}
    said = (await gateway.get(f"/audit?target={job}", scope="admin")).json()["items"]
    assert ("operate", "more memory") in [(each["actor"], each["reason"]) for each in said]


async def test_five_thousand_equal_steps_are_three_nodes_that_unfold_for_the_keyboard(
    conn: Connection, gateway: Gateway
):
    """Flow 10, the fan: what failed stands outside of the fold by itself."""
    await node(conn)
    parts = [f"part-{n:04d}" for n in range(4998)]
    job = await submit(conn, step("split"), *(step(part, after="split") for part in parts), step("merge", after=parts))
    await done(conn)
    await fail(conn, *await started(conn, 2), permanent=True)
    async with browsing(gateway) as tab:
        await tab.log_in("read")
        await tab.open(f"/jobs/{job}?tab=graph")
        await tab.page.get_by_text("5,000 steps as 5 nodes").wait_for()
        graph = tab.page.locator(".graph")
        assert await graph.get_by_role("button", name="part-0000: error boom").count() == 1
        fan = graph.get_by_role("button", name="render ×4,996: 4,996 queued")
        await fan.focus()
        await tab.page.keyboard.press("Enter")
        cells = tab.page.get_by_label("The tasks of render ×4,996")
        await cells.get_by_role("application").focus()
        await tab.page.keyboard.press("End")
        await cells.get_by_text("part-4997: queued").wait_for()
        await tab.page.keyboard.press("Enter")
        await tab.page.get_by_role("complementary", name="Step part-4997").wait_for()
        await tab.page.get_by_role("link", name="Table").click()
        assert await tab.page.get_by_label("Steps", exact=True).get_attribute("aria-rowcount") == "5001"
        assert await tab.page.locator("main tbody tr").count() < 200, "only what is in view is there"


async def test_five_thousand_different_steps_are_moved_through_on_a_canvas(conn: Connection, gateway: Gateway):
    """Flow 10, the random graph."""
    random = Random(7)
    keys = [f"n{n:04d}" for n in range(5000)]
    before = [
        sorted({keys[random.randrange(max(0, n - 400), n)] for _ in range(2)}) if n > 5 else [] for n in range(5000)
    ]
    job = await submit(conn, *(step(key, f"s{n % 7}", after=before[n]) for n, key in enumerate(keys)))
    async with browsing(gateway) as tab:
        await tab.log_in("read")
        await tab.open(f"/jobs/{job}?tab=graph")
        canvas = tab.page.get_by_role("application")
        await canvas.get_by_text("n0000: queued").wait_for()
        await canvas.focus()
        await tab.page.keyboard.press("ArrowRight")
        told = canvas.locator("[aria-live]")
        await told.filter(has_not_text="n0000").wait_for(state="attached")
        key = (await told.inner_text()).partition(":")[0]
        assert "n0000" in before[keys.index(key)], "it went along an edge"
        place = await canvas.evaluate("frame => { frame.scrollBy(3000, 0); return frame.scrollLeft; }")
        assert place > 2000, "it pans"
        await tab.page.keyboard.press("Enter")
        await tab.page.get_by_role("complementary", name=f"Step {key}").wait_for()


async def test_twenty_five_thousand_tasks_are_folded_by_the_gateway(conn: Connection, gateway: Gateway):
    await node(conn)
    job = await submit(conn, *chain("split", "encode", "render", "join"))
    await conn.execute("SET session_replication_role = replica")  # fan_out would take its time
    for number, (key, parts) in enumerate((("encode", 12_500), ("render", 12_496)), 1):
        await conn.execute(
            """INSERT INTO job_tasks (id, job_id, task_key, service_name, depends_on, step_no, lane, status, parent,
                                      item_no, error_code, finished_at)
               SELECT accs.task_id($1, $3 * 20000 + i), $1, format('%s[%s]', $2::text, i), service_name,
                      depends_on || $2::text, $3 * 20000 + i, lane, CASE i WHEN 12000 THEN 'error' ELSE 'done' END,
                      id, i, CASE i WHEN 12000 THEN 'oom' END, accs.clock()
                 FROM job_tasks, generate_series(0, $4 - 1) i WHERE job_id = $1 AND task_key = $2::text""",
            job,
            key,
            number,
            parts,
        )
    await conn.execute("UPDATE jobs SET task_count = 25000, open_tasks = 4 WHERE id = $1", job)
    await conn.execute("RESET session_replication_role")
    told = await gateway.get(f"/jobs/{job}/fold", scope="read")
    assert len(told.content) < 60_000
    assert [node["units"] for node in told.json()["nodes"]] == [
        [["split", 0]],
        [["encode", 12_500]],
        [["render", 12_496]],
        [["join", 0]],
    ]
    asked: list[str] = []
    async with browsing(gateway) as tab:
        await tab.log_in("read")
        tab.page.on("request", lambda request: asked.append(request.url))
        await tab.open(f"/jobs/{job}?tab=graph")
        await tab.page.get_by_text("25,000 steps as 6 nodes").wait_for()
        assert not [url for url in asked if "/tasks" in url], "the tasks were not read one by one"
        graph = tab.page.locator(".graph")
        assert await graph.get_by_role("button", name="encode[12000]: error").count() == 1
        await graph.get_by_role("button", name="render ×12,496: 1 queued · 12,495 done").focus()
        await tab.page.keyboard.press("Enter")
        await tab.page.get_by_label("The tasks of render ×12,496").get_by_role("application").focus()
        await tab.page.keyboard.press("End")
        await tab.page.keyboard.press("Enter")
        shown = tab.page.get_by_role("complementary", name="Step render[12495]")
        await shown.get_by_text("after render").or_(shown.get_by_text("encode, render")).first.wait_for()
        await tab.page.get_by_role("link", name="Table").click()
        assert await tab.page.get_by_label("Steps", exact=True).get_attribute("aria-rowcount") == "25001"


async def test_the_past_of_a_job_is_that_of_its_events(conn: Connection, gateway: Gateway):
    """Flow 16: three instants, by SQL over task_events."""
    await node(conn)
    job = await submit(conn, *chain("ingest", "audio", "render"), step("thumb", after="ingest", max_attempts=2))
    instants: list[datetime] = []
    await done(conn)
    instants.append(await clock(conn))
    [one, other] = await started(conn, 2)
    await fail(conn, one if (await task(conn, job, "thumb"))["id"] == one["task_id"] else other)
    instants.append(await clock(conn))
    await fail(conn, one if (await task(conn, job, "audio"))["id"] == one["task_id"] else other, permanent=True)
    instants.append(await clock(conn))
    async with browsing(gateway) as tab:
        await tab.log_in("read")
        for instant in instants:
            await _has_states(tab, conn, job, instant)


async def test_an_item_is_not_there_before_its_step_was_multiplied(conn: Connection, gateway: Gateway):
    """Flow 16 with `for_each`, multiplied once more by a retry; who made an item is told by the step's event."""
    await node(conn)
    job = await submit(conn, *fan())
    await done(conn)
    instants = [await clock(conn)]
    await fan_out(conn, job, "each", "a", "b")
    instants.append(await clock(conn))
    await done(conn, 2)
    await resolve(conn, job, "join")
    await done(conn)
    instants.append(await clock(conn))
    await retry(conn, job, "each")
    assert (await fan_out(conn, job, "each", "a", "b", "c"))["answer"] == ACCEPTED
    instants.append(await clock(conn))
    async with browsing(gateway) as tab:
        await tab.log_in("read")
        for instant, there in zip(instants, (3, 5, 5, 6), strict=True):
            shown = await _has_states(tab, conn, job, instant)
            assert len(shown) == there
        await tab.open(f"/jobs/{job}?tab=graph&t={_iso(instants[0])}")
        await tab.page.get_by_text("3 steps").wait_for()
        await tab.open(f"/jobs/{job}?tab=graph&t={_iso(instants[0] - timedelta(days=1))}")
        await tab.page.get_by_text("No step had been made by then.").wait_for()


def _iso(instant: datetime) -> str:
    return instant.isoformat().replace("+00:00", "Z")


async def _has_states(tab: Tab, conn: Connection, job: object, instant: datetime) -> dict[str, str]:
    rows = await conn.fetch(
        """SELECT t.task_key, coalesce((SELECT e.data ->> 'to' FROM task_events e
                    WHERE e.job_task_id = t.id AND e.data ? 'to' AND e.ts <= $2 ORDER BY e.ts DESC, e.id DESC
                    LIMIT 1), 'queued')
             FROM job_tasks t
            WHERE t.job_id = $1 AND (t.parent IS NULL OR EXISTS (
                  SELECT FROM task_events m WHERE m.job_task_id = t.parent AND m.ts <= $2
                     AND (m.data ->> 'items')::int > t.item_no))""",
        job,
        instant,
    )
    expected: dict[str, str] = {row[0]: row[1] for row in rows}
    await tab.open(f"/jobs/{job}?tab=table&t={_iso(instant)}")
    table = tab.page.get_by_label("Steps", exact=True)
    counts = tab.page.get_by_role("group", name="Time machine").get_by_role("status")

    async def shown() -> bool:
        found = await table.locator("tbody tr").evaluate_all(
            "rows => rows.map(row => [row.dataset.key, row.querySelector('.state').dataset.state])"
        )
        counted = await counts.locator(".state").all_inner_texts()
        wanted = Counter(expected.values())
        return dict(found) == expected and {text[1:] for text in counted} == {f"{n} {of}" for of, n in wanted.items()}

    await eventually(shown)
    return expected
