"""Compiled expressions, and the only place that imports the CEL library. It is imported on first use: that takes 10 ms,
and there are machines for which it has no wheel.
"""

import re
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

from accsd.errors import Bug, ConfigError, ExpressionInvalid, ExpressionTooExpensive
from accsd.expressions.complaints import refusal, shown_path
from accsd.expressions.scanner import MAX_EXPRESSION_BYTES
from accsd.expressions.syntax import Call, Loop, Name, Reference, Select, Tree, nodes, path_of, read_tree, references

# 15 KiB each, with its tree; 150 KiB for each set of names.
_PROGRAMS: Final = 1000
_ENVIRONMENTS: Final = 32

# The compiler writes what stands before one of these macros twice: a chain of 20 takes it 37 s.
_DOUBLING: Final = re.compile(r"\bopt(?:Flat)?Map\b")
_MOST_DOUBLINGS: Final = 5

_ARITHMETIC: Final = {"_+_": "+", "_-_": "-", "_*_": "*", "_/_": "/"}
# What can make more out of its values than they are, or takes longer than it takes to read them once.
_HEAVY: Final = frozenset({"replace", "join", "format", "contains", "indexOf", "lastIndexOf", "matches"})


@dataclass(frozen=True)
class Names:
    """What expressions of one kind may refer to. `values` are variables that hold JSON. `moments` hold a time: a
    variable (`now`) or a field of one (`event.at`). The library takes a time only for a name that is declared to hold
    one; so every time elsewhere in a value is RFC 3339 text, of which `timestamp()` makes a time."""

    values: tuple[str, ...]
    moments: tuple[str, ...] = ()

    @property
    def roots(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.values, *(moment.partition(".")[0] for moment in self.moments))))


@dataclass(frozen=True)
class Program:
    """An expression that was found to be sound."""

    expression: str
    names: Names
    compiled: Any
    tree: Tree

    @cached_property
    def references(self) -> tuple[Reference, ...]:
        return tuple(found for found in references(self.tree) if found.path[0] in self.names.roots)

    @cached_property
    def is_heavy(self) -> bool:
        return any(
            isinstance(node, Loop) or (isinstance(node, Call) and node.function in _HEAVY)
            for node in nodes(self.tree.root)
        )

    @cached_property
    def size(self) -> int:
        """How many nodes its tree has."""
        return sum(1 for _ in nodes(self.tree.root))

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        return tuple(_mixed(node, self.tree) for node in nodes(self.tree.root) if _may_mix(node, self.tree))

    @property
    def result_type(self) -> str:
        """As far as it is known without values: BOOL, INT, …; DYN where it is not."""
        return self.compiled.return_type().name()


@lru_cache(maxsize=_PROGRAMS)
def compile_expression(expression: str, names: Names) -> Program:
    """Raises ExpressionInvalid: a syntax error, an unknown name, types that do not fit."""
    _check_text(expression)
    try:
        compiled = environment(names).compile(expression)
    except RuntimeError as error:
        raise refusal(expression, str(error), names.roots) from None
    return Program(expression, names, compiled, read_tree(compiled.serialize()))


@lru_cache(maxsize=_ENVIRONMENTS)
def environment(names: Names) -> Any:
    cel, extensions = _library()
    variables = dict.fromkeys(names.values, cel.Type.DYN) | dict.fromkeys(names.moments, cel.Type.TIMESTAMP)
    return cel.NewEnv(variables=variables, extensions=extensions, functions=[_length(cel)])


def activation(names: Names, values: Mapping[str, object]) -> Any:
    """The values as the library holds them: they are converted once, when they are first used."""
    return environment(names).Activation(dict(values))


def _check_text(expression: str) -> None:
    if not expression.strip():
        raise ExpressionInvalid("is empty", expression=expression)
    try:
        size = len(expression.encode())
    except UnicodeEncodeError as error:
        what = "holds half of a surrogate pair, which is no character"
        raise ExpressionInvalid(what, expression=expression, position=error.start + 1) from None
    if size > MAX_EXPRESSION_BYTES:
        what = f"has {size} bytes; the limit is {MAX_EXPRESSION_BYTES}"
        raise ExpressionInvalid(what, expression=expression, hint="do such work in a step")
    if len(_DOUBLING.findall(expression)) > _MOST_DOUBLINGS:
        what = f"uses optMap and optFlatMap more than {_MOST_DOUBLINGS} times"
        raise ExpressionTooExpensive(what, expression=expression, hint="do such work in a step")
    if "\x00" in expression:
        what = "holds the character NUL"
        raise ExpressionInvalid(what, expression=expression, position=expression.index("\x00") + 1)


def _library() -> tuple[Any, list[Any]]:
    try:
        from cel_expr_python import cel
        from cel_expr_python.ext import ext_math, ext_optional, ext_strings
    except ImportError as error:
        raise ConfigError(
            f"expressions need the package cel-expr-python, which can't be imported here: {error}",
            hint="pip install 'cel-expr-python>=0.1.3,<0.2'; it has wheels for CPython 3.11 to 3.14 on Linux with "
            "glibc 2.28 or newer (x86_64, aarch64) and macOS, but none for Alpine",
        ) from error
    return cel, [ext_strings.ExtStrings(), ext_optional.ExtOptional(), ext_math.ExtMath()]


def _length(cel: Any) -> Any:
    """`length(x)` beside CEL's own `size(x)`: what Ordinaut's documents call it."""
    measure: Callable[[Sized], int] = len
    return cel.FunctionDecl(
        "length",
        [
            cel.Overload(f"length_{kind.name().lower()}", cel.Type.INT, [kind], impl=measure)
            for kind in (cel.Type.STRING, cel.Type.LIST, cel.Type.MAP)
        ],
    )


def _may_mix(node: object, tree: Tree) -> bool:
    """Whether it is arithmetic between a double and something whose type only shows when it runs."""
    if not isinstance(node, Call) or node.function not in _ARITHMETIC or len(node.arguments) != 2:
        return False
    return {tree.types.get(argument.number, "dyn") for argument in node.arguments} == {"double", "dyn"}


def _mixed(node: object, tree: Tree) -> str:
    if not isinstance(node, Call):
        raise Bug("only calls mix types")
    unsure = next(argument for argument in node.arguments if tree.types.get(argument.number, "dyn") == "dyn")
    path = path_of(unsure) if isinstance(unsure, Name | Select) else None
    wanted = f"double({shown_path(path)})" if path else "double(…)"
    position = tree.positions.get(node.number, 0) + 1
    return (
        f'"{_ARITHMETIC[node.function]}" at character {position} fails where a value is a whole number, '
        f"because the other side is a double: write {wanted}"
    )
