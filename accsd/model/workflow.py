"""Workflows as users write them and as `workflows` holds them.

Whatever is wrong with one is said as WorkflowInvalid, in a sentence that names the workflow and the step,
and before any row of a job exists. SQL refuses the same things for those who write without this module.
"""

import re
import unicodedata
from datetime import datetime
from typing import Annotated, Any, Self, cast
from uuid import UUID

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from accsd.errors import InvalidValue, SchemaInvalid, WorkflowInvalid
from accsd.model.files import MOST_FILES, WorkflowFile, check_files, folders_of
from accsd.planning.backoff import parse_backoff
from accsd.planning.dag import Plan, plan
from accsd.values.json import sanitise
from accsd.values.labels import check_labels
from accsd.values.names import TOOL_SERVICE, check_outgoing_event, check_service_name, check_step_key
from accsd.values.schemas import Schema, schema_of
from accsd.values.units import parse_duration
from accsd.values.validation import Problem, problems

MAX_STEPS = 100_000
MAX_PARAMS_BYTES = 64 * 1024
MAX_ITEMS = 10_000
LONGEST_DELAY = 31_622_400.0  # seconds: a leap year
LONGEST_CACHE = 31_536_000.0  # seconds: 365 days
_USES = re.compile(r"[a-z][a-z0-9_.]{0,99}(@[1-9][0-9]{0,8})?")
_ALIAS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHARE = re.compile(r"([0-9]|[1-9][0-9]|100)%")
_OF_ITEMS = frozenset({"if_item", "max_parallel", "max_items", "tolerate"})
_PROBLEMS_SHOWN = 5
_PROBLEMS_TOLD = 20  # a file may have 100,000 wrong steps, and to put each in words takes longer than anybody waits


def storable_params(params: dict[str, Any]) -> dict[str, Any]:
    if not params:
        return params
    # Tolerant of size, so that what it changed was changed for jsonb's sake.
    if sanitise(params, max_bytes=16 * MAX_PARAMS_BYTES) != params:
        raise InvalidValue("holds a value that PostgreSQL cannot keep as JSON, such as NaN, a date or \\u0000")
    if len(orjson.dumps(params)) > MAX_PARAMS_BYTES:
        raise InvalidValue(f"is larger than {MAX_PARAMS_BYTES // 1024} KiB; pass large data as an artifact")
    return params


def readable_backoff(spec: Any) -> Any:
    parse_backoff(spec)
    return spec


def _in_seconds(written: Any) -> Any:
    """`10m` as everywhere else; the database holds a number."""
    if written is None or (isinstance(written, int | float) and not isinstance(written, bool)):
        return written
    try:
        return parse_duration(written).total_seconds()
    except InvalidValue:
        raise InvalidValue("must be a number of seconds, or text such as 90s, 10m or 1h30m") from None


def _delay(written: Any) -> Any:
    """Seconds, or an expression that gives them: that is read when the step is resolved."""
    if isinstance(written, str) and "${" in written:
        return written
    seconds = _in_seconds(written)
    if seconds is not None and not 0 <= seconds <= LONGEST_DELAY:
        raise InvalidValue("must be between 0 and a year")
    return seconds


def _not_too_long(seconds: float) -> float:
    if not 1 <= seconds <= LONGEST_CACHE:
        raise InvalidValue("must be at least 1 second and at most 365 days")
    return seconds


def _lasting(written: Any) -> Any:
    """`7d` is `{for: 7d}`."""
    return {"for": written} if isinstance(written, str | int | float) else written


def _share(written: Any) -> Any:
    if isinstance(written, str) and not _SHARE.fullmatch(written):
        raise InvalidValue("must be a number of items, or a share of them such as 10%")
    return written


def _alias(name: str) -> str:
    if not _ALIAS.fullmatch(name):
        raise InvalidValue('must have letters, digits and "_" only, and not begin with a digit')
    return name


def _uses(name: str) -> str:
    if not _USES.fullmatch(name):
        raise InvalidValue("must be a tool, such as media.probe or media.probe@2")
    return name


def _service(name: str) -> str:
    return name if name == TOOL_SERVICE else check_service_name(name)


def _one_line(title: str) -> str:
    if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in title):
        raise InvalidValue("must be one line of text")
    return title


StepKey = Annotated[str, AfterValidator(check_step_key)]
ServiceName = Annotated[str, AfterValidator(_service)]
EventName = Annotated[str, AfterValidator(check_outgoing_event)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Seconds = Annotated[Annotated[float, Field(gt=0, allow_inf_nan=False)] | None, BeforeValidator(_in_seconds)]


class StepCache(BaseModel):
    """For how long the result of a step is used again for the same input. Another `salt` is another input: it says what
    accsd can't see, such as a new model behind a service."""

    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True)

    for_: Annotated[float, BeforeValidator(_in_seconds), AfterValidator(_not_too_long)] = Field(alias="for")
    salt: Annotated[str, Field(max_length=200)] | None = None


