"""Finds `${expression}` in a text. An expression may hold braces, quotes and comments of its own, so its end is
found by reading its tokens: no pattern alone could tell the `}` of a map from the last one.
"""

import re
from dataclasses import dataclass
from typing import Final

from accsd.errors import ExpressionInvalid

MAX_EXPRESSION_BYTES: Final = 4096

_RAW: Final = r"""(?<!\w)[bB]?[rR](?:\"{3}[\s\S]*?\"{3}|'{3}[\s\S]*?'{3}|"[^"\n]*"|'[^'\n]*')"""
_ESCAPED: Final = (
    r"""\"{3}(?:[^\\]|\\[\s\S])*?\"{3}|'{3}(?:[^\\]|\\[\s\S])*?'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
)
# The last alternative is a quote that nothing closes.
_TOKEN: Final = re.compile(rf"{_RAW}|{_ESCAPED}|`[^`\n]*`|//[^\n]*|[{{}}]|[\"'`]")


@dataclass(frozen=True, slots=True)
class Embedded:
    """An expression in a text. `position` is where its `${` stands, counted from 1."""

    expression: str
    position: int


Piece = str | Embedded


def pieces(text: str) -> tuple[Piece, ...]:
    """The text cut into literal pieces, in which `$${` has become `${`, and expressions. Adjacent literals are one."""
    found: list[Piece] = []
    literal = ""
    at = 0
    while (start := text.find("${", at)) >= 0:
        if start > at and text[start - 1] == "$":
            literal += text[at:start] + "{"
            at = start + 2
            continue
        end = _end(text, start)
        found += [literal + text[at:start], Embedded(text[start + 2 : end].strip(), start + 1)]
        literal, at = "", end + 1
    found.append(literal + text[at:])
    return tuple(piece for piece in found if piece)


def _end(text: str, start: int) -> int:
    """Where the `}` stands that closes the `${` at `start`."""
    depth = 0
    for token in _TOKEN.finditer(text, start + 2):
        match token[0]:
            case "{":
                depth += 1
            case "}" if depth == 0:
                return token.start()
            case "}":
                depth -= 1
            case '"' | "'" | "`":
                raise _unclosed(text, start, f"no {token[0]} closes the one at character {token.start() + 1}")
            case _:
                pass
    raise _unclosed(text, start, "no } closes its ${", hint="write $${ for a ${ that is meant literally")


def _unclosed(text: str, start: int, what: str, hint: str | None = None) -> ExpressionInvalid:
    return ExpressionInvalid(what, expression=text[start : start + 200], position=start + 1, hint=hint)
