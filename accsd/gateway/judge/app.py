"""The routes of the judge's door. Each says which scope it needs, and one that does not say it stops the gateway."""

from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from accsd.errors import Bug
from accsd.gateway.access import all_routes, network_of
from accsd.gateway.answers import answer
from accsd.gateway.bare import bare_app
from accsd.gateway.conditional import told as told_when
from accsd.gateway.context import GatewayContext, caller_of, context_of
from accsd.gateway.judge import accounts, problems, submissions
from accsd.gateway.judge.bodies import form_of, json_of
from accsd.gateway.judge.gate import admitted
from accsd.gateway.judge.pace import Room, Windows
from accsd.gateway.judge.refusals import Refusal, told
from accsd.gateway.messages import Topic
from accsd.gateway.schemas import answers, objects
from accsd.model.access import Scope
from accsd.settings.doors import JudgeSettings

_BARE: Final = frozenset({"submit", "status"})
_BELOW_API: Final = frozenset({"submit", "status", "problems", "auth", "health"})
_API: Final = "/api/v1"
_SCOPE: Final = "x-scope"


def is_ours(path: str) -> bool:
    first = path.split("/", 4)
    return first[3] in _BELOW_API if path.startswith(f"{_API}/") else first[1:2] != [] and first[1] in _BARE


class JudgeApp:
    """The door of one gateway, with what it counts."""

    def __init__(self, context: GatewayContext) -> None:
        assert context.settings.gateway.judge is not None, "a door is opened by its section"
        self.settings: JudgeSettings = context.settings.gateway.judge
        self.windows: Windows = Windows()
        self.room: Room = Room(context.reads, self.settings)
        self.problems: problems.Problems = problems.Problems(context.reads)
        self.routes: FastAPI = make_routes()

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        scope["state"]["judge"] = self
        await self.routes(scope, receive, send)


def _door(request: Request) -> JudgeApp:
    return request.state.judge


def _needs(scope: Scope | None) -> dict[str, Any]:
    return {_SCOPE: "none" if scope is None else scope.value}


