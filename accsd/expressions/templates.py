"""Documents with `${expression}` in their texts, filled in. What was filled in is never scanned again, and keys are
no templates.
"""

from collections.abc import Iterator
from typing import Any, Final, cast

import orjson

from accsd.errors import ExpressionInvalid, ExpressionTooExpensive, InvalidValue, Place
from accsd.expressions.context import Context
from accsd.expressions.effort import AFFORDABLE, afford
from accsd.expressions.evaluation import run
from accsd.expressions.program import compile_expression
from accsd.expressions.results import written
from accsd.expressions.scanner import Embedded, Piece, pieces
from accsd.values.json import MAX_DEPTH, is_too_deep

MAX_EXPRESSIONS: Final = 200
MAX_RENDERED_BYTES: Final = 256 * 1024


def render(document: Any, context: Context, *, at: Place = ()) -> Any:
    """The document with its expressions evaluated. A text that is one expression becomes its value, of any type; in a
    longer text values are written out. `at` is where the document stands, for errors. Raises ExpressionInvalid, and
    InvalidValue where the document itself is too large or too deep."""
    check_shape(document)
    rendered = _Rendering(context).value(document, at)
    check_shape(rendered)
    size = _size(rendered)
    if size > MAX_RENDERED_BYTES:
        raise InvalidValue(f"the document has {size} bytes when filled in; the limit is {MAX_RENDERED_BYTES}")
    return rendered


def has_templates(document: Any) -> bool:
    """Whether rendering would change it, or refuse it."""
    return any(True for _ in templated(document))


def templated(document: Any, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """The texts in which a `${` stands, and where."""
    if isinstance(document, str):
        if "${" in document:
            yield place, document
    elif isinstance(document, dict):
        for key, value in cast("dict[str, Any]", document).items():
            yield from templated(value, (*place, key))
    elif isinstance(document, list):
        for index, value in enumerate(cast("list[Any]", document)):
            yield from templated(value, (*place, index))


def check_shape(document: Any) -> None:
    if is_too_deep(document):
        raise InvalidValue(f"the document is nested deeper than {MAX_DEPTH} levels")


class _Rendering:
    """One pass over a document, with what all of its expressions together may cost."""

    def __init__(self, context: Context) -> None:
        self._context: Context = context
        self._expressions: int = 0
        self._nanoseconds: int = 0
        self._bytes: int = 0

    def value(self, document: Any, place: Place) -> Any:
        if isinstance(document, str):
            return self._text(document, place) if "${" in document else document
        if isinstance(document, dict):
            items = cast("dict[str, Any]", document).items()
            return {key: self.value(value, (*place, key)) for key, value in items}
        if isinstance(document, list):
            return [self.value(value, (*place, index)) for index, value in enumerate(cast("list[Any]", document))]
        return document

    def _text(self, text: str, place: Place) -> Any:
        try:
            match pieces(text):
                case (Embedded() as whole,):
                    return self._evaluated(whole)
                case parts:
                    return "".join(map(self._written, parts))
        except ExpressionInvalid as error:
            raise error.at(place) from None

    def _written(self, piece: Piece) -> str:
        if isinstance(piece, str):
            return piece
        try:
            return written(self._evaluated(piece))
        except InvalidValue as error:
            raise ExpressionInvalid(f"the result {error.message}", expression=piece.expression) from None

    def _evaluated(self, embedded: Embedded) -> Any:
        expression = embedded.expression
        self._expressions += 1
        if self._expressions > MAX_EXPRESSIONS:
            raise ExpressionTooExpensive(f"it is one more than {MAX_EXPRESSIONS} in a document", expression=expression)
        program = compile_expression(expression, self._context.names)
        self._nanoseconds += afford(program, self._context)
        if self._nanoseconds > AFFORDABLE:
            what = "it and those before it could together take longer than a quarter of a second"
            raise ExpressionTooExpensive(what, expression=expression, hint="do it in a step")
        result = run(program, self._context)
        self._bytes += _size(result)
        if self._bytes > MAX_RENDERED_BYTES:
            what = f"it and those before it give more than {MAX_RENDERED_BYTES} bytes"
            raise ExpressionTooExpensive(what, expression=expression)
        return result


def _size(document: Any) -> int:
    try:
        return len(orjson.dumps(document))
    except TypeError as error:
        raise InvalidValue(f"the document is not JSON: {error}") from None
