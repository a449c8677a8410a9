"""The log of an attempt on a real disk: every line in exactly one object, whenever the agent dies."""

import asyncio
import json
import os
import random
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import anyio
import pytest

from accsd import proc
from accsd.errors import AttemptFailed
from accsd.log import register_secret
from accsd.model.outcome import ErrorCode
from accsd.model.state import Level
from accsd.runners.base import Output, Stream
from accsd.work import tasklog
from accsd.work.execution import OutputReader
from accsd.work.protocol import ArtifactAnnounced, Expected, LogLine, Result
from accsd.work.protocol.framing import LineSplitter, PartialLine
from accsd.work.tasklog import SEGMENT_BYTES, LogPosition, Segment, Ship, TaskLog

ROOT = Path(__file__).parents[2]
EXPECTED = Expected(UUID(int=1), 7)
NOW = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
LINES = {stream: [f"{stream} line {n} {'é' * (n % 40)}" for n in range(400)] for stream in Stream}
SAID = ['{"type": "result", "results": {"n": 1}}', '{"type": "artifact", "path": "a.wav"}']


def line(text: str) -> LogLine:
    return LogLine(Level.INFO, text)


def place(number: int) -> Callable[[], LogPosition]:
    return lambda: LogPosition({"at": number})


def records(*files: Path) -> list[dict[str, object]]:
    return [json.loads(written) for file in files for written in file.read_text().splitlines()]


async def ship_all(log: TaskLog, ship: Ship) -> None:
    while log.unshipped:
        await log.ship_next(ship)


# One attempt whose output lies in two files, as a process's does; any agent can go on with it.


def write_output(folder: Path) -> None:
    """The result and the artifact come early: an agent that reads on must know of them without hearing them again."""
    folder.mkdir()
    for stream, lines in LINES.items():
        said = SAID if stream is Stream.STDOUT else []
        (folder / stream).write_bytes("\n".join([*lines[:20], *said, *lines[20:]]).encode())


def chunks(folder: Path, cursor: dict[str, int], chance: random.Random) -> Iterator[Output]:
    written = {stream: (folder / stream).read_bytes() for stream in Stream}
    at = {stream: cursor.get(stream, 0) for stream in Stream}
    while left := [stream for stream in Stream if at[stream] < len(written[stream])]:
        stream = chance.choice(left)
        data = written[stream][at[stream] :][: chance.randint(1, 3000)]
        at[stream] += len(data)
        yield Output(stream, data, {str(name): offset for name, offset in at.items()})


async def run_agent(here: Path, seed: int, step: Callable[[], None]) -> OutputReader:
    """Hears the rest of the output, ships the rest of the log to `here / store`; `step` is where it may die."""

    async def ship(segment: Segment) -> None:
        step()
        copy = here / "store" / f"{segment.name}.new"
        shutil.copy(segment.path, copy)
        copy.rename(here / "store" / segment.name)
        step()

    chance = random.Random(seed)
    (here / "store").mkdir(exist_ok=True)
    log = TaskLog(here / "spool")
    hearing = OutputReader(EXPECTED, log)
    await ship_all(log, ship)
    for output in chunks(here / "output", dict(hearing.cursor), chance):
        hearing.hear(output)
        if chance.random() < 0.3:
            await hearing.seal()
            step()
        if chance.random() < 0.2:
            await ship_all(log, ship)
    hearing.close()
    await hearing.seal()
    step()
    await ship_all(log, ship)
    return hearing


def assert_all_is_there_once(here: Path, hearing: OutputReader | None = None) -> None:
    kept = records(*sorted((here / "store").glob("*.jsonl")))
    for stream, lines in LINES.items():
        assert [record["message"] for record in kept if record["stream"] == stream] == lines
    assert not list((here / "spool").glob("*.jsonl"))
    if hearing is not None:
        assert hearing.answer.result == Result({"n": 1})
        assert hearing.answer.artifacts == {"a.wav": ArtifactAnnounced("a.wav")}
        assert hearing.output_bytes == sum((here / "output" / stream).stat().st_size for stream in Stream)


