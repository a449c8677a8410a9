"""The shapes of the door's answers, for its description (docs/reference/openapi-joblib.json)."""

from typing import Any, Final, get_args

from accsd.gateway.joblib.bodies import Status
from accsd.gateway.schemas import Schema

_UUID: Final[Schema] = {"type": "string", "format": "uuid"}
_TEXT: Final[Schema] = {"type": "string"}
_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_COUNT: Final[Schema] = {"type": "integer"}
_OBJECT: Final[Schema] = {"type": "object"}


def _or_null(schema: Schema) -> Schema:
    return schema | {"type": [schema["type"], "null"]}


def _whole(**properties: Schema) -> Schema:
    """All members are always there, nulls too."""
    return {"type": "object", "required": sorted(properties), "properties": properties}


def _page(schema: Schema) -> Schema:
    return _whole(items={"type": "array", "items": schema}, total=_COUNT, limit=_COUNT, offset=_COUNT)


_WORKERS: Final[Schema] = {"type": "array", "items": _UUID}
_NAMES: Final[dict[str, Any]] = {"category": _TEXT, "name": _TEXT, "full_name": _TEXT}
JOB: Final = _whole(id=_UUID, room_id=_TEXT, **_NAMES, schema=_OBJECT, workers=_WORKERS, worker_id=_or_null(_UUID))
WORKER: Final = _whole(id=_UUID, last_heartbeat=_TIME)
TASK: Final = _whole(
    id=_UUID,
    job_name=_TEXT,
    room_id=_TEXT,
    status={"type": "string", "enum": list(get_args(Status))},
    created_at=_TIME,
    started_at=_or_null(_TIME),
    completed_at=_or_null(_TIME),
    worker_id=_or_null(_UUID),
    error=_or_null(_TEXT),
    payload=_OBJECT,
    queue_position=_or_null(_COUNT),
    attempt=_COUNT,
    attempt_id=_COUNT,
    progress={"type": "number"},
    result=_or_null(_OBJECT),
    next_attempt_at=_or_null(_TIME),
)
CLAIM: Final = _whole(task=TASK | {"type": ["object", "null"]})
PROVIDER: Final = _whole(id=_UUID, room_id=_TEXT, **_NAMES, schema=_OBJECT, worker_id=_or_null(_UUID), created_at=_TIME)
PAGE_OF_JOBS: Final = _page(_whole(**_NAMES, workers=_WORKERS))
PAGE_OF_WORKERS: Final = _page(_whole(id=_UUID, last_heartbeat=_TIME, job_count=_COUNT))
PAGE_OF_TASKS: Final = _page(TASK)
PAGE_OF_PROVIDERS: Final = _page(PROVIDER)
ME: Final = _whole(id=_or_null(_UUID), name=_TEXT, is_superuser={"type": "boolean"})
EXPLAINED: Final = _whole(type=_TEXT, title=_TEXT, status=_COUNT, detail=_TEXT)
PROBLEM: Final[Schema] = _whole(type=_TEXT, title=_TEXT, status=_COUNT, detail=_TEXT)
REFUSED: Final[Schema] = _whole(
    detail={
        "type": "array",
        "items": {"type": "object", "properties": {"loc": {"type": "array"}, "msg": _TEXT, "type": _TEXT}},
    }
)
