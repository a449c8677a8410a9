"""`accsd demo`, as a newcomer runs it: it tells its story, leaves files that can be opened, and nothing that runs."""

import subprocess
import sys
import wave
from pathlib import Path

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
    for said in ("power cut", "refused: stale_attempt", "render-box is woken", "both jobs are done", "Try next"):
        assert said in told
    with wave.open(str(folder / "results" / "normalized.wav")) as sound:
        assert sound.getnframes() > 10_000
    assert (folder / "results" / "poster.png").read_bytes().startswith(b"\x89PNG")
    eventually_sync(lambda: not still_running(str(folder)), within=20, what="everything ends with the demo")


def test_the_second_story_loses_a_machine_among_the_items(tmp_path: Path):
    folder = tmp_path / "demo"
    played = subprocess.run(
        [sys.executable, "-m", "accsd", "demo", "--story", "fan-out", "--folder", str(folder)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert played.returncode == 0, played.stdout + played.stderr
    for said in ("encode became a task for each", "power cut: studio-2", "join waited for every item", "Try next"):
        assert said in played.stdout
    assert sorted(path.name for path in (folder / "results").iterdir()) == ["index.json", "recording.bin"]
    eventually_sync(lambda: not still_running(str(folder)), within=20, what="everything ends with the demo")


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
