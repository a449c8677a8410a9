"""How data flows through a workflow: the expressions of its steps, and the earlier steps whose results they read."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from accsd.errors import ExpressionInvalid, Place, WorkflowInvalid
from accsd.expressions import (
    Embedded,
    Findings,
    Names,
    Use,
    check_condition,
    check_document,
    check_expression,
    has_templates,
    pieces,
    problem_of,
)
from accsd.model import WorkflowDef, WorkflowStep
from accsd.model.tool import BUILTIN, ToolDef
from accsd.pipeline.secrets import without_secrets
from accsd.values.validation import Problem, did_you_mean

# What the expressions of a step may refer to, and what those of an item may (PL5).
STEP: Final = Names(values=("params", "steps", "job", "trigger"), moments=("now", "job.created_at"))
ITEM: Final = Names(values=(*STEP.values, "item", "index"), moments=STEP.moments)

MOST_STEPS: Final = 10_000  # of a workflow with expressions: for each step, what lies above it is worked out
DEFAULT_MAX_ITEMS: Final = 1000


def expression_of(written: str) -> str:
    """The expression of a field that is one: `x > 1` or `${x > 1}`. Raises ExpressionInvalid where it is a text with
    an expression in it."""
    match pieces(written):
        case (Embedded(expression=expression),):
            return expression
        case parts if any(isinstance(part, Embedded) for part in parts):
            what = "is a text with an expression in it; it must be one expression"
            raise ExpressionInvalid(what, expression=written)
        case _:
            return written


def flows(step: WorkflowStep) -> bool:
    """Whether something of the step is worked out when it is resolved."""
    return (
        isinstance(step.if_, str)
        or step.for_each is not None
        or isinstance(step.delay, str)
        or has_templates(step.with_)
    )


@dataclass(frozen=True)
class StepFlow:
    """The expressions of one step. `place` is where the step stands in its document; `above` are the numbers of the
    steps that it waits for, as bits."""

    flow: "Flow"
    step: WorkflowStep
    place: Place
    above: int

    @property
    def item_names(self) -> Names:
        return STEP if self.step.for_each is None else ITEM

    @property
    def tool(self) -> ToolDef | None:
        return None if self.step.uses is None else (self.flow.tools or {}).get(self.step.uses)

    @property
    def input(self) -> dict[str, Any]:
        """Its `with`, and null where a secret is."""
        return self._split[0]

    @property
    def secrets(self) -> Mapping[Place, str]:
        return self._split[1]

    @cached_property
    def _split(self) -> tuple[dict[str, Any], dict[Place, str]]:
        return without_secrets(self.step.with_)

    @cached_property
    def of_step(self) -> Findings:
        """Of what is evaluated once, before the step is multiplied."""
        step, found = self.step, Findings()
        if isinstance(step.if_, str):
            found += _condition(step.if_, STEP, (*self.place, "if"))
        if isinstance(step.for_each, str):
            found += _expression(step.for_each, STEP, (*self.place, "for_each"))
        elif isinstance(step.for_each, list | dict):
            found += check_document(step.for_each, STEP, at=(*self.place, "for_each"))
        return found

    @cached_property
    def of_items(self) -> Findings:
        """Of what is evaluated for each item, or for the step where it has none."""
        step, found = self.step, Findings()
        if isinstance(step.if_item, str):
            found += _condition(step.if_item, self.item_names, (*self.place, "if_item"))
        if has_templates(self.input):
            found += check_document(self.input, self.item_names, at=(*self.place, "with"))
        if isinstance(step.delay, str):
            found += check_document(step.delay, self.item_names, at=(*self.place, "delay"))
        return found

    @cached_property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """The steps whose results it reads, by the names that its expressions use."""
        references = (self.of_step + self.of_items).references
        named: Iterable[str] = dict.fromkeys(
            str(path[1]) for path in references if path[0] == "steps" and len(path) > 1
        )
        if ("steps",) in references:  # a name is computed
            named = self.flow.names
        return {name: keys for name in named if (keys := self.flow.named(name, self.above))}

    def check(self) -> Findings:
        found = self.of_step + self.of_items
        problems = [problem for use in found.uses for problem in self._misused(use)]
        if self.secrets and (self.step.uses or "").startswith(BUILTIN):
            place = next(iter(self.secrets))
            problems.append(
                Problem((*self.place, "with", *place), "is a secret, and a tool of accsd itself takes none")
            )
        return found + Findings(tuple(problems) + tuple(self._too_many()), tuple(self._surprises()))

    def _misused(self, use: Use) -> Iterator[Problem]:
        """PL4: a value that can't be there when the step is resolved."""
        match use.path:
            case ("steps", str() as name, *_) if not self.flow.named(name, self.above):
                if keys := self.flow.named(name):
                    what = f'refers to steps.{name}, but the step does not depend on "{keys[0]}"; add it to depends_on'
                else:
                    what = f'there is no step "{name}"{did_you_mean(name, self.flow.names)}'
            case ("params", str() as name, *_) if self.flow.lacks_param(name):
                what = f"there is no params.{name}{did_you_mean(name, self.flow.params or ())}"
            case _:
                return
        yield problem_of(ExpressionInvalid(what, expression=use.expression), use.place)

    def _too_many(self) -> Iterator[Problem]:
        most, items = self.step.max_items or DEFAULT_MAX_ITEMS, self.step.for_each
        count = items if isinstance(items, int) else len(items) if isinstance(items, list | dict) else 0
        if count > most:
            yield Problem((*self.place, "for_each"), f"has {count} items; max_items is {most}")
        if isinstance(items, int) and items < 0:
            yield Problem((*self.place, "for_each"), "must not be below 0")

    def _surprises(self) -> Iterator[Problem]:
        paths = [path[0] for path in self.of_items.references]
        if self.step.for_each is not None and "item" not in paths and "index" not in paths:
            yield Problem(
                (*self.place, "for_each"), "no expression of the step refers to item or index: all tasks do the same"
            )


