"""What a job has left, looked at in the page: only what can not run a script, and honestly where it is not here."""

import io
import wave

from accsd.model.state import ArtifactKind
from tests.support.browser import Tab, browsing
from tests.support.cluster import Connection
from tests.support.factory import finish, node, started, step, submit
from tests.support.gateway import Gateway
from tests.support.stored import png, stored

CANARY = "<b onclick=\"document.title='owned'\">bold</b>"


def sound(seconds: int) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as written:
        written.setnchannels(2)
        written.setsampwidth(2)
        written.setframerate(44_100)
        written.writeframes(bytes(44_100 * 4 * seconds))
    return out.getvalue()


FILES = {
    "frame.png": (png(64, 48), "image/png"),
    "sound.wav": (sound(60), "audio/wav"),
    "clip.webm": (b"not really a film", "video/webm"),
    "facts.json": (f'{{"a": [1, "{CANARY.replace(chr(34), chr(92) + chr(34))}"]}}'.encode(), "application/json"),
    "table.csv": (f"a,b\n1,{CANARY}\n".encode(), "text/csv"),
    "logo.svg": (b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>", "image/svg+xml"),
    "page.html": (b"<script>document.title = 'owned'</script>", "text/html"),
    "gone.txt": (b"x", "text/plain"),
    "away.txt": (b"x", "text/plain"),
}


async def test_artifacts_are_shown_offered_or_said_to_be_elsewhere(conn: Connection, gateway: Gateway):
    """Flow 9."""
    await node(conn)
    job = await submit(conn, step("a"))
    [task] = await started(conn)
    ids = {name: await stored(gateway, task, ArtifactKind.OUTPUT, name, *file) for name, file in FILES.items()}
    await finish(conn, task)
    assert gateway.context.store is not None
    await gateway.context.store.delete(
        await conn.fetchval("SELECT key FROM task_artifacts WHERE id = $1", ids["gone.txt"])
    )
    await conn.execute("UPDATE task_artifacts SET bucket = 'elsewhere' WHERE id = $1", ids["away.txt"])
    async with browsing(gateway) as tab:
        await tab.log_in("read")
        await tab.open(f"/jobs/{job}")
        shown = tab.page.get_by_role("region", name="Preview of")
        await _look(tab, "frame.png")
        image = shown.get_by_role("img", name="frame.png")
        await image.wait_for()
        assert await image.evaluate(
            "image => image.decode().then(() => [image.naturalWidth, image.naturalHeight])"
        ) == [64, 48]
        await _look(tab, "facts.json")
        assert CANARY in (await shown.locator("pre").inner_text()).replace('\\"', '"')
        await _look(tab, "table.csv")
        assert (await shown.locator("pre").inner_text()).splitlines() == ["a,b", f"1,{CANARY}"]
        for name in ("logo.svg", "page.html"):
            await _look(tab, name)
            await shown.get_by_text("it is for download").wait_for()
            assert await shown.locator("img, iframe, object, embed, svg").count() == 0
        await _look(tab, "gone.txt")
        await shown.get_by_text("is not in this gateway's store").wait_for()
        await _look(tab, "away.txt")
        await shown.get_by_text('is in bucket "elsewhere"').wait_for()
        tab.excuse(409)
        await _look(tab, "clip.webm")
        await shown.locator("video[controls]").wait_for()
        await _plays_from_its_middle(tab)
        assert await tab.page.title() != "owned"


async def _look(tab: Tab, name: str) -> None:
    await tab.page.get_by_label("Artifacts", exact=True).get_by_role("button", name=name).click()
    await tab.page.get_by_role("region", name=f"Preview of {name}").wait_for()


async def _plays_from_its_middle(tab: Tab) -> None:
    """A player asks for the part that it needs, not for all that comes before."""
    await _look(tab, "sound.wav")
    player = tab.page.locator("audio[controls]")
    await player.evaluate("a => a.readyState >= 1 || new Promise(done => a.addEventListener('loadedmetadata', done))")
    assert round(await player.evaluate("a => a.duration")) == 60
    async with tab.page.expect_response(lambda answer: "/content" in answer.url and answer.status == 206) as part:
        await player.evaluate("a => { a.currentTime = 50; }")
    assert "bytes=" in (await (await part.value).request.all_headers())["range"]
    await player.evaluate("a => !a.seeking || new Promise(done => a.addEventListener('seeked', done))")
    assert round(await player.evaluate("a => a.currentTime")) == 50
