"""Errors as clients of the judge read them: {error, code}, with every 429 in the form that load tools look for."""

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from accsd.errors import (
    AccsdError,
    DatabaseBusy,
    NotFound,
    StorageUnavailable,
    TooManyWaiting,
    Unavailable,
    UserError,
)
from accsd.gateway.answers import answer
from accsd.gateway.problems import HttpProblem

_STATUS: Final[Mapping[str, int]] = {
    "BAD_REQUEST": 400,
    "INVALID_PARAM": 400,
    "PROBLEM_NOT_FOUND": 400,
    "UNAUTHORIZED": 401,
    "FORBIDDEN": 403,
    "NOT_FOUND": 404,
    "METHOD_NOT_ALLOWED": 405,
    "CONFLICT": 409,
    "BODY_TOO_LARGE": 413,
    "UNKNOWN_HOST": 421,
    "RATE_LIMITED": 429,
    "INFLIGHT_CAP_REACHED": 429,
    "BACKPRESSURE": 429,
    "INTERNAL": 500,
    "DB_ERROR": 500,
    "UNAVAILABLE": 503,
}
_REASONS: Final[Mapping[str, str]] = {
    "RATE_LIMITED": "rate_limit",
    "INFLIGHT_CAP_REACHED": "inflight_cap",
    "BACKPRESSURE": "backlog",
}
# What the entrance, or a part that all doors share, calls it.
_COMMON: Final[Mapping[str, str]] = {
    "unauthenticated": "UNAUTHORIZED",
    "scope_missing": "FORBIDDEN",
    "not_yours": "FORBIDDEN",
    "not_found": "NOT_FOUND",
    "method_not_allowed": "METHOD_NOT_ALLOWED",
    "too_large": "BODY_TOO_LARGE",
    "unknown_host": "UNKNOWN_HOST",
    "rate_limited": "RATE_LIMITED",
    "stored_elsewhere": "UNAVAILABLE",
}
_RETRY_SEC: Final = 2


class Refusal(AccsdError):
    """`code` is what clients decide by; its status follows from it."""

    def __init__(self, code: str, message: str, *, details: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.details = details
        self.retry_after = retry_after


def told(error: Exception) -> Response:
    refusal = _translated(error)
    status = _STATUS[refusal.code]
    headers = {} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="accsd"'
    return answer(_body(refusal), status=status, headers=headers)


def _body(refusal: Refusal) -> dict[str, Any]:
    if refusal.code in _REASONS:
        return {
            "error": "backpressure",
            "reason": _REASONS[refusal.code],
            "code": refusal.code,
            "message": refusal.message,
        }
    details = {} if refusal.details is None else {"details": refusal.details}
    return {"error": refusal.message, "code": refusal.code, **details}


def _translated(error: Exception) -> Refusal:
    match error:
        case Refusal():
            return error
        case HttpProblem():
            code = _COMMON.get(error.code, "BAD_REQUEST")
            return Refusal(code, error.message, retry_after=_RETRY_SEC if code == "RATE_LIMITED" else None)
        case NotFound():
            return Refusal("NOT_FOUND", error.message)
        case UserError():
            return Refusal("BAD_REQUEST", error.message)
        case DatabaseBusy() | TooManyWaiting():  # more is asked than this gateway can pass on
            return Refusal("BACKPRESSURE", error.message, retry_after=_RETRY_SEC)
        case StorageUnavailable():
            return Refusal("UNAVAILABLE", error.message, retry_after=_RETRY_SEC)
        case Unavailable():
            return Refusal("DB_ERROR", error.message, retry_after=_RETRY_SEC)
        case _:
            return Refusal("INTERNAL", "the gateway's log has the request id and what happened")
