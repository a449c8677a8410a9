"""Two jobs side by side: what was planted is named, and nothing else is."""

from accsd.model.state import ArtifactKind
from tests.support.browser import browsing
from tests.support.cluster import Connection
from tests.support.factory import chain, fail, finish, started, step, submit_to, workflow
from tests.support.factory import node as add_node
from tests.support.gateway import Gateway
from tests.support.stored import stored


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