class Flow:
    """The flows of a workflow's steps, each read when it is asked for."""

    def __init__(
        self, workflow: WorkflowDef, *, steps_at: str = "steps", tools: Iterable[ToolDef] | None = None
    ) -> None:
        self.workflow: WorkflowDef = workflow
        # None: nobody has asked the database for them, and inputs are not checked
        self.tools: dict[str, ToolDef] | None = None if tools is None else {tool.reference: tool for tool in tools}
        self._steps_at = steps_at
        self._numbers: dict[str, int] = {step.key: n for n, step in enumerate(workflow.steps)}
        self._flows: dict[str, StepFlow] = {}

    @cached_property
    def has_expressions(self) -> bool:
        return any(map(flows, self.workflow.steps))

    def step(self, key: str) -> StepFlow:
        """Raises WorkflowInvalid where there is no such step, which can be after the workflow was written anew."""
        if key not in self._flows:
            if key not in self._numbers:
                raise WorkflowInvalid(f'the workflow has no step "{key}" any more', step=key)
            number = self._numbers[key]
            place = (self._steps_at, number)
            self._flows[key] = StepFlow(self, self.workflow.steps[number], place, self._above[number])
        return self._flows[key]

    def tool_of(self, key: str) -> str | None:
        """The name of the tool that a step uses."""
        number = self._numbers.get(key)
        uses = None if number is None else self.workflow.steps[number].uses
        return None if uses is None else uses.partition("@")[0]

    def check(self) -> Findings:
        """Everything that is wrong or surprising with the expressions of the workflow."""
        if not self.has_expressions:
            return Findings()
        if len(self._numbers) > MOST_STEPS:
            what = f"a workflow with expressions has at most {MOST_STEPS} steps, not {len(self._numbers)}"
            return Findings((Problem((self._steps_at,), what),))
        return sum((self.step(each.key).check() for each in self.workflow.steps if flows(each)), Findings())

    @cached_property
    def _above(self) -> list[int]:
        """For each step, by number, the steps that it waits for at any distance, as bits."""
        above = [0] * len(self._numbers)
        if len(self._numbers) > MOST_STEPS:
            return above
        for key in self.workflow.plan().order:
            number = self._numbers[key]
            for needed in self.workflow.steps[number].depends_on:
                above[number] |= above[self._numbers[needed]] | 1 << self._numbers[needed]
        return above

    @property
    def names(self) -> Iterable[str]:
        """What expressions may call the results of steps: save_as or the key, and a key with _ for each - and . in it,
        where no other step has that name (PL2)."""
        return self._by_name

    def named(self, name: str, among: int = -1) -> tuple[str, ...]:
        """The keys of the steps of that name, in the order of the document; of those numbers alone."""
        return tuple(self.workflow.steps[n].key for n in self._by_name.get(name, ()) if among >> n & 1)

    @cached_property
    def _by_name(self) -> Mapping[str, list[int]]:
        names: dict[str, list[int]] = {}
        for number, step in enumerate(self.workflow.steps):
            names.setdefault(step.alias, []).append(number)
        plain: dict[str, list[str]] = {}
        for name in names:
            plain.setdefault(name.replace("-", "_").replace(".", "_"), []).append(name)
        return names | {short: names[long[0]] for short, long in plain.items() if short not in names and len(long) == 1}

    @cached_property
    def params(self) -> frozenset[str] | None:
        """The names of all params that can be there; None: any can."""
        schema = self.workflow.options_schema
        if schema is None or schema.get("additionalProperties") is not False or "patternProperties" in schema:
            return None
        return frozenset(schema.get("properties") or {}) | frozenset(self.workflow.params)

    def lacks_param(self, name: str) -> bool:
        return self.params is not None and name not in self.params


def _condition(written: str, names: Names, at: Place) -> Findings:
    try:
        return check_condition(expression_of(written), names, at=at)
    except ExpressionInvalid as error:
        return Findings((problem_of(error, at),))


def _expression(written: str, names: Names, at: Place) -> Findings:
    try:
        return check_expression(expression_of(written), names, at=at)
    except ExpressionInvalid as error:
        return Findings((problem_of(error, at),))


def check_workflow(workflow: WorkflowDef, *, steps_at: str = "steps") -> list[tuple[Place, str]]:
    """Checks the options_schema and the expressions of a workflow before it is written; returns what may surprise its
    author, with its place. `steps_at` is where its document has the steps. Raises WorkflowInvalid with all that is
    wrong."""
    workflow.schema_of_options()
    found = Flow(workflow, steps_at=steps_at).check()
    if found.problems:
        told = [(problem.place, _sentence(workflow, problem)) for problem in found.problems]
        shown = "; ".join(sentence for _, sentence in told[:5])
        raise WorkflowInvalid(f'workflow "{workflow.name}": {shown}', complaints=told)
    return [(problem.place, _sentence(workflow, problem)) for problem in found.warnings]


def _sentence(workflow: WorkflowDef, problem: Problem) -> str:
    match problem.place:
        case (_, int() as number, *within):
            where = ".".join(map(str, within))
            return f'step "{workflow.steps[number].key}": {where}: {problem.what}'
        case _:
            return problem.what
