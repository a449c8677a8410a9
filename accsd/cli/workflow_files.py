"""Workflow files, YAML, JSON or TOML: read and checked without a database, with the line on which one is wrong."""

import gc
import os
import re
import stat
import sys
import tomllib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import orjson
import yaml

from accsd.cli.yaml_values import Double, YamlRefused, documents
from accsd.errors import InvalidValue, NotFound, Place, WorkflowInvalid
from accsd.model import WorkflowDef
from accsd.model.files import LARGEST_FILES, WorkflowFile
from accsd.values.units import shown_size
from accsd.values.validation import did_you_mean

SUFFIXES: Final = (".yaml", ".yml", ".json", ".toml")
STDIN: Final = "-"
_UNKNOWN_FIELD: Final = re.compile(r'unknown field "(.*?)"')
_DOUBLES_SHOWN: Final = 20
_WHEN: Final = frozenset({"cron", "rrule", "every", "at", "event", "condition"})  # says that a document is a schedule


@dataclass(frozen=True, slots=True)
class Document:
    """One workflow of a file as it was written: document number `number` of `text`, which knows the lines."""

    file: str
    value: Any
    doubles: Sequence[Double]
    text: bytes
    number: int = 0

    @property
    def is_schedule(self) -> bool:
        """Whether the document is one schedule by itself (cli/schedules/files.py reads it)."""
        return isinstance(self.value, dict) and not self._has_steps and bool(_WHEN & self.value.keys())

    @property
    def has_schedules(self) -> bool:
        return self.is_schedule or (isinstance(self.value, dict) and "schedules" in self.value)

    @property
    def is_workflow(self) -> bool:
        """Whether it is to be one; a document that has schedules only is none."""
        return not self.has_schedules or self._has_steps

    @property
    def _has_steps(self) -> bool:
        return "steps" in self.value or "pipeline" in self.value

    def checked(self) -> WorkflowDef:
        """The workflow, without the schedules that stand beside it. Raises WorkflowInvalid, with file and line."""
        from accsd.pipeline.document import as_workflow

        self.refuse_doubles()
        try:
            with _without_collecting():
                workflow = WorkflowDef.model_validate(as_workflow(_without_schedules(self.value)))
                self._flow_warnings(workflow)
                return workflow
        except WorkflowInvalid as error:
            raise self.refused(error) from None

    def refused(self, error: WorkflowInvalid) -> WorkflowInvalid:
        """The same error with file and line: also of what is found later, such as a tool that is not there."""
        complaints = error.complaints or [(self._place_of(error.step), error.message)]
        return self._located(complaints, hint=error.hint or self._suggestion(error.step))

    def with_sources(self, workflow: WorkflowDef) -> WorkflowDef:
        """The workflow with the places of the files that it names beside its own file. Raises WorkflowInvalid."""
        if not any(file.source for file in workflow.files):
            return workflow
        found: list[WorkflowFile] = []
        complaints: list[tuple[Place, str]] = []
        total = 0
        for number, file in enumerate(workflow.files):
            path = None if file.source is None else Path(self.file).parent.absolute() / file.source
            try:
                size = (file.size or 0) if path is None else _size(path)
            except (OSError, ValueError) as error:
                said = getattr(error, "strerror", None) or str(error)
                complaints.append((("files", number, "source"), f'file "{file.name}": source {file.source}: {said}'))
                continue
            total += size
            found.append(file if path is None else file.model_copy(update={"source": str(path)}))
        if total > LARGEST_FILES:
            complaints.append(
                (("files",), f"files: they have {shown_size(total)}, more than {shown_size(LARGEST_FILES)}")
            )
        if complaints:
            raise self._located(complaints, hint="a source is a path relative to the workflow file")
        return workflow.model_copy(update={"files": found})

    def warnings(self, workflow: WorkflowDef) -> list[str]:
        """What may surprise the author of a workflow that was found to be sound, with file and line."""
        return self.located(self._flow_warnings(workflow))

    def _flow_warnings(self, workflow: WorkflowDef) -> list[tuple[Place, str]]:
        from accsd.pipeline.flow import check_workflow

        return check_workflow(workflow, steps_at=self._steps_at)

    @property
    def _steps_at(self) -> str:
        return "pipeline" if isinstance(self.value, dict) and "pipeline" in self.value else "steps"

    def _located(self, complaints: Sequence[tuple[Place, str]], hint: str | None = None) -> WorkflowInvalid:
        return WorkflowInvalid("\n".join(self.located(complaints)), hint=hint)

    def located(self, complaints: Sequence[tuple[Place, str]]) -> list[str]:
        """Each complaint with file and line. Without one the file is not read again."""
        if not complaints:
            return []
        places = [_meant(self._written_at(place), sentence) for place, sentence in complaints]
        lines = self._lines({place[:depth] for place in places for depth in range(len(place) + 1)})
        return [
            f"{self.file}{_line(place, lines)}: {sentence}"
            for place, (_, sentence) in zip(places, complaints, strict=True)
        ]

    def _written_at(self, place: Place) -> Place:
        """Where the file has it: the steps of a pipeline stand under that name, and their keys are called id."""
        if place[:1] != ("steps",) or self._steps_at == "steps":
            return place
        return (self._steps_at, *("id" if part == "key" else part for part in place[1:]))

    def _lines(self, places: set[Place]) -> dict[Place, int]:
        """JSON is YAML but for a few corners, such as tabs; there, and in TOML, the lines stay unknown."""
        if self.file.endswith(".toml"):
            return {}
        try:
            return next(
                found.lines for number, found in enumerate(documents(self.text, places)) if number == self.number
            )
        except (YamlRefused, StopIteration):
            return {}

    def _place_of(self, step: str | None) -> Place:
        """The last step of that key: of two that share one, the second is the mistake."""
        keys = [entry.get("key", entry.get("id")) for entry in self._steps()]
        return (self._steps_at, len(keys) - 1 - keys[::-1].index(step)) if step in keys else ()

    def _suggestion(self, step: str | None) -> str | None:
        """The key that was probably meant by a dependency that does not exist."""
        keys = {key for entry in self._steps() if isinstance(key := entry.get("key"), str)}
        wanted = next((entry.get("depends_on") for entry in self._steps() if entry.get("key") == step), None)
        named = cast("list[Any]", wanted) if isinstance(wanted, list) else []
        unknown = next((name for name in named if isinstance(name, str) and name not in keys), None)
        meant = "" if unknown is None else did_you_mean(unknown, keys)
        return f'depends_on: "{unknown}"{meant}' if meant else None

    def _steps(self) -> list[dict[str, Any]]:
        steps: Any = cast("dict[str, Any]", self.value).get(self._steps_at) if isinstance(self.value, dict) else None
        entries = cast("list[Any]", steps) if isinstance(steps, list) else []
        return [cast("dict[str, Any]", entry) if isinstance(entry, dict) else {} for entry in entries]

    def refuse_doubles(self) -> None:
        """YAML and JSON take the last of two equal keys; a person who wrote both meant something else."""
        if self.doubles:
            raise WorkflowInvalid(
                "\n".join(
                    f"{self.file}:{double.line}: {double.key} is written twice"
                    for double in self.doubles[:_DOUBLES_SHOWN]
                )
            )


