"""The page, from the package itself: it works offline, and its scripts may come from nowhere else."""

from functools import cache
from importlib.resources import files
from typing import Final

from fastapi import APIRouter, Path
from starlette.responses import Response

from accsd.gateway.access import GuardedRoute, public
from accsd.gateway.problems import HttpProblem

router = APIRouter(route_class=GuardedRoute, tags=["page"])
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}
_FILES: Final = ("page.js", "style.css")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


@router.get(
    "/",
    operation_id="page",
    summary="The page",
    responses={200: {"description": "The page", "content": {"text/html": {}}}},
    openapi_extra=public(),
)
async def page() -> Response:
    """What it shows comes from the API, and only to whom is logged in."""
    return _served("index.html")


@router.get(
    "/static/{name}",
    operation_id="page.file",
    summary="A file of the page",
    responses={200: {"description": "The file", "content": {"text/css": {}, "text/javascript": {}}}},
    openapi_extra=public(),
)
async def file(name: str = Path(max_length=100)) -> Response:
    if name not in _FILES:
        raise HttpProblem("not_found", "the page has no such file")
    return _served(name)


def _served(name: str) -> Response:
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}
    return Response(_content(name), headers=headers, media_type=_TYPES[name.rpartition(".")[2]])


@cache
def _content(name: str) -> bytes:
    return (files("accsd") / "web" / name).read_bytes()
