"""Problems as clients of zndraw-joblib know them: types, titles and statuses are a part of the contract (JB-2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from accsd.errors import AccsdError, DocumentInvalid
from accsd.gateway.answers import JSON, encode
from accsd.gateway.problems import KINDS, PROBLEM_JSON, described


@dataclass(frozen=True, slots=True)
class JoblibProblemKind:
    status: int
    title: str
    page: str


PROBLEMS: Final[Mapping[str, JoblibProblemKind]] = {
    "job-not-found": JoblibProblemKind(404, "Not Found", "The requested job does not exist."),
    "worker-not-found": JoblibProblemKind(404, "Not Found", "The requested worker does not exist, or is not yours."),
    "task-not-found": JoblibProblemKind(404, "Not Found", "The requested task does not exist."),
    "provider-not-found": JoblibProblemKind(
        404, "Not Found", "The provider does not exist, or is not visible from that room."
    ),
    "schema-conflict": JoblibProblemKind(409, "Conflict", "An active job of that name has another schema."),
    "invalid-task-transition": JoblibProblemKind(409, "Conflict", "A task does not go from its status to that one."),
    "stale-attempt": JoblibProblemKind(
        409, "Conflict", "If-Match names an attempt that is over: the task was given to another."
    ),
    "no-workers-available": JoblibProblemKind(
        409, "Conflict", "Nobody serves the job, and this gateway lets no task wait for that."
    ),
    "invalid-category": JoblibProblemKind(400, "Bad Request", "The category is not in the allowed list."),
    "invalid-room-id": JoblibProblemKind(400, "Bad Request", "A room's id has no @ and no :, and is not empty."),
    "unauthenticated": JoblibProblemKind(
        401, "Unauthorized", "Send Authorization: Bearer TOKEN, with a token of accsd."
    ),
    "forbidden": JoblibProblemKind(
        403, "Forbidden", "That needs another scope of the token, or belongs to somebody else."
    ),
    "internal-job-not-configured": JoblibProblemKind(503, "Service Unavailable", "The @internal job has no executor."),
    "provider-timeout": JoblibProblemKind(
        504, "Gateway Timeout", "The provider did not respond within the time to wait."
    ),
}
_SAME: Final = {"scope_missing": "forbidden", "not_yours": "forbidden"}


class JoblibProblem(AccsdError):
    def __init__(self, kind: str, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any) -> None:
        super().__init__(detail)
        self.kind = kind
        self.headers: dict[str, str] = dict(headers or {})
        self.members: dict[str, Any] = members


def response_of(error: Exception) -> Response:
    if isinstance(error, JoblibProblem):
        return _response(error.kind, PROBLEMS[error.kind], error.message, error.headers, error.members)
    code, _, headers = described(error)
    if code == "invalid":
        return refused_input(_complaints(error))
    kind = _SAME.get(code, code.replace("_", "-"))
    general = KINDS.get(code, KINDS["refused"])
    problem = PROBLEMS.get(kind) or JoblibProblemKind(general.status, general.title, general.page)
    detail = error.message if isinstance(error, AccsdError) and code != "bug" else general.page
    return _response(kind, problem, detail, headers, {})


def _response(
    kind: str, problem: JoblibProblemKind, detail: str, headers: Mapping[str, str], members: Mapping[str, Any]
) -> Response:
    body = {"type": f"/v1/problems/{kind}", "title": problem.title, "status": problem.status, "detail": detail}
    answer = Response(encode(body | dict(members)), status_code=problem.status, headers=dict(headers))
    answer.headers["Content-Type"] = PROBLEM_JSON  # exactly that: clients compare it
    if problem.status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def refused_input(complaints: list[dict[str, Any]]) -> Response:
    """What no problem type covers is refused as FastAPI does it (JB-3)."""
    return Response(encode({"detail": complaints}), status_code=422, media_type=JSON)


def _complaints(error: Exception) -> list[dict[str, Any]]:
    if isinstance(error, DocumentInvalid) and error.complaints:
        return [{"loc": ["body", *place], "msg": said, "type": "value_error"} for place, said in error.complaints]
    said = error.message if isinstance(error, AccsdError) else str(error)
    return [{"loc": ["body"], "msg": said, "type": "value_error"}]
