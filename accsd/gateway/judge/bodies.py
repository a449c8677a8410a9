"""Bodies of the judge's requests: JSON and forms, each with its limit, read once the caller is known."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import orjson
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from accsd.gateway.bodies import read_json
from accsd.gateway.judge.problems import ProblemForm
from accsd.gateway.judge.refusals import Refusal

_OF_FORM: Final = 1024 * 1024  # beside the file
_MOST_FIELDS: Final = 20


async def json_of(request: Request, most: int) -> Any:
    """What the body says. NUL is refused: the database could not hold it (G-10)."""
    try:
        body = b"".join([part async for part in _counted(request, most).stream()])
        found = read_json(body)
        if b"\\u0000" in body and "\\u0000" in json.dumps(found):
            raise ValueError("a text has the character NUL")
    except HTTPException as error:
        raise _malformed(str(error.detail)) from None
    except (orjson.JSONDecodeError, ValueError, RecursionError) as error:
        raise _malformed(str(error)) from None
    return found


@asynccontextmanager
async def form_of(request: Request, most: int) -> AsyncGenerator[tuple[ProblemForm, UploadFile]]:
    """A new problem and its zip (OJ-20)."""
    try:
        form = await _counted(request, most + _OF_FORM).form(max_files=1, max_fields=_MOST_FIELDS)
    except HTTPException as error:
        raise _malformed(str(error.detail)) from None
    try:
        yield _problem_form(form), _zip_of(form, most)
    finally:
        await form.close()


def _problem_form(form: FormData) -> ProblemForm:
    title = form.get("title")
    if not isinstance(title, str) or not title.strip() or len(title) > 1000 or "\0" in title:
        raise _malformed("title: a text of at most 1000 characters is required")
    difficulty = form.get("difficulty")
    return ProblemForm(
        title.strip(),
        _whole(form, "time_limit"),
        _whole(form, "memory_limit"),
        difficulty[:100].replace("\0", "") if isinstance(difficulty, str) and difficulty else None,
    )


def _whole(form: FormData, name: str) -> int:
    """0 stands for the default, as everything below it does."""
    given = form.get(name)
    if given is None or given == "":
        return 0
    if not isinstance(given, str) or not given.strip().lstrip("-").isdecimal() or len(given) > 18:
        raise _malformed(f"{name}: it is no whole number")
    return int(given)


def _zip_of(form: FormData, most: int) -> UploadFile:
    file = form.get("file")
    if not isinstance(file, UploadFile) or not (file.filename or "").lower().endswith(".zip"):
        raise _malformed("file: a *.zip is required")
    if (file.size or 0) > most:
        raise _too_large(most)
    return file


def _counted(request: Request, most: int) -> Request:
    """The same request, whose body is refused where it grows too large."""
    length = request.headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or int(length) > most:
        raise _too_large(most)
    left = most

    async def receive() -> Message:
        nonlocal left
        message = await request.receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise _too_large(most)
        return message

    return Request(request.scope, receive)


def _malformed(details: str) -> Refusal:
    return Refusal("BAD_REQUEST", "the body can't be read", details=details[:500])


def _too_large(most: int) -> Refusal:
    return Refusal("BODY_TOO_LARGE", f"a body has at most {most} bytes here")
