"""The bare application under the native API and under each door: routes, one way to tell errors, and nothing else of
FastAPI's: no pages that load scripts from elsewhere, no redirects (G-2)."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from accsd import __version__
from accsd.errors import AccsdError

_ERRORS: Final = (AccsdError, RequestValidationError, ValidationError, HTTPException, Exception)


def bare_app(
    routers: Iterable[APIRouter],
    *,
    title: str,
    description: str,
    told: Callable[[Request, Any], Awaitable[Response]],
) -> FastAPI:
    """`told` makes the answer of an error."""
    app = FastAPI(
        title=title,
        version=__version__,
        description=description,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for router in routers:
        app.include_router(router)
    for kind in _ERRORS:
        app.add_exception_handler(kind, told)
    return app
