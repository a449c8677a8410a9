"""Tools as users write them and as `tools` holds them, and how a workflow is bound to their versions.

A tool has the types of what it takes and gives. A step that uses one names its version from the day on which its
workflow is written, so that a newer tool changes nothing that runs already.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from accsd.errors import InvalidValue, Place, SchemaInvalid, WorkflowInvalid
from accsd.model.workflow import Name, Seconds, WorkflowDef, WorkflowStep, readable_backoff, storable_params
from accsd.values.labels import check_labels
from accsd.values.names import TOOL_SERVICE, check_service_name
from accsd.values.schemas import Schema, schema_of
from accsd.values.validation import Problem, did_you_mean

BUILTIN: Final = "accs."
_COMPOSED: Final = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"})
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
_OPEN: Final = "${"


def _tool_name(name: str) -> str:
    if not _NAME.fullmatch(name) or len(name) > 100:
        raise InvalidValue("must be family.verb: small letters, digits and _, such as media.probe")
    return name


def _usable(document: dict[str, Any]) -> dict[str, Any]:
    schema_of(document)
    return document


def _strict(written: Any) -> Any:
    """TL3: an input is an object, and what the schema does not name is refused unless the schema says otherwise."""
    if not isinstance(written, dict):
        return written
    schema = cast("dict[str, Any]", written)
    if schema.get("type", "object") != "object":
        raise InvalidValue("describes an object: type must be object")
    closing = "unevaluatedProperties" if _COMPOSED & schema.keys() else "additionalProperties"
    is_said = {"additionalProperties", "unevaluatedProperties"} & schema.keys()
    return {"type": "object", **schema} | ({} if is_said else {closing: False})


def _as_value_error(document: dict[str, Any]) -> dict[str, Any]:
    try:
        return _usable(document)
    except SchemaInvalid as error:
        raise InvalidValue(f"is no schema: {error}") from None


JsonSchema = Annotated[dict[str, Any], AfterValidator(_as_value_error)]
StrictSchema = Annotated[dict[str, Any], BeforeValidator(_strict), AfterValidator(_as_value_error)]


class ToolDefaults(BaseModel):
    """What a step that uses the tool has where it says nothing itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    timeout: Seconds = None
    max_attempts: int | None = Field(default=None, ge=1, le=1_000_000)
    backoff: Annotated[dict[str, Any] | list[Any] | None, BeforeValidator(readable_backoff)] = None
    requires: Annotated[dict[str, Any] | None, AfterValidator(lambda given: given and check_labels(given))] = None
    concurrency_key: Name | None = None
    concurrency_limit: int | None = Field(default=None, ge=1, le=1_000_000)


class HttpRequest(BaseModel):
    """What a tool of kind http sends. `url` is below a target of the settings ([tools.targets]): NAME/path, where
    {field} stands for a field of the input. A header may be ${secret('name')}."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]
    path: Annotated[str, Field(pattern=r"^(/[!-~]*)?$", max_length=2000)] = ""
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    headers: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,100}$")], str] = Field(default_factory=dict)


class ToolDef(BaseModel):
    """One tool. The database gives the version, so a new one has none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, AfterValidator(_tool_name)]
    version: int | None = Field(default=None, ge=1)
    kind: Literal["service", "http", "builtin"] = "service"
    service: str = ""
    description: str = Field(default="", max_length=4000)
    input_schema: StrictSchema = Field(default_factory=lambda: _strict({}))
    output_schema: JsonSchema | None = None
    request: HttpRequest | None = None
    defaults: ToolDefaults = Field(default_factory=ToolDefaults)
    examples: list[Annotated[dict[str, Any], AfterValidator(storable_params)]] = Field(default_factory=list)
    scopes: list[str] = Field(default_factory=list)
    is_active: bool = True

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Self:
        if (self.kind == "builtin") != self.name.startswith(BUILTIN):
            raise InvalidValue("has a name that begins with accs., which is for the tools that come with accsd")
        if (self.kind == "http") != (self.request is not None):
            raise InvalidValue("has a request where kind is http, and only there")
        if self.kind == "service":
            if not self.service:
                raise InvalidValue("service is missing: which one does it?")
            check_service_name(self.service)
        elif self.service not in ("", TOOL_SERVICE):
            raise InvalidValue(f"has a service, and kind {self.kind} is done by the control host")
        for number, example in enumerate(self.examples):
            if found := self.input.problems(example, unknown=open_places(example)):
                raise InvalidValue(f"examples.{number} is no input: {'; '.join(map(str, found[:5]))}")
        return self

    @property
    def input(self) -> Schema:
        return schema_of(self.input_schema)

    @property
    def runs_on(self) -> str:
        """The service that does it."""
        return self.service or TOOL_SERVICE

    @property
    def reference(self) -> str:
        return f"{self.name}@{self.version}"

    def document(self) -> dict[str, Any]:
        """What accs.put_tool is given."""
        written = self.model_dump(mode="json", exclude={"version", "is_active"})
        written["defaults"] = self.defaults.model_dump(mode="json", exclude_none=True)
        return written | {"service": self.runs_on}


