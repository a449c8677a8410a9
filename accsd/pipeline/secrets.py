"""`${secret('name')}` as a whole value of a step's `with`: it is never evaluated and never a value here. Its place and
its name go to the node beside the input, and the node fills it in. A value that is worked out can't become one."""

import re
from typing import Any, Final, cast

from accsd.errors import ExpressionInvalid, Place
from accsd.expressions import Embedded, pieces

_SECRET: Final = re.compile(r"""\s*secret\(\s*(?:'([^'\\]*)'|"([^"\\]*)")\s*\)\s*""")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def without_secrets(document: Any) -> tuple[Any, dict[Place, str]]:
    """The document with null in the place of each secret, and the names of the secrets by place."""
    found: dict[Place, str] = {}
    return _without(document, (), found), found


def _without(document: Any, at: Place, found: dict[Place, str]) -> Any:
    match document:
        case str() if "secret" in document and (name := _named(document)) is not None:
            found[at] = name
            return None
        case dict():
            return {key: _without(value, (*at, key), found) for key, value in cast("dict[str, Any]", document).items()}
        case list():
            return [_without(value, (*at, n), found) for n, value in enumerate(cast("list[Any]", document))]
        case _:
            return document


def _named(text: str) -> str | None:
    try:
        parts = pieces(text)
    except ExpressionInvalid:
        return None  # the check of the expressions says what is wrong
    match parts:
        case (Embedded(expression=expression),) if said := _SECRET.fullmatch(expression):
            name = said[1] or said[2] or ""
            return name if _NAME.fullmatch(name) else None
        case _:
            return None