class JudgeRoute(APIRoute):
    """Lets in whom its scope lets in, before anything of the request is read."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        scope = (self.openapi_extra or {}).get(_SCOPE, "")

        async def guarded(request: Request) -> Response:
            if scope != "none":
                door = _door(request)
                await admitted(request, Scope(scope), door.windows, door.settings)
            return await handler(request)

        return guarded


router = APIRouter(route_class=JudgeRoute)


def _body(model: type[BaseModel]) -> dict[str, Any]:
    """For the description: the body is read by hand, after the checks that come before it."""
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


class AccountLogin(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    username: str = Field(min_length=3, max_length=32)
    password: str = Field(min_length=accounts.SHORTEST_PASSWORD, max_length=1000)


_JOB: Final = objects(job_id={"type": "string"}, status={"type": "string"})
_STATUS: Final = objects(
    job_id={"type": "string"},
    status={"type": "string", "enum": ["pending", "running", "Finished"]},
    state={"type": "string", "enum": ["pending", "processing", "done"]},
    data={"type": ["object", "null"]},
    progress={"type": "number"},
)
_PROBLEM: Final = objects(
    id={"type": "integer"},
    status={"type": "string"},
    minio_path={"type": "string"},
    workflow={"type": "string"},
    cases={"type": "integer"},
    key={"type": "string"},
    sha256={"type": "string"},
)
_REJUDGED: Final = objects(
    rejudged={"type": "integer"}, refused={"type": "integer"}, more={"type": "boolean", "description": "Ask again."}
)
_FORM: Final = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["title", "file"],
                    "properties": {
                        "title": {"type": "string"},
                        "time_limit": {"type": "integer", "description": "ms"},
                        "memory_limit": {"type": "integer", "description": "MB"},
                        "difficulty": {"type": "string"},
                        "file": {"type": "string", "format": "binary", "description": "A zip of NAME.in and NAME.out."},
                    },
                }
            }
        },
    }
}


# Submissions


@router.post(
    "/submit",
    operation_id="judge.submit_bare",
    include_in_schema=False,
    openapi_extra=_needs(Scope.SUBMIT) | _body(submissions.SubmissionBody),
)
@router.post(
    f"{_API}/submit",
    operation_id="judge.submit",
    summary="Submit code to a problem",
    responses=answers(_JOB),
    openapi_extra=_needs(Scope.SUBMIT) | _body(submissions.SubmissionBody),
)
async def submit(request: Request) -> Response:
    """Also at /submit. The same submission of the same user within ten minutes is the same job, unless
    `Cache-Control: no-cache` says otherwise."""
    door, context, caller = _door(request), context_of(request), caller_of(request)
    door.windows.take("submit from", network_of(request), door.settings.per_address)
    door.windows.take("submit by", caller.actor, door.settings.per_user)
    wanted = submissions.read_submission(await json_of(request, context.settings.gateway.limits.body))
    afresh = "no-cache" in request.headers.get("cache-control", "").lower()
    made = await submissions.submit(
        context,
        door.settings,
        door.room,
        door.problems,
        wanted,
        caller,
        request_id=request.state.request_id,
        afresh=afresh,
    )
    return answer(made)


@router.get(
    "/status/{job_id}",
    operation_id="judge.status_bare",
    include_in_schema=False,
    openapi_extra=_needs(Scope.READ),
)
@router.get(
    f"{_API}/status/{{job_id}}",
    operation_id="judge.status",
    summary="What has become of a submission",
    responses=answers(_STATUS),
    openapi_extra=_needs(Scope.READ),
)
async def status(request: Request, job_id: str) -> Response:
    """Also at /status/{job_id}. With `Prefer: wait=30` it answers as soon as the submission is judged."""
    context, caller = context_of(request), caller_of(request)
    first = await submissions.seen(context.reads, job_id, caller)

    async def read() -> dict[str, Any]:
        return submissions.document(await submissions.seen(context.reads, job_id, caller))

    return await told_when(request, Topic.job(first.job_id), read, lambda shown: shown["state"] == "done")


@router.post(
    f"{_API}/status/{{job_id}}/rejudge",
    operation_id="judge.rejudge",
    summary="Judge a submission again",
    responses=answers(_JOB),
    openapi_extra=_needs(Scope.OPERATE),
)
async def rejudge(request: Request, job_id: str) -> Response:
    context, caller = context_of(request), caller_of(request)
    found = await submissions.seen(context.reads, job_id, caller)
    return answer(await submissions.rejudge(context, found, by=caller.actor, request_id=request.state.request_id))


# Problems


@router.post(
    f"{_API}/problems",
    operation_id="judge.create_problem",
    summary="Make a problem of a zip with its cases",
    responses=answers(_PROBLEM),
    openapi_extra=_needs(Scope.ADMIN) | _FORM,
)
async def create_problem(request: Request) -> Response:
    door, caller = _door(request), caller_of(request)
    if not caller.reaches("workflows", problems.workflow_name(0)):
        raise Refusal("FORBIDDEN", "the token is limited to other workflows")
    async with form_of(request, door.settings.zip) as (form, file):
        made = await problems.create_problem(
            context_of(request),
            door.settings,
            form,
            file.file,
            by=caller.actor,
            request_id=request.state.request_id,
        )
    return answer(made)


@router.delete(
    f"{_API}/problems/{{problem_id}}",
    operation_id="judge.delete_problem",
    summary="Take a problem away",
    responses=answers(objects(status={"type": "string"})),
    openapi_extra=_needs(Scope.ADMIN),
)
async def delete_problem(request: Request, problem_id: str) -> Response:
    """Nobody can submit to it any more. What was submitted stays, and is judged."""
    number = _number(request, problem_id)
    await problems.delete_problem(
        context_of(request), number, by=caller_of(request).actor, request_id=request.state.request_id
    )
    _door(request).problems.forget(number)
    return answer({"status": "deleted"})


@router.post(
    f"{_API}/problems/{{problem_id}}/rejudge",
    operation_id="judge.rejudge_problem",
    summary="Judge all submissions to a problem again that have ended",
    responses=answers(_REJUDGED),
    openapi_extra=_needs(Scope.ADMIN),
)
async def rejudge_problem(request: Request, problem_id: str) -> Response:
    """Each by the test data that it was submitted under."""
    number = _number(request, problem_id)
    return answer(
        await problems.rejudge_problem(
            context_of(request), number, by=caller_of(request).actor, request_id=request.state.request_id
        )
    )


def _number(request: Request, given: str) -> int:
    """The problem that a path names, if the token reaches it."""
    is_number = given.isascii() and given.isdigit() and len(given) < 10
    if not is_number or not caller_of(request).reaches("workflows", problems.workflow_name(int(given))):
        raise Refusal("NOT_FOUND", f"there is no problem {given[:50]}")
    return int(given)


# Accounts


@router.post(
    f"{_API}/auth/register",
    operation_id="judge.register",
    summary="Ask for an account",
    responses=answers(objects(id={"type": "integer"}, username={"type": "string"}), 201),
    openapi_extra=_needs(None) | _body(AccountLogin),
)
async def register(request: Request) -> Response:
    """Accounts are made in the settings: a name that is taken is 409, every other 403."""
    given = await _credentials(request)
    raise accounts.refuse_registration(_door(request).settings, given.username)


@router.post(
    f"{_API}/auth/login",
    operation_id="judge.login",
    summary="Get a token for a name and a password",
    responses=answers(
        objects(
            token={"type": "string"},
            username={"type": "string"},
            user_id={"type": "integer"},
            expires_at={"type": "string", "format": "date-time"},
        )
    ),
    openapi_extra=_needs(None) | _body(AccountLogin),
)
async def login(request: Request) -> Response:
    given = await _credentials(request)
    door = _door(request)
    door.windows.take("auth of", given.username, door.settings.per_user)
    db = context_of(request).verbs.acting("http", request.state.request_id)
    return answer(await accounts.login(db, door.settings, given.username, given.password))


async def _credentials(request: Request) -> AccountLogin:
    door = _door(request)
    door.windows.take("auth from", network_of(request), door.settings.per_address)
    document = await json_of(request, context_of(request).settings.gateway.limits.body)
    try:
        return AccountLogin.model_validate(document)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False, include_context=False)
        details = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}" for each in found[:5])
        raise Refusal("BAD_REQUEST", "name or password can't be one", details=details) from None


@router.get(
    f"{_API}/health",
    operation_id="judge.health",
    summary="Whether the door is open",
    responses=answers(objects(status={"type": "string"})),
    openapi_extra=_needs(None),
)
async def health(request: Request) -> Response:
    return answer({"status": "ok"})


# The application


@cache
def make_routes() -> FastAPI:
    app = bare_app(
        [router],
        title="accsd: the judge's door",
        description="The API of Deep-OJ's clients on accsd. Errors are {error, code}.",
        told=_told,
    )
    for route in all_routes(app):
        if not isinstance(route, JudgeRoute) or _SCOPE not in (route.openapi_extra or {}):
            raise Bug(f"the route {getattr(route, 'path', route)} does not say who may call it")
    return app


async def _told(_: Request, error: Exception) -> Response:
    match error:
        case HTTPException(status_code=404):
            return told(Refusal("NOT_FOUND", "there is no such path"))
        case HTTPException(status_code=405):
            refused = told(Refusal("METHOD_NOT_ALLOWED", "that method is not for this path"))
            refused.headers.update(error.headers or {})
            return refused
        case HTTPException():
            return told(Refusal("BAD_REQUEST", str(error.detail)))
        case _:
            return told(error)


_ERROR: Final = {
    "type": "object",
    "required": ["error", "code"],
    "properties": {
        "error": {"type": "string", "description": "`backpressure` with every 429."},
        "code": {"type": "string"},
        "reason": {"type": "string", "enum": ["rate_limit", "inflight_cap", "backlog"]},
        "message": {"type": "string"},
        "details": {"type": "string"},
    },
}


def openapi() -> dict[str, Any]:
    """The description of the door, with what every route may refuse."""
    found = make_routes().openapi()
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    if "Error" in schemas:
        return found  # FastAPI keeps what it has made
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Error"] = _ERROR
    refused = {
        "description": "Refused",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    for methods in found["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
            operation["responses"] |= {"4XX": refused, "5XX": refused}
            if operation[_SCOPE] != "none":
                operation["security"] = [{"bearer": []}]
    found["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    return found