class Photographer:
    """Copies the folder at each moment that a crash could leave behind, torn writes included."""

    def __init__(self, here: Path, album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here, self.album, self.taken = here, album, list[Path]()
        fsync, replace, unlink = os.fsync, os.replace, Path.unlink
        monkeypatch.setattr(os, "fsync", lambda fd: (self.tear(fd), fsync(fd), self.take()))
        monkeypatch.setattr(os, "replace", lambda *paths: (self.take(), replace(*paths), self.take()))
        monkeypatch.setattr(Path, "unlink", lambda *args, **more: (self.take(), unlink(*args, **more), self.take()))

    def take(self) -> Path:
        photo = self.album / str(len(self.taken))
        shutil.copytree(self.here, photo)
        self.taken.append(photo)
        return photo

    def tear(self, fd: int) -> None:
        """Not all of this file had reached the disk."""
        written = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if written.is_file():
            os.truncate(self.take() / written.relative_to(self.here), written.stat().st_size // 2)


async def test_a_crash_at_any_step_loses_no_line_and_repeats_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "agent"
    here.mkdir()
    write_output(here / "output")
    with monkeypatch.context() as patch:
        photographer = Photographer(here, tmp_path / "album", patch)
        hearing = await run_agent(here, 1, lambda: None)
    assert_all_is_there_once(here, hearing)
    assert len(photographer.taken) > 50
    monkeypatch.setattr(os, "fsync", lambda _: None)  # slow, and nothing crashes from here on
    for number, photo in enumerate(photographer.taken):
        assert_all_is_there_once(photo, await run_agent(photo, number, lambda: None))


def agent_process(here: str, seed: str) -> None:
    """A dot for each step, so that the test can kill it there."""
    asyncio.run(run_agent(Path(here), int(seed), lambda: print(".", end="", flush=True)))


def test_agents_that_are_killed_again_and_again_keep_every_line_once(tmp_path: Path) -> None:
    write_output(tmp_path / "output")
    code = "import sys; from tests.machine.test_tasklog import agent_process; agent_process(*sys.argv[1:])"
    killed = 0
    while True:
        reading, writing = os.pipe()
        child = proc.spawn([sys.executable, "-c", code, str(tmp_path), str(killed)], output=writing, cwd=ROOT)
        os.close(writing)
        steps = [os.read(reading, 1) for _ in range(2 * killed + 1)]  # later ones get further, so that it ends at last
        if steps[-1] == b".":
            os.kill(child.pid, signal.SIGKILL)
        assert set(steps) <= {b".", b""}, b"".join(steps) + os.read(reading, 65536)
        os.close(reading)
        if proc.stop(child) != -signal.SIGKILL:
            break
        killed += 1
    assert child.returncode == 0
    assert killed >= 3
    assert_all_is_there_once(tmp_path)


async def test_a_line_has_time_stream_level_message_and_its_data(tmp_path: Path) -> None:
    register_secret("Xq-canary-9")
    log = TaskLog(tmp_path)
    log.add(Stream.STDERR, line("with Xq-canary-9"), NOW)
    log.add(Stream.STDOUT, LogLine(Level.ERROR, "x", {"key": "Xq-canary-9"}, truncated=True), NOW)
    segment = await log.seal(place(1))
    assert segment is not None
    assert segment.name == "000001.jsonl"
    assert records(segment.path) == [
        {"ts": "2026-01-02T03:04:05.000006+00:00", "stream": "stderr", "level": "info", "message": "with ***"},
        {
            "ts": "2026-01-02T03:04:05.000006+00:00",
            "stream": "stdout",
            "level": "error",
            "message": "x",
            "data": {"key": "***"},
            "truncated": True,
        },
    ]


async def test_the_next_agent_finds_sealed_segments_and_the_place_and_forgets_the_rest(tmp_path: Path) -> None:
    log = TaskLog(tmp_path)
    splitter = LineSplitter()
    splitter.feed(b"begun \xff")
    log.add(Stream.STDOUT, line("first"), NOW)
    sealed = await log.seal(lambda: LogPosition({"at": 1}, {Stream.STDERR: splitter.partial}, {"more": 2}))
    log.add(Stream.STDOUT, line("second"), NOW)
    (tmp_path / "000002.jsonl").write_text("written, and not sealed")

    after = TaskLog(tmp_path)
    assert after.unshipped == (sealed,)
    assert after.place == LogPosition({"at": 1}, {Stream.STDERR: PartialLine(b"begun \xff", offset=7)}, {"more": 2})
    assert set(os.listdir(tmp_path)) == {"000001.jsonl", "cursor.json"}
    assert await after.seal(place(2)) is None
    assert TaskLog(tmp_path).place == LogPosition({"at": 2})


async def test_what_was_shipped_is_gone_and_what_was_not_stays_in_order(tmp_path: Path) -> None:
    log = TaskLog(tmp_path)
    for number in range(3):
        log.add(Stream.STDOUT, line(str(number)), NOW)
        await log.seal(place(number))
    put = list[str]()

    async def ship(segment: Segment) -> None:
        if segment.number == 2:
            raise ConnectionError
        put.append(segment.name)

    with pytest.raises(ConnectionError):
        await ship_all(log, ship)
    assert put == ["000001.jsonl"]
    assert [segment.number for segment in log.unshipped] == [2, 3]
    assert [segment.number for segment in TaskLog(tmp_path).unshipped] == [2, 3]


async def test_a_full_disk_is_the_machines_fault_and_costs_no_line(tmp_path: Path) -> None:
    log = TaskLog(tmp_path)
    (tmp_path / "000001.jsonl").symlink_to("/dev/full")
    log.add(Stream.STDOUT, line("first"), NOW)
    with pytest.raises(AttemptFailed, match="No space left") as failed:
        await log.seal(place(1))
    assert failed.value.code == ErrorCode.AGENT_DISK
    assert log.unshipped == ()
    assert log.place == LogPosition()

    (tmp_path / "000001.jsonl").unlink()
    log.add(Stream.STDOUT, line("second"), NOW)
    segment = await log.seal(place(2))
    assert segment is not None
    assert [record["message"] for record in records(segment.path)] == ["first", "second"]


class HeldDisk:
    """fsync waits until the test lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.released = threading.Event(), threading.Event()
        fsync = os.fsync
        monkeypatch.setattr(os, "fsync", lambda fd: (self.reached.set(), self.released.wait(10), fsync(fd)))

    async def is_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 10)


async def test_lines_added_while_a_seal_is_written_go_into_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, log, at = HeldDisk(monkeypatch), TaskLog(tmp_path), 1
    log.add(Stream.STDOUT, line("first"), NOW)
    async with asyncio.TaskGroup() as group:
        group.create_task(log.seal(lambda: LogPosition({"at": at})))
        await disk.is_reached()
        group.create_task(log.seal(lambda: LogPosition({"at": at})))  # waits for the first
        log.add(Stream.STDOUT, line("second"), NOW)
        at = 2
        disk.released.set()
    assert [[record["message"] for record in records(segment.path)] for segment in log.unshipped] == [
        ["first"],
        ["second"],
    ]
    assert TaskLog(tmp_path).place == LogPosition({"at": 2})


@pytest.mark.parametrize("by", ["task", "scope"])
async def test_a_cancelled_seal_is_known_to_have_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    disk, log, scope = HeldDisk(monkeypatch), TaskLog(tmp_path), anyio.CancelScope()
    log.add(Stream.STDOUT, line("first"), NOW)
    went_on = list[bool]()

    async def seal() -> None:
        with scope:
            await log.seal(place(1))
            await anyio.lowlevel.checkpoint()
            went_on.append(True)

    async with asyncio.TaskGroup() as group:
        sealing = group.create_task(seal())
        await disk.is_reached()
        if by == "task":
            sealing.cancel()
        else:
            scope.cancel()
        disk.released.set()
    assert not went_on
    assert [segment.number for segment in log.unshipped] == [1]
    assert log.place == TaskLog(tmp_path).place == LogPosition({"at": 1})


async def test_a_segment_is_due_when_it_is_old_and_later_ones_may_grow_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tasklog.AGES_SEC == (2, 5, 10, 30, 60)
    monkeypatch.setattr(tasklog, "AGES_SEC", (0.02, 100.0))
    log = TaskLog(tmp_path)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        waiting = group.create_task(log.due())
        await asyncio.to_thread(lambda: None)
        assert not waiting.done()
        log.add(Stream.STDOUT, line("first"), NOW)
    await log.seal(place(1))
    log.add(Stream.STDOUT, line("second"), NOW)
    wait = log._due_in()
    assert wait is not None
    assert 90 < wait <= 100


async def test_a_segment_is_due_when_it_is_full(tmp_path: Path) -> None:
    log = TaskLog(tmp_path)
    async with asyncio.timeout(1), asyncio.TaskGroup() as group:
        group.create_task(log.due())
        while not log.is_full:
            log.add(Stream.STDOUT, line("x" * 60_000), NOW)
    segment = await log.seal(place(1))
    assert segment is not None
    assert SEGMENT_BYTES <= segment.path.stat().st_size < SEGMENT_BYTES + 61_000


async def test_a_log_ends_at_its_limit_and_says_so_once(tmp_path: Path) -> None:
    log = TaskLog(tmp_path, limit=1000)
    kept = [log.add(Stream.STDOUT, line("x" * 100), NOW) for _ in range(10)]
    assert kept == [True] * 5 + [False] * 5
    assert log.is_truncated
    segment = await log.seal(place(1))
    assert segment is not None
    assert "the log ends here" in str(records(segment.path)[-1]["message"])
    assert len(records(segment.path)) == 6
    after = TaskLog(tmp_path, limit=1000)
    assert not after.add(Stream.STDOUT, line("y"), NOW)
    assert await after.seal(place(2)) is None
