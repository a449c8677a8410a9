"""`accsd demo`, as a newcomer runs it: it tells its story, leaves files that can be opened, and nothing that runs."""

import re
import signal
import subprocess
import sys
import wave
from pathlib import Path

import httpx

from tests.support.eventually import eventually_sync


def test_the_demo_plays_to_its_end(tmp_path: Path):
    folder = tmp_path / "demo"
    played = subprocess.run(
        [sys.executable, "-m", "accsd", "demo", "--folder", str(folder)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert played.returncode == 0, played.stdout + played.stderr
    told = played.stdout
    for said in (
        "power cut",
        "refused: stale_attempt",
        "render-box is woken",
        "both jobs are done",
        "/#code=",
        "Try next",
    ):
        assert said in told
    with wave.open(str(folder / "results" / "normalized.wav")) as sound:
        assert sound.getnframes() > 10_000
    assert (folder / "results" / "poster.png").read_bytes().startswith(b"\x89PNG")
    eventually_sync(lambda: not still_running(str(folder)), within=20, what="everything ends with the demo")


def test_the_second_story_loses_a_machine_among_the_items_and_its_page_stays_open(tmp_path: Path):
    folder = tmp_path / "demo"
    argv = [sys.executable, "-m", "accsd", "demo", "--story", "fan-out", "--stay", "--folder", str(folder)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as playing:
        try:
            told = said_until(playing, "  ACC_DB_URL=")
            for said in (
                "encode became a task for each",
                "power cut: studio-2",
                "join waited for every item",
                "Try next",
            ):
                assert said in told
            look_at_the_page(told)
            playing.send_signal(signal.SIGINT)
            assert playing.wait(timeout=30) == 0
        finally:
            playing.kill()
    assert sorted(path.name for path in (folder / "results").iterdir()) == ["index.json", "recording.bin"]
    eventually_sync(lambda: not still_running(str(folder)), within=20, what="everything ends with the demo")


def look_at_the_page(told: str) -> None:
    """As a browser does that was given the link: it lets in once."""
    during, after = re.findall(r"(http://127\.0\.0\.1:\d+)/#code=(\S+)", told)
    address, code = after
    assert during[0] == address
    with httpx.Client(base_url=address, headers={"X-Accsd": "1", "Origin": address}) as browser:
        assert "<title>accsd</title>" in browser.get("/").text
        assert browser.post("/api/v1/session", json={"code": code}).is_success
        [job] = browser.get("/api/v1/jobs").json()["items"]
        assert job["status"] == "done"
        assert not browser.post("/api/v1/session", json={"code": code}).is_success


def said_until(playing: "subprocess.Popen[str]", last: str) -> str:
    assert playing.stdout is not None
    told = ""
    for line in playing.stdout:  # ends with the process; pytest's time limit ends a demo that says nothing
        told += line
        if line.startswith(last):
            return told
    raise AssertionError(told)


def still_running(folder: str) -> list[str]:
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if folder in arguments:
            found.append(arguments)
    return found
