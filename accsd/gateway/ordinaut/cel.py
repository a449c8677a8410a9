"""JMESPath, in which Ordinaut's documents say where a value comes from, put into CEL.

What is translated means the same: a value that is missing makes a comparison false, `a || b` is the first one that
counts, and whether something counts follows JMESPath's rules. What CEL has no words for is refused, with its place:
nothing is guessed.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson

from accsd.errors import ExpressionInvalid
from accsd.expressions import Embedded, pieces
from accsd.expressions.scanner import MAX_EXPRESSION_BYTES
from accsd.gateway.ordinaut.jmespath import (
    COMPARISONS,
    ELSEWHERE,
    Call,
    Constant,
    Filter,
    Node,
    Not,
    Pair,
    Parser,
    Path,
    TimeSpan,
)

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED: Final = frozenset(
    {
        *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop"),
        *("namespace", "null", "package", "return", "true", "var", "void", "while"),
    }
)
_HOURS: Final = {"d": 24, "w": 168}


def value_in_cel(expression: str) -> str:
    """The expression of a `${…}`. Raises ExpressionInvalid."""
    return _Words(expression).value(Parser(expression).whole())


def condition_in_cel(expression: str) -> str:
    """The expression of an `if`, as one that is true or false: null, false, 0 and what is empty do not count. It may
    stand in a `${…}` of its own. Raises ExpressionInvalid."""
    match pieces(expression):
        case (Embedded(expression=inner),):
            expression = inner
        case _:
            pass
    return _Words(expression).truth(Parser(expression).whole(), zero_counts=False)


def text_in_cel(text: str) -> str:
    """A text with each `${…}` in it translated. Raises ExpressionInvalid."""
    if "${" not in text:
        return text
    return "".join(
        f"${{{value_in_cel(piece.expression)}}}" if isinstance(piece, Embedded) else piece.replace("${", "$${")
        for piece in pieces(text)
    )


class _Words:
    """Writes a tree as CEL."""

    def __init__(self, expression: str) -> None:
        self._expression: str = expression
        self._elements: list[str] = []  # the names of those that filters look at
        self._filters: int = 0

    def value(self, node: Node) -> str:
        written = self._value(node)
        if len(written) > MAX_EXPRESSION_BYTES:  # before it is doubled once more
            what = f"has more than {MAX_EXPRESSION_BYTES} bytes when it is put into CEL"
            raise ExpressionInvalid(what, expression=self._expression, hint=ELSEWHERE)
        return written

    def _value(self, node: Node) -> str:
        match node:
            case Constant(value=value):
                return _constant(value)
            case TimeSpan(text=text):
                return f'duration("{_hours(text)}")'
            case Path():
                return self._path(node)
            case Filter():
                return self._filtered(node)
            case Not(operand=operand):
                return f"!{self._inside(self.truth(operand))}"
            case Call(function=function, arguments=arguments):
                return _FUNCTIONS[function](self, arguments)
            case Pair():
                return self._pair(node)

    def truth(self, node: Node, *, zero_counts: bool = True) -> str:
        """Whether it counts."""
        if _is_bool(node):
            return self.value(node)
        if isinstance(node, Pair) and node.sign in ("&&", "||"):
            sides = [self._inside(self.truth(each, zero_counts=zero_counts)) for each in (node.left, node.right)]
            return f" {node.sign} ".join(sides)
        if isinstance(node, Constant):
            counts = node.value not in (None, "", [], {}) and (zero_counts or node.value != 0)
            return "true" if counts else "false"
        zeros = "" if zero_counts else ", 0, 0.0"
        return f'!({self.perhaps(node)} in [dyn(null), false, "", [], {{}}{zeros}])'

    def perhaps(self, node: Node) -> str:
        """Its value, or null where it is missing."""
        is_far = isinstance(node, Path) and any(isinstance(part, int) and part < 0 for part in node.parts)
        if not isinstance(node, Path) or not node.parts or is_far:
            return self.value(node)
        steps = "".join(
            f".?{part}" if isinstance(part, str) and _is_plain(part) else f"[?{_constant(part)}]" for part in node.parts
        )
        return f"{self._root(node)}{steps}.orValue(dyn(null))"

    def _root(self, node: Path) -> str:
        if node.root is None:
            return self._elements[-1]
        return node.root if isinstance(node.root, str) else self._inside(self.value(node.root))

    def _path(self, node: Path) -> str:
        written = self._root(node)
        for part in node.parts:
            if isinstance(part, int) and part < 0:
                written = f"{written}[size({written}) - {-part}]"
            elif isinstance(part, str) and _is_plain(part):
                written += f".{part}"
            else:
                written += f"[{_constant(part)}]"
        return written

    def _filtered(self, node: Filter) -> str:
        base = self._inside(self.value(node.base))
        self._filters += 1
        name = f"element_{self._filters}"
        self._elements.append(name)
        wanted = f"{self.perhaps(Path(None, node.parts))} != null"
        if node.condition is not None:
            condition = self._inside(self.truth(node.condition))
            wanted = condition if not node.parts else f"{condition} && {wanted}"
        mapped = f".map({name}, {self._path(Path(None, node.parts))})" if node.parts else ""
        self._elements.pop()
        return f"{base}.filter({name}, {wanted}){mapped}"

    def _pair(self, node: Pair) -> str:
        left, right = node.left, node.right
        match node.sign:
            case "||" | "&&" if _is_bool(left) and _is_bool(right):
                return f"{self._inside(self.value(left))} {node.sign} {self._inside(self.value(right))}"
            case "||":
                return f"({self.truth(left)} ? {self._any(left)} : {self._any(right)})"
            case "&&":
                return f"({self.truth(left)} ? {self._any(right)} : {self._any(left)})"
            case "==" | "!=":
                return f"{self._compared(left)} {node.sign} {self._compared(right)}"
            case "<" | "<=" | ">" | ">=":
                there = [f"{self.perhaps(each)} != null && " for each in (left, right) if _may_be_missing(each)]
                return (
                    f"({''.join(there)}{self._inside(self.value(left))} {node.sign} {self._inside(self.value(right))})"
                )
            case _:
                return f"({self._inside(self.value(left))} {node.sign} {self._inside(self.value(right))})"

    def _any(self, node: Node) -> str:
        """Of no type that CEL knows beforehand: both sides of a choice must have one type for it."""
        return f"dyn({self.perhaps(node)})"

    def _compared(self, node: Node) -> str:
        return f"dyn({self.value(node)})" if isinstance(node, Constant) else self._inside(self.perhaps(node))

    def _inside(self, written: str) -> str:
        return written if _is_closed(written) else f"({written})"


def _is_closed(written: str) -> bool:
    """Whether it can stand beside an operator as it is."""
    return re.fullmatch(r"[\w.?\[\]\"]+|\([^()]*\)", written) is not None


def _is_plain(part: str) -> bool:
    return _PLAIN.fullmatch(part) is not None and part not in _RESERVED


def _may_be_missing(node: Node) -> bool:
    return isinstance(node, Path) and bool(node.parts)


def _is_bool(node: Node) -> bool:
    match node:
        case Constant(value=value):
            return isinstance(value, bool)
        case Not():
            return True
        case Pair(sign=sign, left=left, right=right):
            return sign in COMPARISONS or (sign in ("&&", "||") and _is_bool(left) and _is_bool(right))
        case Call(function=function):
            return function in ("contains", "starts_with", "ends_with")
        case _:
            return False


def _constant(value: Any) -> str:
    return orjson.dumps(value).decode()


def _hours(span: str) -> str:
    number, unit = span.rstrip("mshdw"), span.lstrip("0123456789.")
    return f"{float(number) * _HOURS[unit]:g}h" if unit in _HOURS else span


# Functions

_Written = Callable[[_Words, Sequence[Node]], str]


def _method(name: str) -> _Written:
    return lambda words, given: f"{_closed(words, given[0])}.{name}({words.value(given[1])})"


def _function(name: str, *, of_double: bool = False) -> _Written:
    return lambda words, given: f"{name}({f'double({words.value(given[0])})' if of_double else words.value(given[0])})"


def _closed(words: _Words, node: Node) -> str:
    written = words.value(node)
    return written if _is_closed(written) else f"({written})"


def _contains(words: _Words, given: Sequence[Node]) -> str:
    where, what = given
    looked, wanted = _closed(words, where), _closed(words, what)
    is_text = isinstance(where, Constant) and isinstance(where.value, str)
    if is_text:
        return f"{looked}.contains({wanted})"
    if isinstance(where, Constant) or (isinstance(what, Constant) and not isinstance(what.value, str)):
        return f"({wanted} in {looked})"
    return f"(type({looked}) == string ? {looked}.contains({wanted}) : {wanted} in {looked})"


def _not_null(words: _Words, given: Sequence[Node]) -> str:
    written = "dyn(null)"
    for node in reversed(given):
        written = f"({words.perhaps(node)} != null ? dyn({words.perhaps(node)}) : {written})"
    return written


_FUNCTIONS: Final[Mapping[str, _Written]] = {
    "length": _function("length"),
    "contains": _contains,
    "starts_with": _method("startsWith"),
    "ends_with": _method("endsWith"),
    "join": lambda words, given: f"{_closed(words, given[1])}.join({words.value(given[0])})",
    "to_string": _function("string"),
    "to_number": _function("double"),
    "abs": _function("math.abs"),
    "ceil": _function("math.ceil", of_double=True),
    "floor": _function("math.floor", of_double=True),
    "keys": lambda words, given: f"{_closed(words, given[0])}.map(name, name)",
    "values": lambda words, given: f"{_closed(words, given[0])}.map(name, {_closed(words, given[0])}[name])",
    "not_null": _not_null,
}
