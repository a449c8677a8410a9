"""Expressions in CEL: conditions, and `${…}` in the texts of documents. Called by the control host alone: nothing is
evaluated on a node.

    EVENT = Names(values=("event",), moments=("event.at",))
    context = Context({"event": {"topic": "shop.order", "payload": {"n": 3}, "at": now}}, EVENT)
    evaluate_condition("event.payload.n > 2", context)
    render({"count": "${event.payload.n}", "title": "${event.payload.n} orders"}, context)

Which names there are is the caller's choice. The CEL library is imported with the first expression. Where it is
missing, an expression raises a ConfigError; documents without expressions are rendered and checked all the same.
"""

from accsd.expressions.checks import Findings, Use, check_condition, check_document, check_expression, problem_of
from accsd.expressions.context import Budget, Context
from accsd.expressions.evaluation import evaluate, evaluate_condition
from accsd.expressions.program import Names
from accsd.expressions.scanner import Embedded, pieces
from accsd.expressions.templates import has_templates, render

__all__ = [
    "Budget",
    "Context",
    "Embedded",
    "Findings",
    "Names",
    "Use",
    "check_condition",
    "check_document",
    "check_expression",
    "evaluate",
    "evaluate_condition",
    "has_templates",
    "pieces",
    "problem_of",
    "render",
]
