"""What one attempt does in the studio: how long it takes, what it says, which files it leaves, how it ends."""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

import orjson

from accsd.db import record_task_artifact
from accsd.model import ArtifactKind, Fence
from accsd.storage.base import build_key
from accsd.work.tasklog import LogFacts
from tests.support.factory import Row
from tests.support.studio.stage import Script, Stage

LEASE = timedelta(hours=20)
# Seconds: the least, and how much more it may be.
_LENGTHS = {
    "ingest": (45, 60),
    "audio": (150, 200),
    "proxy": (80, 120),
    "render": (700, 1500),
    "denoise": (240, 300),
    "upload": (70, 140),
    "snapshot": (20, 30),
    "copy": (500, 1600),
    "index": (90, 200),
}
_PARTS = (0.1, 0.62)  # at which progress is told
_FRAMES = (95, 160)  # of a frame range
RANGES = 16
_OOM = "CUDA out of memory: tried to allocate 2.10 GiB (8.00 GiB in all, 7.61 GiB in use)"


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt fails, and after which part of its time."""

    code: str
    message: str
    after: float = 0.6
    permanent: bool = False


OUT_OF_MEMORY = Ending("oom", _OOM, 0.48)
REFUSED = Ending("exit_nonzero", "the channel refused the upload: 403 quota exceeded", 0.9, permanent=True)
UNREADABLE = Ending("exit_nonzero", "clip A003_C012: 14 frames can't be read", 0.35)


async def attempt(stage: Stage, node: str, claimed: Row, *, seconds: float | None, fails: Ending | None) -> Script:
    """Plays one attempt that was claimed, from its start to its end."""
    fence = [claimed["task_id"]], [claimed["attempt_id"]]
    yield 1.4
    await stage.conn.fetch("SELECT FROM accs.start_tasks($1, $2, $3)", *fence, node)
    lasts = seconds or _length(claimed)
    share = 1.0 if fails is None else fails.after
    lines = _log(stage, claimed, share * lasts, fails)
    so_far = 0.0
    for part in (part for part in _PARTS if part < share):
        yield lasts * (part - so_far)
        so_far = part
        await stage.conn.fetch("SELECT FROM accs.report_progress($1, $2, $3, $4)", *fence, node, [part])
        if "[" not in claimed["task_key"]:
            await _keep_log(stage, node, claimed, lines, part)  # it is shipped while it grows
    yield lasts * (share - so_far)
    await _keep_log(stage, node, claimed, lines, 1.0)
    if fails is None:
        await _keep_files(stage, node, claimed)
        await stage.conn.fetch(
            "SELECT FROM accs.finish_tasks($1, $2, $3, p_results => $4)", *fence, node, [_results(claimed)]
        )
    else:
        await stage.conn.fetch(
            "SELECT FROM accs.finish_tasks($1, $2, $3, $4, NULL, $5, $6, $7)",
            *fence, node, ["error"], [fails.code], [fails.message], [fails.permanent],
        )  # fmt: skip


def chance(*about: object) -> float:
    """From 0 to 1, and always the same for the same things."""
    return zlib.crc32(orjson.dumps(about, default=str)) / 0xFFFFFFFF


def _length(claimed: Row) -> float:
    least, more = _FRAMES if "[" in claimed["task_key"] else _LENGTHS[claimed["service_name"]]
    return least + more * chance(claimed["options"], claimed["task_key"], claimed["attempt_id"])


def _results(claimed: Row) -> dict[str, Any] | None:
    match claimed["task_key"]:
        case "split":
            return {"ranges": [{"first": 30 * n + 1, "last": 30 * n + 30} for n in range(RANGES)]}
        case "render":
            return {"frames": 1440, "peak_gib": 6.4, "file": "render.mov"}
        case "audio":
            return {"lufs": -16.1, "true_peak": -1.2}
        case "upload":
            return {"url": f"https://channel.example/{claimed['options'].get('episode', 'x')}", "bytes": 4_812_339_200}
        case _:
            return {"seconds": round(_length(claimed), 1)}


# The log


def _log(stage: Stage, claimed: Row, lasts: float, fails: Ending | None) -> list[dict[str, Any]]:
    texts = _texts(claimed["service_name"], claimed["task_key"])
    if fails is not None:
        texts = texts[: int(len(texts) * fails.after)]
        texts += [
            ("warn", "14 of 16 buffers are in use"),
            ("error", fails.message),
            ("error", "giving up"),
            ("info", "exit 1"),
        ]
    step = lasts / len(texts)
    return [
        {
            "ts": (stage.now + timedelta(seconds=step * n)).isoformat(timespec="milliseconds"),
            "stream": "stderr" if level == "error" else "stdout",
            "level": level,
            "message": text,
        }
        for n, (level, text) in enumerate(texts)
    ]


def _texts(service: str, key: str) -> list[tuple[str, str]]:
    match service:
        case "render":
            count = 30 if "[" in key else 240
            return [
                ("info", "blender 4.5.3, 2 devices: RTX 4070 Ti, RTX 4070 Ti"),
                ("info", "scene harbour_v12.blend, 214 objects, 61 materials"),
                ("debug", "tile size 512, 256 samples, denoiser off"),
                *[_frame(n, count) for n in range(1, count + 1)],
                ("info", "render.mov written, 1440 frames"),
            ]
        case "upload":
            return [("info", f"part {n} of 48 sent, \x1b[32m{96 + n % 7} MB/s\x1b[0m") for n in range(1, 49)]
        case "copy" | "snapshot":
            return [
                ("info", f"masters/2026/reel-{n:03}: 412 files, {20 + n % 17}.{n % 10} GiB, same as before")
                for n in range(90)
            ]
        case _:
            return [("info", f"{key}: block {n} of 60") for n in range(1, 61)]


def _frame(n: int, count: int) -> tuple[str, str]:
    seconds, memory = 3.2 + chance(n) * 2.4, 5.6 + chance(n, "GiB") * 1.2
    if n % 71 == 0:
        return "warn", f"frame {n:04} of {count:04}: texture sea_8k.exr is not in the cache"
    return "info", f"frame {n:04} of {count:04}  {seconds:.1f} s  {memory:.1f} GiB"


async def _keep_log(stage: Stage, node: str, claimed: Row, lines: list[dict[str, Any]], until: float) -> None:
    """The lines that have been written up to this part of the time, as a part of the log; they leave the list."""
    so_far = [line for line in lines if line["ts"] <= stage.now.isoformat(timespec="milliseconds")]
    part = so_far if until < 1 else list(lines)
    if part:
        content = b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in part)
        name = f"{int(until * 100):06}.jsonl"
        await _keep(
            stage, node, claimed, ArtifactKind.LOG, name, content, "application/jsonl", LogFacts.of(content).document()
        )
        del lines[: len(part)]


# The files


async def _keep_files(stage: Stage, node: str, claimed: Row) -> None:
    match claimed["service_name"]:
        case "render" | "denoise" | "proxy":
            hue = int(chance(claimed["options"], claimed["task_key"]) * 360)
            files = [("frame-0240.png", picture(hue), "image/png")]
        case "upload":
            files = [("receipt.json", orjson.dumps(_results(claimed), option=orjson.OPT_INDENT_2), "application/json")]
        case "copy":
            files = [("manifest.csv", b"path,bytes\nmasters/2026/reel-001,22145728512\n", "text/csv")]
        case _:
            files = []
    for name, content, kind in files:
        await _keep(stage, node, claimed, ArtifactKind.OUTPUT, name, content, kind)


async def _keep(
    stage: Stage, node: str, claimed: Row, kind: ArtifactKind, name: str, content: bytes, type_: str, facts: Any = None
) -> None:
    fence = Fence(claimed["task_id"], claimed["attempt_id"])
    key = build_key(claimed["job_id"], claimed["task_key"], kind, attempt_id=fence.attempt_id, name=name)
    made = await stage.store.put_bytes(key, content, content_type=type_)
    await record_task_artifact(
        stage.db, fence, owner=node, kind=kind, bucket=made.bucket, key=made.key, checksum=made.checksum,
        size_bytes=made.size_bytes, content_type=type_, facts=facts,
    )  # fmt: skip


@cache
def picture(hue: int, width: int = 320, height: int = 180) -> bytes:
    """A PNG: a horizon at dusk."""
    rows = b"".join(b"\0" + bytes(_pixels(hue, y / height, width)) for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows, 9)) + _chunk(b"IEND", b"")
    )


def _pixels(hue: int, height: float, width: int) -> Sequence[int]:
    light = 1 - height if height < 0.6 else 0.35
    colour = [int(255 * light * (0.35 + 0.65 * abs(((hue / 60 + shift) % 6) - 3) / 3)) for shift in (0, 4, 2)]
    return [min(255, part) for _ in range(width) for part in colour]


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
