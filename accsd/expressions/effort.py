"""How long an expression can take at most, worked out before it is evaluated.

An evaluation can't be stopped, and nothing else of the process runs meanwhile. Most take microseconds, but few
characters can ask for much: `replace` in `replace` grows without end, `map` is quadratic, a regular expression may cost
128 ms for each element of a list. So the tree is walked with the sizes of the values that the expression will meet, and
what could take longer than AFFORDABLE is refused. The estimate is an upper bound, by figures that were measured.
"""

import re
from collections.abc import Collection as Container
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from math import prod
from typing import Any, Final, cast

import orjson

from accsd.errors import ExpressionTooExpensive
from accsd.expressions.context import Context
from accsd.expressions.program import Program
from accsd.expressions.syntax import Call, Collection, Constant, Loop, Name, Node, Select

AFFORDABLE: Final = 250_000_000  # nanoseconds
MAX_ELEMENTS: Final = 1000  # of what a macro goes through

# Nanoseconds, measured with cel-expr-python 0.1.3.
_NODE: Final = 100
_BYTE_MADE: Final = 20
_BYTE_ANSWERED: Final = 300  # a result becomes a Python value, element by element
_QUICK: Final = AFFORDABLE // 250  # so that 200 of them in a document are affordable
_BYTE_COMPARED: Final = 40  # of lists and objects; texts are much faster
_BYTES_SEARCHED: Final = 40  # by a nanosecond: a search compares at every character
_APPENDED: Final = 20  # for each element that is there already: hence quadratic
_STATE_MET: Final = 10  # by a character that is matched
_STATE_MADE: Final = 150
_UNICODE_STATE_MADE: Final = 150_000
_LARGEST_PATTERN: Final = 130_000_000  # above that RE2 gives up
_MOST_REPETITIONS: Final = 1000  # of RE2, within each other

