"""Reads JMESPath: the part of it that CEL has words for (cel.py), and what Ordinaut's guide shows beyond it, such as a
number without backticks, `now+24h` and arithmetic."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, cast

import orjson

from accsd.errors import ExpressionInvalid
from accsd.expressions.scanner import MAX_EXPRESSION_BYTES

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
      | (?P<span>\d+(?:\.\d+)?(?:ms|s|m|h|d|w)\b)
      | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<quoted>"(?:[^"\\]|\\.)*")
      | (?P<raw>'(?:[^'\\]|\\.)*')
      | (?P<literal>`(?:[^`\\]|\\.)*`)
      | (?P<sign>\|\||&&|==|!=|<=|>=|\[\?|\[\]|[-+*/%<>!()\[\]{}.,:|&@?])""",
    re.VERBOSE,
)
_WORDS: Final[Mapping[str, Any]] = {"true": True, "false": False, "null": None}
COMPARISONS: Final = ("==", "!=", "<", "<=", ">", ">=")
_ORDER: Final[Mapping[str, int]] = {
    "||": 1,
    "&&": 2,
    **dict.fromkeys(COMPARISONS, 3),
    **dict.fromkeys("+-", 4),
    **dict.fromkeys("*/%", 5),
}
_DEEPEST: Final = 40
ELSEWHERE: Final = (
    "do it in a step, or write the task as a workflow, whose expressions are CEL (docs/doors/ordinaut.md)"
)
# How many arguments each function takes
FUNCTIONS: Final[Mapping[str, tuple[int, int]]] = {
    "abs": (1, 1),
    "ceil": (1, 1),
    "contains": (2, 2),
    "ends_with": (2, 2),
    "floor": (1, 1),
    "join": (2, 2),
    "keys": (1, 1),
    "length": (1, 1),
    "not_null": (1, 20),
    "starts_with": (2, 2),
    "to_number": (1, 1),
    "to_string": (1, 1),
    "values": (1, 1),
}
_NO_WORDS: Final = {
    "[]": "flattening by [] has no counterpart here",
    "{": "a choice of several values by {} has no counterpart here",
    "|": "a pipe has no counterpart here",
    "&": "an expression as an argument has no counterpart here",
    "*": "all values of an object by * have no counterpart here",
    "?": "? is no JMESPath",
    ":": "a slice has no counterpart here",
}

# The tree of an expression


