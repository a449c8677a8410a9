"""What every body of a request shares."""

import json
import re
from typing import Any, Final

import orjson
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request


class Body(BaseModel):
    """A body. A field that is not known is a mistake: one that was ignored silently would be found much later."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Reason(Body):
    """Why somebody does it, for those who wonder."""

    reason: str | None = Field(default=None, max_length=1000)


_LONG_NUMBER: Final = re.compile(rb"\d{19}")


class StrictRequest(Request):
    """A request whose body is JSON in the strict sense: NaN, halves of characters and numbers that nobody could give
    back as they were are refused. Python's own parser takes them, and the database would store something else."""

    async def json(self) -> Any:
        return read_json(await self.body())


def read_json(body: bytes) -> Any:
    """Raises json.JSONDecodeError, or HTTPException for a number that is too large."""
    found = orjson.loads(body)  # makes a float of a large integer, without a word
    if _LONG_NUMBER.search(body):
        json.loads(body, parse_int=_integer)
    require_shallow(found)
    return found


def require_shallow(found: Any) -> None:
    """What is nested deeper than it could ever be written again is refused here, before it meets the database."""
    try:
        orjson.dumps(found)
    except orjson.JSONEncodeError:
        raise HTTPException(400, "the body is nested too deep") from None


def _integer(digits: str) -> None:
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:
        raise HTTPException(400, f"the number {digits[:40]} is too large: an integer has at most 64 bits")
