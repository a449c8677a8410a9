"""Errors as problem documents (RFC 9457): the tree of accsd/errors.py, and what only HTTP can get wrong.

`code` is what a program decides by; `detail` is the error's own sentence and `hint` what to do next, as a command would
say them. Each code has a page of its own under /problems/.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from starlette.responses import Response

from accsd.errors import (
    AccsdError,
    DatabaseUnavailable,
    DocumentInvalid,
    ExpressionInvalid,
    NotFound,
    NotPermitted,
    Place,
    QueryTooSlow,
    SchemaMismatch,
    StorageUnavailable,
    TooManyWaiting,
    Unavailable,
    UserError,
    VerbRefused,
    WorkflowInvalid,
)
from accsd.gateway.answers import encode
from accsd.gateway.paging import CursorMismatch
from accsd.gateway.query import QueryInvalid

PROBLEM_JSON: Final = "application/problem+json"


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """A kind of problem: its status, its title, and what its page says."""

    status: int
    title: str
    page: str


KINDS: Final[Mapping[str, ProblemKind]] = {
    "unauthenticated": ProblemKind(
        401,
        "Who asks is not known",
        "Send `Authorization: Bearer TOKEN`, or log in. `accsd tokens create NAME --scope read` makes a "
        "token; an expired or revoked one, or one of a disabled actor, is refused too.",
    ),
    "scope_missing": ProblemKind(
        403,
        "The token may not do that",
        "The detail names the scope that is missing. `accsd tokens create NAME --scope …` makes a token "
        "that has it; operate includes submit, and submit includes read.",
    ),
    "not_yours": ProblemKind(
        403,
        "That belongs to somebody else",
        "The scope submit may change what the same actor has made. For everybody's work the scope operate is needed.",
    ),
    "not_same_origin": ProblemKind(
        403,
        "The request does not come from this page",
        "With a session cookie, a request that changes something needs `Sec-Fetch-Site: same-origin` (or "
        "our own `Origin`) and the header `X-Accsd: 1`. A program sends a token instead, which needs "
        "neither.",
    ),
    "unknown_host": ProblemKind(
        421,
        "This gateway is not called by that name",
        "Call it by its address, or add the name to `gateway.hosts`.",
    ),
    "not_found": ProblemKind(
        404,
        "There is no such thing",
        "The id or name is not known here. The hint may have the one that was meant.",
    ),
    "method_not_allowed": ProblemKind(
        405,
        "That can't be done to it",
        "The header Allow says what can.",
    ),
    "refused": ProblemKind(
        409,
        "The state machine refused",
        "The code is the reason, and `held` what the database holds.",
    ),
    "ambiguous": ProblemKind(
        409,
        "Several have that id",
        "A part of an id was given, and more than one has it. `candidates` lists them.",
    ),
    "stored_elsewhere": ProblemKind(
        409,
        "The object lies on another machine",
        "This gateway has no store that holds it. With `[storage] url` on a shared folder or in S3 every "
        "gateway can read it.",
    ),
    "stale": ProblemKind(
        412,
        "It has changed meanwhile",
        "`If-Match` named another version than the one that is there; `current` has its ETag. Read it "
        "again, and decide anew.",
    ),
    "too_large": ProblemKind(
        413,
        "The body is too large",
        "`gateway.limits.body` says how large one may be.",
    ),
    "not_json": ProblemKind(
        415,
        "The body is not JSON",
        "Send `Content-Type: application/json`.",
    ),
    "range_not_satisfiable": ProblemKind(
        416,
        "The object has no such bytes",
        "`Content-Range` says how long it is.",
    ),
    "invalid": ProblemKind(
        422,
        "Something in the request is wrong",
        "`errors` names each place and what is wrong there.",
    ),
    "workflow_invalid": ProblemKind(
        422,
        "The workflow is wrong",
        "`errors` names each place and what is wrong there.",
    ),
    "idempotency_mismatch": ProblemKind(
        422,
        "The key was used for something else",
        "An `Idempotency-Key` belongs to one request. Choose another for another request.",
    ),
    "not_active": ProblemKind(
        400,
        "The task is not active",
        "At the door for Ordinaut only an active task runs and is snoozed; one that is paused is resumed "
        "first. Canceled is final: make a new task.",
    ),
    "unknown_agent": ProblemKind(
        400,
        "There is no such agent",
        "`created_by` and `source_agent_id` are ids of agents. Left out, they mean whoever asks.",
    ),
    "agent_exists": ProblemKind(
        400,
        "There is an agent of that name",
        "A name is never given twice, also when its agent is gone. Choose another.",
    ),
    "not_yourself": ProblemKind(
        400,
        "That would lock you out",
        "Another admin can do it.",
    ),
    "cursor_mismatch": ProblemKind(
        400,
        "The cursor is of another list",
        "A cursor goes with the filters that it was made with. Begin without one.",
    ),
    "precondition_required": ProblemKind(
        428,
        "Say which version you mean",
        "Send `If-Match` with the ETag of what you have read, so that nobody's change is lost.",
    ),
    "rate_limited": ProblemKind(
        429,
        "Too many requests",
        "`Retry-After` says when to come back.",
    ),
    "backlog_full": ProblemKind(
        429,
        "Too much work is pending",
        "More jobs are pending than `gateway.backlog` allows. `Retry-After` says when to come back.",
    ),
    "too_many_streams": ProblemKind(
        429,
        "Too many streams are open",
        "Close one, or poll. `gateway.limits.streams` says how many there may be.",
    ),
    "bug": ProblemKind(
        500,
        "accsd has a bug",
        "Nothing that you sent should lead here. The log of the gateway has the request id.",
    ),
    "database_unavailable": ProblemKind(
        503,
        "The database does not answer",
        "It may come back by itself; `Retry-After` says when to ask again.",
    ),
    "query_too_slow": ProblemKind(
        503,
        "The question took too long",
        "Narrow it: a shorter time, a workflow, a status.",
    ),
    "storage_unavailable": ProblemKind(
        503,
        "The object store does not answer",
        "It may come back by itself.",
    ),
    "unavailable": ProblemKind(
        503,
        "Something outside does not answer",
        "It may come back by itself.",
    ),
    "schema_mismatch": ProblemKind(
        503,
        "This accsd and the database are of different versions",
        "`accsd db status` says which; `accsd db upgrade` mends an older database.",
    ),
    "not_permitted": ProblemKind(
        503,
        "The gateway's login may not do that in the database",
        "`accsd db install --roles` gives accs_api what a gateway needs.",
    ),
    "too_many_connections": ProblemKind(
        503,
        "Too many connections",
        "`gateway.limits.connections` says how many there may be.",
    ),
}
_RETRY_SEC: Final = 2


class HttpProblem(AccsdError):
    """What only HTTP can get wrong, by the code of its kind."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail, hint=hint)
        self.code = code
        self.headers: dict[str, str] = dict(headers or {})
        self.members: dict[str, Any] = members


