"""Two jobs side by side: what was planted is named, and nothing else is."""

import base64

from accsd.model.state import ArtifactKind
from tests.support.browser import Tab, browsing
from tests.support.cluster import Connection
from tests.support.factory import chain, fail, finish, started, step, submit_to, workflow
from tests.support.factory import node as add_node
from tests.support.gateway import Gateway
from tests.support.stored import png, stored


async def test_what_differs_from_the_last_good_run_is_all_that_is_said(conn: Connection, gateway: Gateway):
    """Flow 17."""
    await add_node(conn)
    media = await workflow(conn, *chain("ingest", "audio"), step("render", after="audio", max_attempts=1), name="media")
    good = await submit_to(conn, media, options={"shot": "010", "res": {"x": 4, "y": 2}})
    await finish(conn, *await started(conn), results=[{"files": 3}])
    [audio] = await started(conn)
    await stored(gateway, audio, ArtifactKind.OUTPUT, "same.txt", b"the same", "text/plain", step="audio")
    await stored(gateway, audio, ArtifactKind.OUTPUT, "other.txt", b"one", "text/plain", step="audio")
    await finish(conn, audio)
    await finish(conn, *await started(conn))
    bad = await submit_to(conn, media, options={"shot": "010", "res": {"x": 8, "y": 2}})
    await finish(conn, *await started(conn), results=[{"files": 4}])
    [audio] = await started(conn)
    await stored(gateway, audio, ArtifactKind.OUTPUT, "same.txt", b"the same", "text/plain", step="audio")
    await stored(gateway, audio, ArtifactKind.OUTPUT, "other.txt", b"another", "text/plain", step="audio")
    await finish(conn, audio)
    await fail(conn, *await started(conn), code="oom", message="8.1 of 8 GiB")
    async with browsing(gateway) as tab:
        await tab.log_in("read")
        await tab.open(f"/jobs/{bad}")
        await tab.page.get_by_role("link", name="Compare with the last good run").click()
        await tab.page.get_by_text("The first step that differs: ingest, results.files").wait_for()
        found = await tab.page.locator("table.changes").evaluate_all(
            "tables => tables.map(t => [t.getAttribute('aria-label'),"
            " [...t.querySelectorAll('tbody td:first-child')].map(cell => cell.innerText)])"
        )
        assert found == [
            ["Differences of the jobs", ["status", "error code", "error message"]],
            ["Differences of the options", ["res.x"]],
            ["Differences of ingest", ["results.files"]],
            ["Differences of render", ["status", "attempt", "error code"]],
            ["Differences of the artifacts", ["audio/other.txt"]],
        ]
        await tab.page.get_by_text("The same: 1 steps, 1 artifacts.").wait_for()
        assert await tab.page.get_by_role("link", name=str(good)[-8:]).count() == 1


async def test_two_images_lie_over_one_another_and_keys_move_what_is_seen(conn: Connection, gateway: Gateway):
    await add_node(conn)
    media = await workflow(conn, step("a"), name="media")
    jobs: list[str] = []
    for colour in (b"\xff\x00\x00", b"\x00\x00\xff"):
        jobs.append(str(await submit_to(conn, media)))
        [task] = await started(conn)
        await stored(gateway, task, ArtifactKind.OUTPUT, "frame.png", png(320, 200, colour), "image/png")
        await stored(gateway, task, ArtifactKind.OUTPUT, "icon.svg", b"<svg>%d</svg>" % len(jobs), "image/svg+xml")
        await finish(conn, task)
    async with browsing(gateway) as tab:
        await tab.log_in("read")
        await tab.open(f"/compare?a={jobs[1]}")
        handle = tab.page.get_by_role("slider", name="How much of a/frame.png is seen as it was before")
        await handle.wait_for()
        assert await tab.page.get_by_role("slider").count() == 1, "an SVG is shown nowhere"
        await handle.scroll_into_view_if_needed()
        assert await _seen(tab) == ["ff0000", "0000ff"]
        await handle.focus()
        await tab.page.keyboard.press("Home")
        await tab.page.get_by_role("slider").and_(tab.page.locator("[aria-valuetext^='0 % before']")).wait_for()
        assert await _seen(tab) == ["0000ff", "0000ff"]
        box = await handle.bounding_box()
        assert box is not None
        await tab.page.mouse.click(box["x"] + box["width"] * 0.9, box["y"] + box["height"] / 2)
        await tab.page.locator("[aria-valuetext^='90 % before']").wait_for()
        assert await _seen(tab) == ["ff0000", "ff0000"]


async def _seen(tab: Tab) -> list[str]:
    """The colours of a quarter and of three quarters of the way, as they are on the screen."""
    shown = base64.b64encode(await tab.page.locator(".slides").screenshot()).decode()
    return await tab.page.evaluate(
        """async (text) => {
             const picture = await createImageBitmap(new Blob([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))]));
             const { width, height } = picture;
             const pen = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
             pen.drawImage(picture, 0, 0);
             return [0.25, 0.75].map((part) => [...pen.getImageData(width * part, height * 0.8, 1, 1).data]
               .slice(0, 3).map((each) => each.toString(16).padStart(2, "0")).join(""));
           }""",
        shown,
    )
