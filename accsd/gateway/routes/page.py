"""The page, from the package itself: it works offline, and its scripts may come from nowhere else.

Every address of a page answers the same document: what it shows is decided in the browser, by the address. The files
have the version in their address and are kept by browsers; a new version has new addresses.
"""

import gzip
import hashlib
import posixpath
import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from accsd import __version__
from accsd.gateway.access import GuardedRoute, public
from accsd.gateway.context import context_of
from accsd.gateway.problems import HttpProblem

router = APIRouter(route_class=GuardedRoute, tags=["page"])
PAGES: Final = (
    "/",
    "/jobs",
    "/jobs/{subject}",
    "/jobs/{subject}/log",
    "/compare",
    "/operations",
    "/operations/{subject}",
    "/fleet",
    "/fleet/{subject}",
    "/services",
    "/dead",
    "/workflows",
    "/workflows/{subject}",
    "/schedules",
    "/schedules/{subject}",
    "/system",
    "/system/{subject}",
    "/preferences",
    "/login",
    "/services/{subject}",
    "/triggers",
    "/triggers/{subject}",
    "/tools",
    "/tools/{subject}",
)
_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self'; font-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


_IMPORTS: Final = re.compile(r'(?:from|import)\s*"(\.[^"]+)"')


class _File(NamedTuple):
    content: bytes
    packed: bytes
    type: str


async def page(request: Request) -> Response:
    """What it shows comes from the API, and only to whom is logged in."""
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}
    document = _document(context_of(request).settings.gateway.base_path)
    return Response(document, headers=headers, media_type="text/html; charset=utf-8")


for _path in PAGES:
    router.add_api_route(
        _path,
        page,
        methods=["GET"],
        operation_id=f"page{_path.replace('{subject}', 'one').replace('/', '.').rstrip('.')}",
        summary="The page",
        responses={200: {"description": "The page", "content": {"text/html": {}}}},
        openapi_extra=public(),
        include_in_schema=_path == "/",
    )


@router.get(
    "/static/{version}/{name:path}",
    operation_id="page.file",
    summary="A file of the page",
    responses={200: {"description": "The file", "content": {"text/css": {}, "text/javascript": {}}}},
    openapi_extra=public(),
)
async def file(request: Request, version: str = Path(max_length=100), name: str = Path(max_length=100)) -> Response:
    found = _files().get(name)
    if found is None:
        raise HttpProblem("not_found", "the page has no such file")
    headers = {"Vary": "Accept-Encoding", "Cache-Control": _kept(version)}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.packed, headers={**headers, "Content-Encoding": "gzip"}, media_type=found.type)
    return Response(found.content, headers=headers, media_type=found.type)


def _kept(version: str) -> str:
    """A page that an older gateway has served asks for the files of its version, and gets what there is now."""
    return "public, max-age=31536000, immutable" if version == _version() else "no-store"


@cache
def _files() -> dict[str, _File]:
    return {
        name: _File(content, gzip.compress(content, mtime=0), _TYPES[name.rpartition(".")[2]])
        for name, content in _found(files("accsd") / "web")
        if name.rpartition(".")[2] in _TYPES
    }


def _found(folder: Traversable, prefix: str = "") -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        if each.is_dir():
            found += _found(each, f"{prefix}{each.name}/")
        else:
            found.append((f"{prefix}{each.name}", each.read_bytes()))
    return found


@cache
def _version() -> str:
    """Of the files: in a checkout the same release has other files tomorrow, and a browser keeps what it has."""
    digest = hashlib.sha256()
    for name, each in _files().items():
        digest.update(name.encode() + b"\0" + each.content)
    return f"{__version__}-{digest.hexdigest()[:8]}"


def modules_of(name: str) -> set[str]:
    """A script and all that it imports at once: what a browser needs before it runs it. The pages come later."""
    known, found = set[str](), [name]
    while found:
        here = found.pop()
        if here not in known:
            known.add(here)
            wanted = _IMPORTS.findall(_files()[here].content.decode())
            found += [posixpath.normpath(posixpath.join(posixpath.dirname(here), each)) for each in wanted]
    return known


@cache
def _document(base_path: str) -> bytes:
    static = f"{base_path}/static/{_version()}"
    scripts = sorted(modules_of("app/main.js"))
    preloads = "\n".join(f'<link rel="modulepreload" href="{static}/{name}">' for name in scripts)
    written = (files("accsd") / "web" / "index.html").read_text(encoding="utf-8")
    return written.replace("{static}", static).replace("{preloads}", preloads).encode()