def _size(path: Path) -> int:
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise InvalidValue("it is no file")
    if not os.access(path, os.R_OK):
        raise InvalidValue("you may not read it")
    return facts.st_size


def _without_schedules(value: Any) -> Any:
    if not isinstance(value, dict) or "schedules" not in value:
        return value  # pyright: ignore[reportUnknownVariableType]
    return {key: part for key, part in cast("dict[str, Any]", value).items() if key != "schedules"}


@contextmanager
def _without_collecting() -> Generator[None]:
    """A large document is a million values and no garbage; looking for some took four fifths of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _meant(place: Place, sentence: str) -> Place:
    """An unknown field is on a line of its own."""
    unknown = _UNKNOWN_FIELD.search(sentence)
    return (*place, *(unknown.groups() if unknown else ()))


def _line(place: Place, lines: dict[Place, int]) -> str:
    """`:12`, of the deepest part of the place that the file has."""
    known = (lines[place[:depth]] for depth in range(len(place), -1, -1) if place[:depth] in lines)
    return next((f":{line}" for line in known), "")


def read(names: Iterable[str]) -> list[Document]:
    """The workflows of these files and folders; `-` is stdin. A folder gives its YAML, JSON and TOML files, by name."""
    return [document for file in _files(names) for document in _documents(file, _text(file))]


def canonical_yaml(workflow: WorkflowDef) -> str:
    """What `workflows show -o yaml` prints and `workflows diff` compares: only what differs from the defaults."""
    document = {
        "name": workflow.name,
        "version": workflow.version,
        **({"title": workflow.title} if workflow.title is not None else {}),
        **({"notify": sorted(set(workflow.notify))} if workflow.notify else {}),
        **({"params": workflow.params} if workflow.params else {}),
        **({"options_schema": workflow.options_schema} if workflow.options_schema is not None else {}),
        **(
            {"files": [file.meaning for file in sorted(workflow.files, key=lambda each: each.name)]}
            if workflow.files
            else {}
        ),
        "steps": [_plain(step.model_dump(mode="json", exclude_defaults=True)) for step in workflow.steps],
    }
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


def _plain(step: dict[str, Any]) -> dict[str, Any]:
    """Writes 600 instead of 600.0, as people do."""
    timeout = step.get("timeout")
    return step | {"timeout": int(timeout)} if isinstance(timeout, float) and timeout.is_integer() else step


def _files(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        path = Path(name)
        if name == STDIN or os.path.isfile(path):  # which calls a name no file that is too long for one
            yield name
        elif os.path.isdir(path):
            found = sorted(str(entry) for entry in path.iterdir() if entry.suffix in SUFFIXES and entry.is_file())
            if not found:
                raise NotFound(f"there is no workflow file in {name}", hint=f"one ends in {', '.join(SUFFIXES)}")
            yield from found
        else:
            raise NotFound(
                f"there is no file {name}", hint="name a YAML, JSON or TOML file, a folder of them, or - for stdin"
            )


def _text(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    except OSError as error:
        raise InvalidValue(f"{file} can't be read: {error.strerror}") from error


def _documents(file: str, text: bytes) -> list[Document]:
    name = "stdin" if file == STDIN else file
    if file.endswith(".toml"):
        return [Document(name, _toml(name, text), (), text)]
    if file.endswith(".json") or text.lstrip().startswith(b"{"):
        try:
            return [Document(name, orjson.loads(text), _doubles_of(text), text)]
        except orjson.JSONDecodeError as error:
            if file.endswith(".json"):
                raise WorkflowInvalid(f"{name}:{error.lineno}: {error.msg}") from None
    try:
        with _without_collecting():
            found = [Document(name, each.value, each.doubles, text, n) for n, each in enumerate(documents(text))]
    except YamlRefused as error:
        line = "" if error.line is None else f":{error.line}"
        raise WorkflowInvalid(f"{name}{line}: {error.problem}") from None
    if not found:
        raise WorkflowInvalid(
            f"{name}: the file is empty", hint="`accsd workflows apply --help` shows what a file says"
        )
    return found


def _toml(name: str, text: bytes) -> Any:
    """TOML refuses a key that is written twice by itself, and says the line of whatever it can't read."""
    try:
        return tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WorkflowInvalid(f"{name}: {error}") from None


def _doubles_of(text: bytes) -> Sequence[Double]:
    """Of JSON, where it is YAML too."""
    try:
        with _without_collecting():
            return next((found.doubles for found in documents(text)), ())
    except YamlRefused:
        return ()
