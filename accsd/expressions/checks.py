"""What can be said of expressions before there are values: whether they can be read, what they refer to, and what may
surprise their author. Called when a document is written.
"""

from dataclasses import dataclass
from typing import Any, Final

from accsd.errors import ExpressionInvalid, InvalidValue, Place
from accsd.expressions.program import Names, Program, compile_expression
from accsd.expressions.scanner import Embedded, pieces
from accsd.expressions.templates import MAX_EXPRESSIONS, check_shape, templated
from accsd.values.validation import Problem

_MAY_BE_BOOL: Final = ("BOOL", "DYN")


@dataclass(frozen=True, slots=True)
class Use:
    """An expression that stands at `place` refers to the value at `path`."""

    place: Place
    expression: str
    path: Place


@dataclass(frozen=True)
class Findings:
    """What a check found. Without problems, what was checked may be written."""

    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    uses: tuple[Use, ...] = ()

    @property
    def references(self) -> tuple[Place, ...]:
        """The paths of the values that are referred to, each once, in the order in which they are written."""
        return tuple(dict.fromkeys(use.path for use in self.uses))

    def __add__(self, other: "Findings") -> "Findings":
        return Findings(self.problems + other.problems, self.warnings + other.warnings, self.uses + other.uses)


def check_expression(expression: str, names: Names, *, at: Place = ()) -> Findings:
    return _checked([(at, expression)], names)


def check_condition(expression: str, names: Names, *, at: Place = ()) -> Findings:
    """As check_expression; and its type, as far as it is known, must be true or false."""
    findings = check_expression(expression, names, at=at)
    if findings.problems or compile_expression(expression, names).result_type in _MAY_BE_BOOL:
        return findings
    error = ExpressionInvalid("a condition must give true or false", expression=expression)
    return Findings((problem_of(error, at),), findings.warnings, findings.uses)


def check_document(document: Any, names: Names, *, at: Place = ()) -> Findings:
    """Every expression in the texts of a document. `at` is where the document stands."""
    try:
        check_shape(document)
    except InvalidValue as error:
        return Findings((Problem(at, error.message),))
    found: list[tuple[Place, str]] = []
    problems: list[Problem] = []
    for place, text in templated(document, at):
        try:
            found += [(place, piece.expression) for piece in pieces(text) if isinstance(piece, Embedded)]
        except ExpressionInvalid as error:
            problems.append(problem_of(error, place))
    if len(found) > MAX_EXPRESSIONS:
        problems.append(Problem(at, f"has {len(found)} expressions; the limit is {MAX_EXPRESSIONS}"))
        found = []
    checked = _checked(found, names)
    return Findings(tuple(problems)) + checked


def _checked(expressions: list[tuple[Place, str]], names: Names) -> Findings:
    problems: list[Problem] = []
    programs: list[tuple[Place, Program]] = []
    for place, expression in expressions:
        try:
            programs.append((place, compile_expression(expression, names)))
        except ExpressionInvalid as error:
            problems.append(problem_of(error, place))
    return Findings(
        tuple(problems),
        tuple(
            Problem(place, f'expression "{program.expression}": {warning}')
            for place, program in programs
            for warning in program.warnings
        ),
        tuple(
            Use(place, program.expression, reference.path)
            for place, program in programs
            for reference in program.references
        ),
    )


def problem_of(error: ExpressionInvalid, place: Place) -> Problem:
    return Problem(place, error.message if error.hint is None else f"{error.message}; {error.hint}")