def open_places(document: Any, at: Place = ()) -> Iterator[Place]:
    """The places of a document whose values are worked out later."""
    match document:
        case str() if _OPEN in document:
            yield at
        case dict():
            for name, value in cast("dict[str, Any]", document).items():
                yield from open_places(value, (*at, name))
        case list():
            for number, value in enumerate(cast("list[Any]", document)):
                yield from open_places(value, (*at, number))
        case _:
            pass


def tool_names(workflow: WorkflowDef) -> list[str]:
    """Without versions."""
    return list(dict.fromkeys(step.uses.partition("@")[0] for step in workflow.steps if step.uses))


def refuse_use(workflow: WorkflowDef, forbidden: Collection[str], *, by: str | None) -> None:
    """Raises WorkflowInvalid with each step that uses one of these tools."""
    who = by or "this login"
    complaints = [
        (("steps", number, "uses"), f'step "{step.key}": {who} may not use the tool {step.uses}')
        for number, step in enumerate(workflow.steps)
        if step.uses and step.uses.partition("@")[0] in forbidden
    ]
    if complaints:
        shown = "; ".join(sentence for _, sentence in complaints[:5])
        raise WorkflowInvalid(f'workflow "{workflow.name}": {shown}', complaints=complaints)


def bound(workflow: WorkflowDef, tools: Iterable[ToolDef]) -> WorkflowDef:
    """The workflow with the version of each tool written down, its service and its defaults; the literal parts of its
    inputs are checked. `tools` are all versions of those that it names. Raises WorkflowInvalid with all that is
    wrong."""
    known: dict[str, dict[int, ToolDef]] = {}
    for tool in tools:
        known.setdefault(tool.name, {})[tool.version or 0] = tool
    steps: list[WorkflowStep] = []
    complaints: list[tuple[Place, str]] = []
    for number, step in enumerate(workflow.steps):
        try:
            steps.append(step if step.uses is None else _bound(step, known))
        except _Unfit as unfit:
            place = ("steps", number)
            complaints += [((*place, *each.place), f'step "{step.key}": {each}') for each in unfit.problems]
    if complaints:
        shown = "; ".join(sentence for _, sentence in complaints[:5])
        raise WorkflowInvalid(f'workflow "{workflow.name}": {shown}', complaints=complaints)
    return workflow.model_copy(update={"steps": steps})


class _Unfit(Exception):
    def __init__(self, *problems: Problem) -> None:
        super().__init__()
        self.problems = problems


def _bound(step: WorkflowStep, known: Mapping[str, Mapping[int, ToolDef]]) -> WorkflowStep:
    tool = _chosen(step.uses or "", known)
    if step.service not in ("", tool.runs_on):
        what = f"is {step.service}, and the tool {tool.name} needs {tool.runs_on}: leave it out"
        raise _Unfit(Problem(("service",), what))
    given = {**step.default_params, **step.with_}
    if wrong := tool.input.problems(given, unknown=open_places(given)):
        raise _Unfit(*(Problem(("with", *each.place), each.what) for each in wrong))
    defaults = tool.defaults.model_dump(mode="json", exclude_none=True)
    unsaid = {name: value for name, value in defaults.items() if name not in step.model_fields_set}
    return step.model_copy(update={"uses": tool.reference, "service": tool.runs_on, **unsaid})


def _chosen(uses: str, known: Mapping[str, Mapping[int, ToolDef]]) -> ToolDef:
    name, _, version = uses.partition("@")
    versions = known.get(name, {})
    if not versions:
        raise _Unfit(Problem(("uses",), f"names the tool {name}, which is not there{did_you_mean(name, known)}"))
    if version:
        if (tool := versions.get(int(version))) is None:
            there = ", ".join(map(str, sorted(versions)))
            raise _Unfit(Problem(("uses",), f"names {uses}; of {name} there are the versions {there}"))
    else:
        tool = max(
            (each for each in versions.values() if each.is_active), key=lambda each: each.version or 0, default=None
        )
    if tool is None or not tool.is_active:
        raise _Unfit(Problem(("uses",), f"names {uses}, which is retired"))
    return tool
