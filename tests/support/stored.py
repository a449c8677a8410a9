"""Files of tasks in a gateway's object store, with their rows: artifacts, and the parts of a log.

artifact = await stored(gateway, task, ArtifactKind.OUTPUT, "a.png", png, "image/png")
await stored_log(gateway, task, log("begins", "goes wrong", "ends"))
"""

import struct
import zlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

import orjson

from accsd.db import Fence, record_task_artifact
from accsd.model.state import ArtifactKind
from accsd.storage.base import build_key
from accsd.work.tasklog import SEGMENT_BYTES, LogFacts
from tests.support.factory import OWNER, Claimed
from tests.support.gateway import Gateway

_BEGAN: Final = datetime(2026, 11, 18, 12, tzinfo=UTC)


async def stored(
    gateway: Gateway,
    task: Claimed,
    kind: ArtifactKind,
    name: str,
    content: bytes,
    type_: str,
    *,
    step: str = "a",
    facts: LogFacts | None = None,
) -> int:
    """The artifact's id."""
    assert gateway.context.store is not None
    key = build_key(task["job_id"], step, kind, attempt_id=task["attempt_id"], name=name)
    made = await gateway.context.store.put_bytes(key, content, content_type=type_)
    fence = Fence(task["task_id"], task["attempt_id"])
    await record_task_artifact(
        gateway.context.verbs, fence, owner=OWNER, kind=kind, bucket=made.bucket, key=made.key, checksum=made.checksum,
        size_bytes=made.size_bytes, content_type=type_, facts=None if facts is None else facts.document(),
    )  # fmt: skip
    return await gateway.context.reads.fetchval("SELECT max(id) FROM task_artifacts")


def png(width: int, height: int, colour: bytes = b"\xc8\x40\x5a") -> bytes:
    """An image of one colour."""
    rows = (b"\0" + colour * width) * height
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )


def log(*texts: str) -> bytes:
    """Lines of a log, ten milliseconds apart; those that tell of something wrong are errors, of something odd warnings,
    and both come by stderr."""
    return b"".join(
        orjson.dumps(_line(_BEGAN + n * timedelta(milliseconds=10), text), option=orjson.OPT_APPEND_NEWLINE)
        for n, text in enumerate(texts)
    )


def _line(ts: datetime, text: str) -> dict[str, str]:
    level = "error" if "wrong" in text else "warn" if "odd" in text else "info"
    stream = "stdout" if level == "info" else "stderr"
    return {"ts": ts.isoformat(), "stream": stream, "level": level, "message": text}


async def stored_log(gateway: Gateway, task: Claimed, content: bytes, *, step: str = "a") -> None:
    """In parts, as an agent ships it."""
    for number, part in enumerate(_parts(content), 1):
        name, facts = f"{number:06d}.jsonl", LogFacts.of(part)
        await stored(gateway, task, ArtifactKind.LOG, name, part, "application/jsonl", step=step, facts=facts)


def _parts(content: bytes) -> Iterable[bytes]:
    part = bytearray()
    for line in content.splitlines(keepends=True):
        part += line
        if len(part) >= SEGMENT_BYTES:
            yield bytes(part)
            part.clear()
    if part:
        yield bytes(part)
