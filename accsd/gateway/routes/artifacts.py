"""Artifacts: what is known of one, and its bytes, whole or a part of them."""

import re
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from accsd.db.views.artifacts import StoredArtifact, artifact, artifact_of_share
from accsd.errors import NotFound
from accsd.gateway.access import GuardedRoute, redaction_for, shared
from accsd.gateway.answers import answer
from accsd.gateway.context import caller_of, context_of, require_store
from accsd.gateway.problems import HttpProblem
from accsd.gateway.routes.jobs import ARTIFACT, artifact_document
from accsd.gateway.schemas import answers
from accsd.model.state import ArtifactKind
from accsd.storage import ObjectStore
from accsd.storage.base import DEFAULT_CONTENT_TYPE

router = APIRouter(prefix="/api/v1", route_class=GuardedRoute, tags=["artifacts"])
_CHUNK: Final = 1024 * 1024
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
# What a browser may show in our origin: nothing that could run a script. SVG and HTML are for download only.
_SHOWN: Final = frozenset(
    {
        "image/png",
        "image/jpeg",
        "image/gif",
        "image/webp",
        "image/avif",
        "image/bmp",
        "audio/wav",
        "audio/x-wav",
        "audio/mpeg",
        "audio/ogg",
        "audio/flac",
        "audio/aac",
        "audio/mp4",
        "video/mp4",
        "video/webm",
        "video/ogg",
        "text/plain",
        "text/csv",
        "application/json",
    }
)
_ID: Final = Path(ge=1, le=2**53)


@router.get(
    "/artifacts/{artifact_id}",
    operation_id="artifacts.get",
    summary="What is known of an artifact",
    responses=answers(ARTIFACT),
    openapi_extra=shared(artifacts=True),
)
async def get_artifact(request: Request, artifact_id: int = _ID) -> Response:
    return answer(artifact_document(caller_of(request), await _artifact(request, artifact_id)))


async def _artifact(request: Request, artifact_id: int) -> StoredArtifact:
    reads, job_id = context_of(request).reads, caller_of(request).shared_job
    found = None if job_id is None else await artifact_of_share(reads, str(artifact_id), job_id)
    return found or await artifact(reads, artifact_id)


@router.get(
    "/artifacts/{artifact_id}/content",
    operation_id="artifacts.content",
    summary="The bytes of an artifact",
    responses={200: {"description": "All of it", "content": {"*/*": {}}}, 206: {"description": "A part of it"}},
    openapi_extra=shared(artifacts=True),
)
async def content(request: Request, artifact_id: int = _ID) -> Response:
    """`Range: bytes=0-1023` gives a part. Only images, sound, video and plain text are shown by a browser; everything
    else is for download. A part of a log is for admins, and audited: nothing in it is masked; `/tasks/{task_id}/…/log`
    shows its lines to everybody."""
    context = context_of(request)
    found = await _artifact(request, artifact_id)
    if found.kind == ArtifactKind.LOG:
        await redaction_for(request, "artifact", str(artifact_id), reveal=True)
    store = require_store(context)
    # where an object is kept may name another job
    named = found.key if caller_of(request).subject is None else found.name
    if store.bucket != found.bucket:
        raise HttpProblem(
            "stored_elsewhere", f'{named} is in bucket "{found.bucket}", and this gateway reads "{store.bucket}"'
        )
    try:
        size = (await store.stat(found.key)).size_bytes
    except NotFound:
        raise HttpProblem("stored_elsewhere", f"{named} is not in this gateway's store") from None
    version = f'"{(found.checksum or str(found.id)).removeprefix("sha256:")[:32]}"'
    if request.headers.get("if-none-match") == version:
        return Response(status_code=304, headers={"ETag": version})
    span = _span(request.headers.get("range"), size)
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": version,
        "Content-Disposition": _disposition(found),
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cache-Control": "private, max-age=3600",
    }
    if span is None:
        return StreamingResponse(
            _bytes(store, found.key, 0, size), headers=headers | {"Content-Length": str(size)}, media_type=_type(found)
        )
    first, last = span
    headers |= {"Content-Range": f"bytes {first}-{last}/{size}", "Content-Length": str(last - first + 1)}
    return StreamingResponse(
        _bytes(store, found.key, first, last + 1), status_code=206, headers=headers, media_type=_type(found)
    )


def _span(asked: str | None, size: int) -> tuple[int, int] | None:
    """The first and the last byte that were asked for; None: all. Several ranges at once are answered with all."""
    found = _RANGE.fullmatch(asked or "")
    if found is None or found.groups() == ("", ""):
        return None
    begin, end = found.groups()
    first = max(0, size - int(end)) if not begin else int(begin)
    last = size - 1 if not begin or not end else min(int(end), size - 1)
    if first >= size or first > last:
        raise HttpProblem(
            "range_not_satisfiable", f"the object has {size} bytes", headers={"Content-Range": f"bytes */{size}"}
        )
    return first, last


async def _bytes(store: ObjectStore, key: str, first: int, end: int) -> AsyncIterator[bytes]:
    while first < end:
        part = await store.get_bytes(key, start=first, length=min(_CHUNK, end - first))
        if not part:
            return
        first += len(part)
        yield part


def _type(found: StoredArtifact) -> str:
    plain = (found.content_type or "").partition(";")[0].strip().lower()
    return plain if plain in _SHOWN else DEFAULT_CONTENT_TYPE


def _disposition(found: StoredArtifact) -> str:
    how = "inline" if _type(found) != DEFAULT_CONTENT_TYPE else "attachment"
    return f"{how}; filename*=UTF-8''{quote(found.name.rpartition('/')[2], safe='')}"