class WorkflowStep(BaseModel):
    """One step: which service does it, after which other steps, with which parameters, and how stubbornly."""

    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True)

    key: StepKey
    service: ServiceName = ""  # empty only where the tool says it, until the workflow is bound (model/tool.py)
    depends_on: list[str] = Field(default_factory=list)
    default_params: Annotated[dict[str, Any], AfterValidator(storable_params)] = Field(default_factory=dict)
    max_attempts: int = Field(default=3, ge=1, le=1_000_000)
    backoff: Annotated[dict[str, Any] | list[Any] | None, BeforeValidator(readable_backoff)] = None
    timeout: Seconds = None
    requires: Annotated[dict[str, Any], AfterValidator(check_labels)] = Field(default_factory=dict)
    node: Name | None = None
    concurrency_key: Name | None = None
    concurrency_limit: int | None = Field(default=None, ge=1, le=1_000_000)
    uses: Annotated[str, AfterValidator(_uses)] | None = None  # a tool, and its version from the day it is written
    # By these, data flows (docs/pipelines.md). Their expressions are checked by accsd/pipeline.
    with_: Annotated[dict[str, Any], AfterValidator(storable_params)] = Field(default_factory=dict, alias="with")
    save_as: Annotated[str, Field(max_length=100), AfterValidator(_alias)] | None = None
    if_: str | bool | None = Field(default=None, alias="if")
    delay: Annotated[float | str | None, BeforeValidator(_delay)] = None
    for_each: str | int | list[Any] | dict[str, Any] | None = None
    if_item: str | bool | None = None
    max_parallel: int | None = Field(default=None, ge=1, le=1_000_000)
    max_items: int | None = Field(default=None, ge=1, le=MAX_ITEMS)
    tolerate: Annotated[int | str | None, AfterValidator(_share)] = None
    files: list[str] | None = Field(default=None, max_length=MOST_FILES)  # which of the workflow's; None: all of them
    cache: Annotated[StepCache | None, BeforeValidator(_lasting)] = None

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Self:
        if not self.service and self.uses is None:
            raise InvalidValue("service is missing")
        if self.service == TOOL_SERVICE and self.uses is None:
            raise InvalidValue(f'"{TOOL_SERVICE}" is reserved for tools: say which one (uses)')
        if self.concurrency_limit is not None and self.concurrency_key is None:
            raise InvalidValue("has a concurrency_limit but no concurrency_key that it could limit")
        if self.concurrency_key is not None and self.concurrency_key.startswith("map/"):
            raise InvalidValue('has a concurrency_key that begins with "map/", which is reserved')
        if self.max_parallel is not None and self.concurrency_key is not None:
            raise InvalidValue("has a max_parallel and a concurrency_key, which exclude each other")
        if self.cache is not None and self.delay is not None:
            raise InvalidValue("has a cache and a delay, which exclude each other")
        if self.cache is not None and self.uses is not None and self.uses.startswith("accs."):
            raise InvalidValue("has a cache, but the result of a tool of accsd itself is not cached")
        if self.for_each is None and (lone := sorted(_OF_ITEMS & self.model_fields_set)):
            raise InvalidValue(f"has {', '.join(lone)} but no for_each")
        return self

    @property
    def alias(self) -> str:
        """What expressions call its results: steps.<alias>."""
        return self.save_as or self.key