_SMALL: Final = 32
_ANSWERS: Final = frozenset(
    {"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "_&&_", "_||_", "!_", "@in", "@not_strictly_false", "size", "length"}
    | {"contains", "startsWith", "endsWith", "matches", "indexOf", "lastIndexOf", "hasValue"}
    | {"int", "uint", "double", "bool", "timestamp", "duration", "type"}
)
_MOST_ALTERNATIVES: Final = 4096
_BYTES_BY_FORMAT: Final = 150  # out of one byte of the format: %.1000f
_BYTES_BY_VALUE: Final = 8  # out of one byte of a value: %b


class Known:
    """The extent of a value that is there already, or of one of several."""

    def __init__(self, values: list[Any]) -> None:
        self.values: list[Any] = values

    @cached_property
    def size(self) -> int:
        return max((_size(value) for value in self.values), default=0)

    @property
    def count(self) -> int:
        return max(map(len, self._containers), default=0)

    @property
    def elements(self) -> "Known | Extent":
        """What an index finds."""
        return _alternatives(chain.from_iterable(map(_elements, self.values))) or _unknown(self.size)

    @property
    def members(self) -> "Known | Extent":
        """What a macro goes through: the keys of an object."""
        return _alternatives(chain.from_iterable(self._containers)) or _unknown(self.size)

    @property
    def _containers(self) -> list[Container[Any]]:
        return [cast("Container[Any]", value) for value in self.values if isinstance(value, list | dict)]

    def part(self, key: str | int) -> "Known | Extent":
        found = [value[key] for value in self.values if _has(value, key)]
        return Known(found) if found else Extent()


@dataclass(frozen=True, slots=True)
class Extent:
    """The most that a value can be: bytes, and elements. `element` is the most that one of them can be, if less than
    the whole."""

    size: int = _SMALL
    count: int = 0
    element: "Known | Extent | None" = None

    @property
    def elements(self) -> "Known | Extent":
        return self.element or _unknown(self.size)

    @property
    def members(self) -> "Known | Extent":
        return self.elements

    def part(self, key: str | int) -> "Known | Extent":
        return self.elements if isinstance(key, int) else _unknown(self.size)


AnyExtent = Known | Extent
Scope = dict[str, AnyExtent]


def afford(program: Program, context: Context) -> int:
    """The nanoseconds that the evaluation takes at most; raises ExpressionTooExpensive."""
    if not program.is_heavy:
        # Each node makes at most everything that there is.
        quick = program.size * (_NODE + _BYTE_ANSWERED * (context.size + len(program.expression)))
        if quick <= _QUICK:
            return quick
    estimate = _Estimate(program.expression, context)
    made = estimate.extent(program.tree.root, {})
    # What is given back as it was given is no larger than what may be given.
    spent = estimate.spend(made.size * (_BYTE_MADE if isinstance(made, Known) else _BYTE_ANSWERED))
    if context.budget is not None and not context.budget.spend(spent):
        raise estimate.refusal("it could take seconds for all items together")
    return spent


class _Estimate:
    def __init__(self, expression: str, context: Context) -> None:
        self._expression: str = expression
        self._context: Context = context
        self._spent: int = 0

    def spend(self, nanoseconds: int) -> int:
        self._spent += nanoseconds
        if self._spent > AFFORDABLE:
            raise self.refusal("it could take longer than a quarter of a second with these values")
        return self._spent

    def extent(self, node: Node, scope: Scope) -> AnyExtent:
        self.spend(_NODE)
        match node:
            case Constant():
                return Known([node.value]) if isinstance(node.value, str | int) else Extent()
            case Name():
                return self._named(node.name.removeprefix("."), scope)
            case Select():
                return self.extent(node.operand, scope).part(node.field)
            case Collection():
                parts = [self.extent(part, scope) for part in node.parts]
                return Extent(_total(parts) + len(parts), len(parts), _either(parts) if parts else None)
            case Loop():
                return self._looped(node, scope)
            case Call():
                return self._called(node.function, [self.extent(argument, scope) for argument in node.arguments])

    def _named(self, name: str, scope: Scope) -> AnyExtent:
        return scope.get(name) or Known([self._context.document]).part(name)

    def _looped(self, loop: Loop, scope: Scope) -> AnyExtent:
        through = self.extent(loop.range, scope)
        if through.count > MAX_ELEMENTS:
            raise self.refusal(f"a macro goes through more than {MAX_ELEMENTS} elements")
        start = self.extent(loop.start, scope)
        if through.count:
            start = self._repeated(loop, through, start, scope)
        return self.extent(loop.result, scope | {loop.accumulator: start})

    def _repeated(self, loop: Loop, through: AnyExtent, start: AnyExtent, scope: Scope) -> AnyExtent:
        """What the accumulator becomes: at most what all steps add to what it was."""
        inside = scope | {loop.variable: through.members, loop.accumulator: Extent(0)}
        before = self._spent
        self.extent(loop.condition, inside)
        step = self.extent(loop.step, inside)
        self.spend((self._spent - before) * (through.count - 1) + _APPENDED * through.count**2)
        size, count = start.size + step.size * through.count, start.count + step.count * through.count
        return Extent(size, count, _one_of([start, step]))

    def _called(self, function: str, given: list[AnyExtent]) -> AnyExtent:
        match function, given:
            case "_[_]" | "_[?_]" | "_?._", [whole, Known(values=[str() | int() as key])]:
                return whole.part(key)
            case "_[_]" | "_[?_]", [whole, _]:
                return whole.elements
            case "_?_:_", [_, *both]:
                return _either(both)
            case "replace", [text, old, new, *_]:
                return self._made(Extent(text.size + _hits(text, old) * new.size))
            case "join", [parts, *separator]:
                return self._made(Extent(parts.size + parts.count * _total(separator)))
            case "split", [text, separator, *_]:
                count = _hits(text, separator) + 1
                return self._made(Extent(text.size + count, count, Extent(text.size)))
            case "format", [form, values]:
                return self._made(Extent(form.size * _BYTES_BY_FORMAT + values.size * _BYTES_BY_VALUE))
            case _ if function in _ANSWERS:
                return self._answered(function, given)
            case _:
                return self._made(Extent(_total(given), sum(each.count for each in given), _one_of(given)))

    def _answered(self, function: str, given: list[AnyExtent]) -> AnyExtent:
        match function, given:
            case "contains" | "indexOf" | "lastIndexOf", [text, wanted, *_]:
                self.spend(text.size * wanted.size // _BYTES_SEARCHED)
            case "matches", [text, pattern]:
                self.spend(_matching(text, pattern))
            case "_==_" | "_!=_", _:
                self.spend(_BYTE_COMPARED * min(each.size for each in given))
            case "@in", [_, within]:
                self.spend(_BYTE_COMPARED * within.size)
            case _:
                pass
        return Extent()

    def _made(self, extent: Extent) -> Extent:
        self.spend(extent.size * _BYTE_MADE)
        return extent

    def refusal(self, what: str) -> ExpressionTooExpensive:
        return ExpressionTooExpensive(what, expression=self._expression, hint="do it in a step")


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str) else len(orjson.dumps(value))


def _elements(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).values()
    return cast("list[Any]", value) if isinstance(value, list) else ()


def _has(value: Any, key: str | int) -> bool:
    if isinstance(value, dict):
        return key in value
    return isinstance(value, list) and isinstance(key, int) and 0 <= key < len(cast("list[Any]", value))


def _unknown(size: int) -> Extent:
    """Of something of which only the size is known: every byte of it may be an element."""
    return Extent(size, size)


def _alternatives(values: Iterable[Any]) -> Known | None:
    """One of these values; None if there are too many to look at each. One value counts once, however often an
    expression repeats it: otherwise the estimate itself would grow without end."""
    few = list(islice(values, _MOST_ALTERNATIVES + 1))
    return Known(list({id(value): value for value in few}.values())) if len(few) <= _MOST_ALTERNATIVES else None


def _either(extents: Sequence[AnyExtent]) -> AnyExtent:
    if all(each is extents[0] for each in extents):
        return extents[0]
    known = [each.values for each in extents if isinstance(each, Known)]
    if len(known) == len(extents) and (alternatives := _alternatives(chain.from_iterable(known))):
        return alternatives
    return Extent(max(each.size for each in extents), max(each.count for each in extents), _one_of(extents))


def _one_of(collections: Sequence[AnyExtent]) -> AnyExtent | None:
    """An element of any of them."""
    filled = [each for each in collections if each.count]
    if not filled or any(isinstance(each, Extent) and each.element is None for each in filled):
        return None
    return _either([each.elements for each in filled])


def _total(extents: Sequence[AnyExtent]) -> int:
    return sum(each.size for each in extents)


def _hits(text: AnyExtent, wanted: AnyExtent) -> int:
    """How often a text is found in another one, at most."""
    needles = _texts(wanted)
    if not needles or "" in needles:
        return text.size + 1
    if haystacks := _texts(text):
        return max(haystack.count(needle) for haystack in haystacks for needle in needles)
    return text.size // min(map(len, needles))


def _texts(extent: AnyExtent) -> list[str]:
    """All values that it may have; none where they are not known, or are no texts."""
    return [text for text in extent.values if isinstance(text, str)] if isinstance(extent, Known) else []


def _matching(text: AnyExtent, pattern: AnyExtent) -> int:
    patterns = _texts(pattern)
    if not patterns:
        return _LARGEST_PATTERN + text.size * (pattern.size + 1) * _MOST_REPETITIONS * _STATE_MET
    return max(_matching_one(text.size, each) for each in patterns)


def _matching_one(size: int, pattern: str) -> int:
    """RE2 is linear in the text, but compiles the pattern anew each time, and repetitions and classes of Unicode make
    its automaton large: `^\\pL{1,100}$` costs 128 ms before it has read a character."""
    repetitions = [max(1, int(number)) for number in re.findall(r"(?<=[{,])\d{1,4}(?=[,}])", pattern)]
    states = len(pattern) * min(_MOST_REPETITIONS, prod(repetitions))
    each = _UNICODE_STATE_MADE if re.search(r"\\[pP]", pattern) else _STATE_MADE
    return min(states * each, _LARGEST_PATTERN) + size * states * _STATE_MET
