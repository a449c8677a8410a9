"""The tree of an expression, as the library serialises it: which values it refers to, and what it does with them.

The library shows no tree, but writes it as a `cel.expr.CheckedExpr` in protobuf's wire format. Reading its few messages
by hand spares the protobuf package. Field numbers are those of cel-spec's syntax.proto and checked.proto.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from accsd.errors import Bug, Place

Type = Literal["dyn", "int", "double", "other"]


@dataclass(frozen=True, slots=True)
class Constant:
    number: int  # of the node; positions and types are kept under it
    value: object  # text and whole numbers; None for every other kind, of which nothing depends


@dataclass(frozen=True, slots=True)
class Name:
    number: int
    name: str


@dataclass(frozen=True, slots=True)
class Select:
    number: int
    operand: "Node"
    field: str


@dataclass(frozen=True, slots=True)
class Call:
    number: int
    function: str
    arguments: tuple["Node", ...]  # of a method, the first is what it belongs to


@dataclass(frozen=True, slots=True)
class Collection:
    """A list or map that the expression itself makes."""

    number: int
    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """What a macro becomes: for each `variable` of `range`, `step` makes the next value of `accumulator`."""

    number: int
    variable: str
    accumulator: str
    range: "Node"
    start: "Node"
    condition: "Node"
    step: "Node"
    result: "Node"


Node = Constant | Name | Select | Call | Collection | Loop

_INDEXING: Final = ("_[_]", "_[?_]", "_?._")


@dataclass(frozen=True, slots=True)
class Tree:
    root: Node
    positions: Mapping[int, int]  # by number of the node; from 0
    types: Mapping[int, Type]


@dataclass(frozen=True, slots=True)
class Reference:
    """A value that an expression refers to, as far as its path is written down: `steps[params.n].x` refers to `steps`
    and to `params.n`. `positions` is where each part of the path stands, counted from 1."""

    path: Place
    positions: tuple[int, ...]


def read_tree(serialised: bytes) -> Tree:
    """The tree out of what the library's `serialize()` gives: a CheckedExpr in an Any."""
    checked = _message(_message(serialised)[2][0])
    source = _message(checked[5][0])
    return Tree(
        root=_node(checked[4][0]),
        positions=dict(map(_position, source.get(4, []))),
        types=dict(map(_type, checked.get(3, []))),
    )


def references(tree: Tree) -> Iterator[Reference]:
    """What the tree refers to, as it is written from left to right. Variables of its own macros are no references."""
    for parts in _referred(tree.root, frozenset()):
        # The position of a selection is that of its dot or bracket.
        positions = [tree.positions.get(node.number, 0) + (1 if isinstance(node, Name) else 2) for _, node in parts]
        yield Reference(tuple(part for part, _ in parts), tuple(positions))


def path_of(node: Node) -> Place | None:
    """`a.b[0]['c']` as (a, b, 0, c); None where a part of it is computed."""
    parts = _parts(node)
    return None if parts is None else tuple(part for part, _ in parts)


def nodes(node: Node) -> Iterator[Node]:
    """The node and everything below it."""
    yield node
    for child in children(node):
        yield from nodes(child)


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Select():
            return (node.operand,)
        case Call():
            return node.arguments
        case Collection():
            return node.parts
        case Loop():
            return (node.range, node.start, node.condition, node.step, node.result)
        case Constant() | Name():
            return ()


Parts = tuple[tuple[str | int, Node], ...]


def _parts(node: Node) -> Parts | None:
    """The parts of a path, each with the node that ends with it."""
    match node:
        case Name(name=name):
            # The checker makes one name of `event.at` where that is a variable of its own.
            return tuple((part, node) for part in name.removeprefix(".").split("."))
        case Select(operand=operand, field=key):
            pass
        case Call(function=function, arguments=(operand, Constant(value=str() | int() as key))) if (
            function in _INDEXING
        ):
            pass
        case _:
            return None
    above = _parts(operand)
    return None if above is None else (*above, (key, node))


def _referred(node: Node, own: frozenset[str]) -> Iterator[Parts]:
    parts = _parts(node)
    if parts is not None:
        if parts[0][0] not in own:
            yield parts
        return
    inside = own | {node.variable, node.accumulator} if isinstance(node, Loop) else own
    for child in children(node):
        is_outside = isinstance(node, Loop) and child in (node.range, node.start)
        yield from _referred(child, own if is_outside else inside)


Message = Mapping[int, list[Any]]


def _node(data: bytes) -> Node:
    message = _message(data)
    number = message.get(2, [0])[0]
    for field, build in _KINDS.items():
        if field in message:
            return build(number, _message(message[field][0]))
    raise Bug("the library wrote an expression in a way that is not known here")


def _constant(number: int, message: Message) -> Node:
    if 6 in message:
        return Constant(number, cast("bytes", message[6][0]).decode())
    if 3 in message:
        written = cast("int", message[3][0])
        return Constant(number, written if written < 2**63 else written - 2**64)
    return Constant(number, None)


def _name(number: int, message: Message) -> Node:
    return Name(number, _text(message, 1))


def _select(number: int, message: Message) -> Node:
    return Select(number, _node(message[1][0]), _text(message, 2))


def _call(number: int, message: Message) -> Node:
    arguments = [*message.get(1, []), *message.get(3, [])]
    return Call(number, _text(message, 2), tuple(map(_node, arguments)))


def _list(number: int, message: Message) -> Node:
    return Collection(number, tuple(map(_node, message.get(1, []))))


def _map(number: int, message: Message) -> Node:
    entries = [_message(entry) for entry in message.get(2, [])]
    return Collection(number, tuple(_node(entry[part][0]) for entry in entries for part in (3, 4) if part in entry))


def _loop(number: int, message: Message) -> Node:
    return Loop(
        number,
        variable=_text(message, 1),
        range=_node(message[2][0]),
        accumulator=_text(message, 3),
        start=_node(message[4][0]),
        condition=_node(message[5][0]),
        step=_node(message[6][0]),
        result=_node(message[7][0]),
    )


_KINDS: Final[Mapping[int, Callable[[int, Message], Node]]] = {
    3: _constant,
    4: _name,
    5: _select,
    6: _call,
    7: _list,
    8: _map,
    9: _loop,
}


def _position(entry: bytes) -> tuple[int, int]:
    message = _message(entry)
    return message.get(1, [0])[0], message.get(2, [0])[0]


def _type(entry: bytes) -> tuple[int, Type]:
    message = _message(entry)
    type_ = _message(message[2][0])
    primitives: dict[int, Type] = {2: "int", 4: "double"}
    kind: Type = "dyn" if 1 in type_ else primitives.get(type_.get(3, [0])[0], "other")
    return message.get(1, [0])[0], kind


def _text(message: Message, field: int) -> str:
    return cast("bytes", message[field][0]).decode() if field in message else ""


def _message(data: bytes) -> Message:
    """A message's values by field number: whole numbers and bytes, as protobuf's wire format has them."""
    fields: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                value, at = _varint(data, at)
            case 2:
                size, at = _varint(data, at)
                value, at = data[at : at + size], at + size
            case width:
                size = {1: 8, 5: 4}[width]
                value, at = data[at : at + size], at + size
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