@dataclass(frozen=True, slots=True)
class Constant:
    value: Any


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A length of time: 24h."""

    text: str


@dataclass(frozen=True, slots=True)
class Path:
    """`root` is a name, or a value of its own; None: the element that a filter looks at."""

    root: "Node | str | None"
    parts: tuple[str | int, ...] = ()


@dataclass(frozen=True, slots=True)
class Filter:
    """The elements of a list for which `condition` holds (all, without one), and of each what `parts` lead to."""

    base: "Node"
    condition: "Node | None"
    parts: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Not:
    operand: "Node"


@dataclass(frozen=True, slots=True)
class Pair:
    sign: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    arguments: tuple["Node", ...]


Node = Constant | TimeSpan | Path | Filter | Not | Pair | Call


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


class Parser:
    def __init__(self, expression: str) -> None:
        self._expression: str = expression
        if len(expression.encode(errors="replace")) > MAX_EXPRESSION_BYTES:
            self._refuse(f"has more than {MAX_EXPRESSION_BYTES} bytes", 1)
        self._tokens: list[_Token] = list(self._cut())
        self._at: int = 0
        self._depth: int = 0
        self._in_filter: int = 0

    def whole(self) -> Node:
        if not self._expression.strip():
            self._refuse("is empty", 1)
        found = self._binary(0)
        if self._next.kind != "end":
            self._unexpected()
        return found

    def _cut(self) -> Iterator[_Token]:
        at = 0
        while at < len(self._expression):
            found = _TOKEN.match(self._expression, at)
            if found is None:
                self._refuse(f"{self._expression[at]!r} is not known here", at + 1)
            if found.lastgroup != "space":
                yield _Token(str(found.lastgroup), found[0], at + 1)
            at = found.end()
        yield _Token("end", "", at + 1)

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, *texts: str) -> _Token | None:
        if self._next.kind == "sign" and self._next.text in texts:
            self._at += 1
            return self._tokens[self._at - 1]
        return None

    def _need(self, text: str) -> None:
        if self._take(text) is None:
            self._unexpected(f"{text} is missing")

    def _binary(self, least: int) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._refuse("is nested too deeply", self._next.position)
        left = self._one()
        while self._next.kind == "sign" and _ORDER.get(self._next.text, 0) > least:
            sign = self._tokens[self._at].text
            self._at += 1
            left = Pair(sign, left, self._binary(_ORDER[sign]))
        self._depth -= 1
        return left

    def _one(self) -> Node:
        """An operand with all that follows it: .field, [0], [?…]."""
        if self._take("!"):
            return Not(self._deeper())
        if self._take("-"):
            found = self._deeper()
            is_number = isinstance(found, Constant) and isinstance(found.value, int | float)
            return Constant(-cast("Constant", found).value) if is_number else Pair("-", Constant(0), found)
        found = self._operand()
        while True:
            if self._take("."):
                found = self._further(found, self._field())
            elif self._take("["):
                found = self._bracket(found)
            elif self._take("[?"):
                found = self._filter(found)
            elif self._next.text == "[]":
                self._unexpected()
            else:
                return found

    def _deeper(self) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._refuse("is nested too deeply", self._next.position)
        found = self._one()
        self._depth -= 1
        return found

    def _operand(self) -> Node:
        token = self._next
        if self._take("("):
            found = self._binary(0)
            self._need(")")
            return found
        if self._take("@"):
            if not self._in_filter:
                self._refuse("@ outside of a filter has no counterpart here", token.position, ELSEWHERE)
            return Path(None)
        if token.kind in ("sign", "end"):
            self._unexpected()
        self._at += 1
        match token.kind:
            case "name" if self._take("("):
                return self._call(token)
            case "name":
                return self._named(token.text)
            case "quoted" if self._in_filter:
                return Path(None, (self._json(token),))
            case "quoted" | "literal":
                return Constant(self._json(token))
            case "raw":
                return Constant(token.text[1:-1].replace("\\'", "'"))
            case "span":
                return TimeSpan(token.text)
            case _:
                return Constant(orjson.loads(token.text))

    def _named(self, name: str) -> Node:
        if name in _WORDS:
            return Constant(_WORDS[name])
        if self._in_filter:
            return Path(None, (name,))
        return Path("trigger", ("event",)) if name == "event" else Path(name)

    def _call(self, token: _Token) -> Node:
        if token.text not in FUNCTIONS:
            known = ", ".join(FUNCTIONS)
            self._refuse(f"{token.text}() has no counterpart here; there are {known}", token.position, ELSEWHERE)
        arguments: list[Node] = []
        while not self._take(")"):
            if arguments:
                self._need(",")
            arguments.append(self._binary(0))
        least, most = FUNCTIONS[token.text]
        if not least <= len(arguments) <= most:
            self._refuse(f"{token.text}() does not take {len(arguments)} arguments", token.position)
        return Call(token.text, tuple(arguments))

    def _field(self) -> str:
        token = self._next
        if token.kind not in ("name", "quoted"):
            self._unexpected()
        self._at += 1
        return token.text if token.kind == "name" else str(self._json(token))

    def _bracket(self, found: Node) -> Node:
        if self._take("*"):
            self._need("]")
            return Filter(found, None, ())
        sign, token = -1 if self._take("-") else 1, self._next
        if token.kind != "number" or not token.text.isdigit():
            self._unexpected()
        self._at += 1
        self._need("]")
        return self._further(found, sign * int(token.text))

    def _filter(self, found: Node) -> Node:
        self._in_filter += 1
        condition = self._binary(0)
        self._in_filter -= 1
        self._need("]")
        return Filter(found, condition, ())

    def _further(self, found: Node, part: str | int) -> Node:
        match found:
            case Path():
                return Path(found.root, (*found.parts, part))
            case Filter() if isinstance(part, str):
                return Filter(found.base, found.condition, (*found.parts, part))
            case Filter():
                self._refuse("an index behind a filter has no counterpart here", self._next.position, ELSEWHERE)
            case _:
                pass
        return Path(found, (part,))

    def _json(self, token: _Token) -> Any:
        text = token.text if token.kind == "quoted" else token.text[1:-1].replace("\\`", "`").strip()
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            if token.kind == "literal" and text[:1] not in ('"', "[", "{"):
                return text  # as JMESPath took it once: a word without quotes
            self._refuse(f"{token.text} is no JSON", token.position)

    def _unexpected(self, what: str | None = None) -> NoReturn:
        token = self._next
        if what is None and token.text in _NO_WORDS:
            self._refuse(_NO_WORDS[token.text], token.position, ELSEWHERE)
        there = f"there is {token.text!r}" if token.text else "it ends"
        self._refuse(f"{what}: {there}" if what else f"{there}, where it can't be read further", token.position)

    def _refuse(self, what: str, position: int, hint: str | None = None) -> NoReturn:
        raise ExpressionInvalid(what, expression=self._expression, position=position, hint=hint)