def response_of(error: Exception, *, request_id: str, base_path: str = "") -> Response:
    code, members, headers = described(error)
    kind = KINDS.get(code, KINDS["refused"])
    detail = (
        error.message
        if isinstance(error, AccsdError)
        else "; ".join(f"{each['pointer']}: {each['detail']}" for each in members.get("errors", []))
    )
    body: dict[str, Any] = {
        "type": f"{base_path}/problems/{code if code in KINDS else 'refused'}",
        "title": kind.title,
        "status": kind.status,
        "detail": detail if code != "bug" else "the gateway's log has the request id and what happened",
        "instance": request_id,
        "code": code,
        **({"hint": error.hint} if isinstance(error, AccsdError) and error.hint else {}),
        **members,
    }
    if "Retry-After" in headers:
        body["retry_after_seconds"] = float(headers["Retry-After"])
    if kind.status == 401:
        headers = {**headers, "WWW-Authenticate": 'Bearer realm="accsd"'}
    return Response(encode(body), status_code=kind.status, headers=headers, media_type=PROBLEM_JSON)


def described(error: Exception) -> tuple[str, dict[str, Any], dict[str, str]]:
    """The code, further members and headers."""
    match error:
        case HttpProblem():
            return error.code, error.members, error.headers
        case CursorMismatch():
            return "cursor_mismatch", {}, {}
        case QueryInvalid():
            found = {"parameter": error.parameter, "position": error.position, "length": error.length}
            return (
                "invalid",
                {"errors": [{"pointer": f"/query/{error.parameter}", "detail": error.message} | found]},
                {},
            )
        case TooManyWaiting():
            return "rate_limited", {}, {"Retry-After": str(_RETRY_SEC)}
        case WorkflowInvalid():
            return "workflow_invalid", {"step": error.step, "errors": pointers(error.complaints)}, {}
        case DocumentInvalid():
            return "invalid", {"errors": pointers(error.complaints)}, {}
        case ExpressionInvalid():
            return "invalid", {"errors": pointers([(error.place, error.message)])}, {}
        case ValidationError():
            found = [(tuple(each["loc"]), each["msg"]) for each in error.errors(include_input=False, include_url=False)]
            return "invalid", {"errors": pointers(found)}, {}
        case NotFound():
            return "not_found", {}, {}
        case VerbRefused():
            return error.reason, {"verb": error.verb, "subject": error.subject, "held": error.held}, {}
        case SchemaMismatch():
            return "schema_mismatch", {}, {}
        case NotPermitted():
            return "not_permitted", {}, {}
        case UserError():
            return "invalid", {}, {}
        case QueryTooSlow():
            return "query_too_slow", {}, {"Retry-After": str(_RETRY_SEC)}
        case DatabaseUnavailable():
            return "database_unavailable", {}, {"Retry-After": str(_RETRY_SEC)}
        case StorageUnavailable():
            return "storage_unavailable", {}, {"Retry-After": str(_RETRY_SEC)}
        case Unavailable():
            return "unavailable", {}, {"Retry-After": str(_RETRY_SEC)}
        case _:
            return "bug", {}, {}


def pointers(complaints: Sequence[tuple[Place, str]]) -> list[dict[str, str]]:
    """Mistakes with their places as JSON Pointers (RFC 6901)."""
    return [{"pointer": pointer(place), "detail": said} for place, said in complaints]


def pointer(place: Sequence[str | int]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in place)
