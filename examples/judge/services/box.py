"""Runs programs in a box: this side holds the line to the keeper and takes what a program writes."""

import json
import os
import secrets
import selectors
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from keeper import Ground, Limits, Program, keep

_CHUNK = 64 * 1024
_KEPT_OF_STDERR = 64 * 1024
_SLACK_SEC = 10  # beyond its own limits a keeper is not waited for
_UIDS = (1_000_000_000, 900_000_000)  # no user of this machine, and hardly ever twice: limits of processes are by user
_JUDGED = 65534


@dataclass(frozen=True)
class Ran:
    """How a program has ended. `status` is as wait gives it; `reason`: the limit for which it was ended."""

    reason: object
    status: object
    time_ms: int
    wall_ms: int
    mem_kb: int
    stdout: bytes
    stderr: bytes


class Box:
    """A folder with a program, in which it is run as often as wanted."""

    def __init__(self, folder: Path, ground: Ground) -> None:
        self._folder = folder
        self._ground = ground
        self.inside = "/box" if ground.namespaces else str(folder / "box")
        for name in ("box", "root"):
            (folder / name).mkdir(mode=0o755, exist_ok=True)
        folder.chmod(0o711)  # another user has to come through

    def write(self, name: str, content: bytes) -> None:
        path = self._folder / "box" / name
        path.write_bytes(content)
        path.chmod(0o644)

    def run(
        self, argv, limits: Limits, *, path: str, given: bytes = b"", most_output: int = 0, writable: bool = False
    ) -> Ran:
        """OSError: the box itself failed. Of what a program writes, `most_output` bytes are taken and one more: then it
        is ended."""
        uid = _UIDS[0] + secrets.randbelow(_UIDS[1]) if self._ground.own_user else _JUDGED
        box = self._folder / "box"
        if writable and self._ground.own_user:
            os.chown(box, uid, uid)
        try:
            with _Input(self._folder, given) as stdin:
                argv = [word.replace("/box", self.inside) for word in argv]
                with _Line(argv, path, self._folder, writable, uid, limits, self._ground, stdin) as line:
                    return line.taken(most_output, limits.wall_ms / 1000 + _SLACK_SEC)
        finally:
            if writable and self._ground.own_user:
                os.chown(box, 0, 0)


class _Input:
    """What a program reads, as a file that it can't open by a name."""

    def __init__(self, folder: Path, content: bytes) -> None:
        self._path = folder / "input"
        self._content = content

    def __enter__(self) -> int:
        self._path.touch(mode=0o600)
        self._path.write_bytes(self._content)
        self._opened = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self._path.unlink()
        return self._opened

    def __exit__(self, *_) -> None:
        os.close(self._opened)


class _Line:
    """A keeper with its program, and the pipes to both."""

    def __init__(self, argv, path, folder, writable, uid, limits, ground, stdin) -> None:
        self._out, out = os.pipe()
        self._err, err = os.pipe()
        self._report, report = os.pipe()
        control, self._control = os.pipe()
        ours = (self._out, self._err, self._report, self._control)
        program = Program(argv, path, folder, writable, uid, limits, ground, stdin, out, err)
        self._keeper = os.fork()
        if self._keeper == 0:
            for number in ours:
                os.close(number)
            keep(program, control, report)
        for number in (out, err, report, control):
            os.close(number)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self._stop()
        for number in (self._out, self._err, self._report):
            os.close(number)
        with suppress(ProcessLookupError):
            os.kill(self._keeper, signal.SIGKILL)  # it has reported, or it never will
        os.waitpid(self._keeper, 0)

    def _stop(self) -> None:
        if self._control >= 0:
            os.close(self._control)
            self._control = -1

    def taken(self, most_output: int, within: float) -> Ran:
        """Takes both outputs at once, so that neither ever stops the program for want of a reader."""
        kept = {self._out: bytearray(), self._err: bytearray(), self._report: bytearray()}
        most = {self._out: most_output + 1, self._err: _KEPT_OF_STDERR, self._report: _CHUNK}
        ends = time.monotonic() + within
        with selectors.DefaultSelector() as waiting:
            for number in kept:
                waiting.register(number, selectors.EVENT_READ)
            while waiting.get_map():
                if (left := ends - time.monotonic()) <= 0:
                    raise OSError("the keeper of the box does not answer")
                for key, _ in waiting.select(left):
                    number = key.fd
                    if not (piece := os.read(number, _CHUNK)):
                        waiting.unregister(number)
                    kept[number] += piece[: max(0, most[number] - len(kept[number]))]
                    if number == self._out and len(kept[number]) > most_output:
                        self._stop()
        return self._ran(bytes(kept[self._report]), bytes(kept[self._out]), bytes(kept[self._err]), most_output)

    def _ran(self, said: bytes, out: bytes, err: bytes, most_output: int) -> Ran:
        found = json.loads(said) if said.strip() else {"failed": "the keeper of the box ended without a word"}
        if "failed" in found:
            raise OSError(found["failed"])
        reason = "output" if len(out) > most_output else found["reason"]
        return Ran(reason, found["status"], found["time_ms"], found["wall_ms"], found["mem_kb"], out, err)
