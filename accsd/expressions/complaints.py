"""What the CEL library complains about, in words for the person who wrote the expression. The library has no codes,
only sentences; one that is not known here is shown as it is.
"""

import re
from collections.abc import Callable, Collection
from typing import Final

from accsd.errors import ExpressionInvalid, ExpressionTooExpensive, Place
from accsd.values.validation import did_you_mean

_COMPLAINT: Final = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")
_STATUS: Final = re.compile(r"^[A-Z_]+: (.*?)(?: \[[A-Z_]+\])?$", re.DOTALL)
_OPERATORS: Final = {
    "_+_": "+", "_-_": "-", "_*_": "*", "_/_": "/", "_%_": "%", "-_": "-", "!_": "!", "_&&_": "&&", "_||_": "||",
    "_==_": "==", "_!=_": "!=", "_<_": "<", "_<=_": "<=", "_>_": ">", "_>=_": ">=", "@in": "in", "_[_]": "[ ]",
    "_?_:_": "? :", "<jump_condition>": "? :",
}  # fmt: skip
_LOGICAL: Final = ("!", "&&", "||", "? :")
_TYPES: Final = {
    "int": "int", "int64": "int", "uint": "uint", "uint64": "uint", "bool": "true or false", "dyn": "any value",
    "google.protobuf.Timestamp": "timestamp", "google.protobuf.Duration": "duration", "null_type": "null",
}  # fmt: skip
_DEEP: Final = "nests too deeply, or joins more than 32 parts by + or another operator"

# An error at compile time, and what its sentence begins with.
_SYNTAX: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...]] = (
    (re.compile(r"Syntax error: .*?input '<EOF>'"), lambda _: "it ends too early"),
    (re.compile(r"Syntax error: token recognition error at: '(.*)'$"), lambda m: f"{m[1]} can't be read"),
    (re.compile(r"Syntax error: .*?input '(.*?)'(?: expecting|$)"), lambda m: f"{m[1]} is not expected here"),
    (re.compile(r"reserved identifier: (\w+)"), lambda m: f"\"{m[1]}\" is a reserved word: write ['{m[1]}']"),
    (re.compile(r"expression of type '(.*?)' cannot be the operand"), lambda m: f"{_type(m[1])} has no fields"),
    (re.compile(r"found no matching overload for '(.*?)' applied to '\((.*)\)'"), lambda m: _overload(m[1], m[2])),
)
_FAILURES: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...]] = (
    (re.compile(r'Key not found in map : "(.*)"', re.DOTALL), lambda m: f'there is no field "{m[1]}"'),
    (re.compile(r"Key not found in map : (.*)"), lambda m: f"there is no key {m[1]}"),
    (re.compile(r"Index error: index=(-?\d+) size=(\d+)"), lambda m: f"there is no element {m[1]} in a list of {m[2]}"),
    (re.compile(r"No matching overloads found : ([^(]+)(?:\((.*)\))?"), lambda m: _overload(m[1], m[2] or "")),
    (re.compile(r"Applying SELECT to non-message type"), lambda _: "a field is read of what is no object"),
    (re.compile(r"Invalid container type: '(.*)'"), lambda m: f"{_type(m[1])} has no elements"),
    (re.compile(r'No value with name "(.*?)" found'), lambda m: f"{m[1]} has no value here"),
    (re.compile(r"divide by zero|modulus by zero"), lambda _: "it divides by zero"),
    (re.compile(r"integer overflow"), lambda _: "a whole number leaves the range of 64 bits"),
    (re.compile(r"String to Timestamp conversion failed"), lambda _: "a text is not a time as RFC 3339 has it"),
)


def refusal(expression: str, message: str, roots: Collection[str]) -> ExpressionInvalid:
    """The first complaint of the compiler."""
    found = _COMPLAINT.search(message)
    if "recursion" in message or found is None:
        what = _DEEP if "recursion" in message else _plain(message)
        return ExpressionInvalid(what, expression=expression)
    position = _offset(expression, line=int(found[1]), column=int(found[2]))
    if unknown := re.match(r"undeclared reference to '(.*?)'", found[3]):
        return _unknown(expression, unknown[1], position, roots)
    hint = "write the expression without ${ and }" if expression.startswith("${") else None
    return ExpressionInvalid(_worded(found[3], _SYNTAX), expression=expression, position=position, hint=hint)


def failure(expression: str, message: str, position: int | None = None) -> ExpressionInvalid:
    """Why an evaluation failed."""
    if "Iteration budget exceeded" in message:
        return ExpressionTooExpensive(
            "its macros go through more than 10,000 elements", expression=expression, hint="do it in a step"
        )
    return ExpressionInvalid(_worded(_plain(message), _FAILURES), expression=expression, position=position)


def missing_field(message: str) -> str | None:
    """The name of the field that was not there, if that was why."""
    found = re.search(r'Key not found in map : "(.*)"$', message, re.DOTALL)
    return found[1] if found else None


def reads_no_object(message: str) -> bool:
    return "Applying SELECT to non-message type" in message


def kind_of(value: object) -> str:
    """What a JSON value is, for a sentence."""
    kinds: dict[type, str] = {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list"}
    return kinds.get(type(value), "null")


def shown_path(path: Place) -> str:
    return ".".join(map(str, path))


def _worded(message: str, table: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...]) -> str:
    for pattern, words in table:
        if found := pattern.search(message):
            return words(found)
    return message


def _plain(message: str) -> str:
    """Without the library's status around it."""
    found = _STATUS.match(message)
    return found[1] if found else message


def _unknown(expression: str, name: str, position: int, roots: Collection[str]) -> ExpressionInvalid:
    if expression[position - 1 : position] == "(":
        what = f'there is no function "{name}" with such arguments'
        return ExpressionInvalid(what, expression=expression, position=max(1, position - len(name)))
    root = name.removeprefix(".").partition(".")[0]
    what = f'there is no variable "{root}"{did_you_mean(root, roots)}; there are {", ".join(roots) or "none"}'
    # The library points at the last dot of the name.
    return ExpressionInvalid(what, expression=expression, position=max(1, position - len(name.rpartition(".")[0])))


def _overload(function: str, types: str) -> str:
    operator = _OPERATORS.get(function, function)
    given = [_type(each) for each in types.split(", ") if each]
    if set(given) == {"int", "double"}:
        return f"{operator} does not mix whole numbers and doubles: write double(…) around the whole number"
    if operator in _LOGICAL and not given:
        return f"{operator} needs true or false"
    return f"{operator} does not work on {' and '.join(given) or 'these values'}"


def _type(name: str) -> str:
    return _TYPES.get(name, name.partition("(")[0])


def _offset(expression: str, *, line: int, column: int) -> int:
    before = expression.split("\n")[: max(0, line - 1)]
    return sum(len(each) + 1 for each in before) + max(1, column)