class WorkflowDef(BaseModel):
    """A named, versioned graph of steps. The database gives id and timestamps, so a new one has none.

    `notify` are the outgoing events of its jobs that others are told beside those that they want of all workflows.
    `params` is what expressions find under that name where a job's options say nothing; `options_schema` is the JSON
    Schema of a job's options; `files` are laid into its tasks; `title` is for people.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: UUID | None = None
    name: Name
    version: int = Field(default=1, ge=1)
    is_active: bool = True
    title: Annotated[Name, AfterValidator(_one_line)] | None = None
    notify: list[EventName] = Field(default_factory=list)
    params: Annotated[dict[str, Any], AfterValidator(storable_params)] = Field(default_factory=dict)
    options_schema: dict[str, Any] | None = None
    files: Annotated[list[WorkflowFile], Field(max_length=MOST_FILES), AfterValidator(check_files)] = Field(
        default_factory=list
    )
    steps: list[WorkflowStep] = Field(max_length=MAX_STEPS)
    created_at: datetime | None = None
    updated_at: datetime | None = None
    created_by: str | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _sound_or_refused(cls, document: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            workflow = handler(document)
        except ValidationError as error:
            found, count = problems(error, cls, most=_PROBLEMS_TOLD), error.error_count()
        else:
            workflow.plan()
            workflow._check_chosen_files()
            return workflow
        # Not within the except: Pydantic's error would be the context of ours. The garbage collector can't look into
        # it, and who keeps our error in a variable would keep its document and all frames on the way for ever.
        raise _refusal(document, found, count)

    def plan(self) -> Plan:
        """The order in which the steps can run, and who waits for whom."""
        return plan(((step.key, step.depends_on) for step in self.steps), workflow=self.name)

    def schema_of_options(self) -> Schema | None:
        """What the options of its jobs are checked against. WorkflowInvalid: options_schema is no schema."""
        if self.options_schema is None:
            return None
        try:
            return schema_of(self.options_schema)
        except SchemaInvalid as error:
            complaints = [(("options_schema", *place), f"options_schema.{said}") for place, said in error.complaints]
            told = "; ".join(said for _, said in complaints[:_PROBLEMS_SHOWN]) or f"options_schema: {error}"
            raise WorkflowInvalid(f'workflow "{self.name}": {told}', complaints=complaints) from None

    def _check_chosen_files(self) -> None:
        names = {file.name for file in self.files}
        folders = folders_of(names)
        for index, step in enumerate(self.steps):
            for number, wanted in enumerate(step.files or ()):
                if wanted not in names and wanted.rstrip("/") not in folders:
                    said = f'step "{step.key}": files: the workflow has neither a file nor a folder "{wanted[:200]}"'
                    place = ("steps", index, "files", number)
                    raise WorkflowInvalid(f'workflow "{self.name}": {said}', step=step.key, complaints=[(place, said)])

    def files_document(self) -> list[dict[str, Any]]:
        """What goes into the column `files`. WorkflowInvalid: a file is not in the store yet."""
        for file in self.files:
            if file.source is not None or file.size is None:
                raise WorkflowInvalid(
                    f'workflow "{self.name}": file "{file.name}" has no key, sha256 and size of an object in the store',
                    hint="`accsd workflows apply` puts the files that a workflow names into the store",
                )
        return [file.model_dump(exclude={"source"}) for file in self.files]

    def steps_document(self) -> list[dict[str, Any]]:
        """What goes into the column `steps`: as it was written, without the defaults that nobody wrote."""
        return [
            {"depends_on": [], "default_params": {}} | step.model_dump(mode="json", exclude_unset=True)
            for step in self.steps
        ]


def _refusal(document: Any, found: list[Problem], count: int) -> WorkflowInvalid:
    """`found` are the first of so many problems."""
    sentences = [_sentence(document, problem) for problem in found]
    shown = "; ".join(sentences[:_PROBLEMS_SHOWN])
    if count > _PROBLEMS_SHOWN:
        shown += f"; and {count - _PROBLEMS_SHOWN} more"
    complaints = [(problem.place, sentence) for problem, sentence in zip(found, sentences, strict=True)]
    if count > len(found):
        complaints.append(((), f"and {count - len(found)} more"))
    return WorkflowInvalid(f"{_title(document)}: {shown}", step=_step_key(document, found[0]), complaints=complaints)


def _title(document: Any) -> str:
    name = _entry(document, "name")
    return f'workflow "{name[:200]}"' if isinstance(name, str) and name else "workflow"


def _sentence(document: Any, problem: Problem) -> str:
    match problem.place:
        case ("steps", int() as index, *within):
            return f"{_step_title(document, index)}: {Problem(tuple(within), problem.what)}"
        case _:
            return str(problem)


def _step_title(document: Any, index: int) -> str:
    key = _entry(_entry(_entry(document, "steps"), index), "key")
    return f'step "{key[:100]}"' if isinstance(key, str) and key else f"step number {index + 1}"


def _step_key(document: Any, problem: Problem) -> str | None:
    match problem.place:
        case ("steps", int() as index, *_):
            key = _entry(_entry(_entry(document, "steps"), index), "key")
            return key if isinstance(key, str) else None
        case _:
            return None


def _entry(container: Any, place: str | int) -> Any:
    """An entry of a document of which nothing is known yet; None where it has no such entry."""
    if isinstance(container, dict) and isinstance(place, str):
        return cast("dict[str, Any]", container).get(place)
    if isinstance(container, list) and isinstance(place, int) and place < len(cast("list[Any]", container)):
        return cast("list[Any]", container)[place]
    return None
