"""Workflow files, YAML or JSON: read and checked without a database, with the line on which something is wrong."""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import orjson
import yaml

from accsd.errors import InvalidValue, NotFound, Place, WorkflowInvalid
from accsd.model import WorkflowDef
from accsd.validation import did_you_mean

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # a PyYAML that was built without libyaml is slower and says the same
    from yaml import SafeLoader

SUFFIXES: Final = (".yaml", ".yml", ".json")
STDIN: Final = "-"
_UNKNOWN_FIELD: Final = re.compile(r'unknown field "(.*?)"')


@dataclass(frozen=True, slots=True)
class Document:
    """One workflow of a file, as it was written; `root` knows the lines."""

    file: str
    value: Any
    root: yaml.Node | None

    def checked(self) -> WorkflowDef:
        """WorkflowInvalid says file and line of everything that was found."""
        self._refuse_doubles()
        try:
            return WorkflowDef.model_validate(self.value)
        except WorkflowInvalid as error:
            complaints = error.complaints or [(self._place_of(error.step), error.message)]
            raise self._located(complaints, hint=error.hint or self._suggestion(error.step)) from None

    def _located(self, complaints: Iterable[tuple[Place, str]], hint: str | None = None) -> WorkflowInvalid:
        lines = [f"{self.file}{self._line(place, sentence)}: {sentence}" for place, sentence in complaints]
        return WorkflowInvalid("\n".join(lines), hint=hint)

    def _line(self, place: Place, sentence: str) -> str:
        """`:12`, of the deepest part of the place that the file has; an unknown field is on a line of its own."""
        if self.root is None:
            return ""
        unknown = _UNKNOWN_FIELD.search(sentence)
        node = self.root
        for part in (*place, *(unknown.groups() if unknown else ())):
            node = _child(node, part) or node
        return f":{node.start_mark.line + 1}"

    def _place_of(self, step: str | None) -> Place:
        """The last step of that key: of two that share one, the second is the mistake."""
        keys = [entry.get("key") for entry in self._steps()]
        return ("steps", len(keys) - 1 - keys[::-1].index(step)) if step in keys else ()

    def _suggestion(self, step: str | None) -> str | None:
        """The key that was meant by a dependency that does not exist."""
        keys = [str(entry.get("key")) for entry in self._steps()]
        wanted = next((entry.get("depends_on") for entry in self._steps() if entry.get("key") == step), None)
        unknown = [name for name in wanted or () if isinstance(name, str) and name not in keys]
        meant = did_you_mean(unknown[0], keys) if unknown else ""
        return f'depends_on: "{unknown[0]}"{meant}' if meant else None

    def _steps(self) -> list[dict[str, Any]]:
        steps: Any = cast("dict[str, Any]", self.value).get("steps") if isinstance(self.value, dict) else None
        entries = cast("list[Any]", steps) if isinstance(steps, list) else []
        return [cast("dict[str, Any]", entry) if isinstance(entry, dict) else {} for entry in entries]

    def _refuse_doubles(self) -> None:
        """YAML and JSON take the last of two equal keys; a person who wrote both meant something else."""
        doubles = list(_doubles(self.root)) if self.root is not None else []
        if doubles:
            lines = [f"{self.file}:{node.start_mark.line + 1}: {node.value} is written twice" for node in doubles]
            raise WorkflowInvalid("\n".join(lines))


def read(names: Iterable[str]) -> list[Document]:
    """The workflows of these files and folders; `-` is stdin. A folder gives its YAML and JSON files, by name."""
    return [document for file in _files(names) for document in _documents(file, _text(file))]


def canonical_yaml(workflow: WorkflowDef) -> str:
    """What `workflows show -o yaml` prints and `workflows diff` compares: only what differs from the defaults."""
    document = {
        "name": workflow.name,
        "version": workflow.version,
        **({"notify": sorted(set(workflow.notify))} if workflow.notify else {}),
        "steps": [_plain(step.model_dump(mode="json", exclude_defaults=True)) for step in workflow.steps],
    }
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


def _plain(step: dict[str, Any]) -> dict[str, Any]:
    """600 instead of 600.0, as people write it."""
    timeout = step.get("timeout")
    return step | {"timeout": int(timeout)} if isinstance(timeout, float) and timeout.is_integer() else step


def _files(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        path = Path(name)
        if name == STDIN or path.is_file():
            yield name
        elif path.is_dir():
            found = sorted(str(entry) for entry in path.iterdir() if entry.suffix in SUFFIXES and entry.is_file())
            if not found:
                raise NotFound(f"there is no workflow file in {name}", hint=f"one ends in {', '.join(SUFFIXES)}")
            yield from found
        else:
            raise NotFound(
                f"there is no file {name}", hint="name a YAML or JSON file, a folder of them, or - for stdin"
            )


def _text(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    except OSError as error:
        raise InvalidValue(f"{file} can't be read: {error.strerror}") from error


def _documents(file: str, text: bytes) -> list[Document]:
    name = "stdin" if file == STDIN else file
    if file.endswith(".json") or text.lstrip().startswith(b"{"):
        try:
            return [Document(name, orjson.loads(text), _lines_of(text))]
        except orjson.JSONDecodeError as error:
            if file.endswith(".json"):
                raise WorkflowInvalid(f"{name}:{error.lineno}: {error.msg}") from None
    found = _yaml_documents(name, text)
    if not found:
        raise WorkflowInvalid(
            f"{name}: the file is empty", hint="`accsd workflows apply --help` shows what a file says"
        )
    return found


def _yaml_documents(name: str, text: bytes) -> list[Document]:
    try:
        loader = SafeLoader(text)
        found: list[Document] = []
        while loader.check_node():
            root = cast("yaml.Node", loader.get_node())
            found.append(Document(name, cast("Any", loader).construct_document(root), root))
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise WorkflowInvalid(f"{name}{line}: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # an impossible date is a ValueError
        raise WorkflowInvalid(f"{name}: {error}") from None
    return found


def _lines_of(text: bytes) -> yaml.Node | None:
    """JSON is YAML but for a few corners, such as tabs; there the lines stay unknown."""
    try:
        return cast("yaml.Node | None", yaml.compose(text, Loader=SafeLoader))
    except (yaml.YAMLError, RecursionError):
        return None


def _child(node: yaml.Node, part: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        return cast("list[yaml.Node]", node.value)[part] if part < len(node.value) else None
    if isinstance(node, yaml.MappingNode):
        entries = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
        return next((_at_key(key, value) for key, value in entries if key.value == part), None)
    return None


def _at_key(key: yaml.Node, value: yaml.Node) -> yaml.Node:
    """A scalar's line is its key's; of a collection one goes further down."""
    return key if isinstance(value, yaml.ScalarNode) else value


def _doubles(root: yaml.Node) -> Iterator[yaml.ScalarNode]:
    todo = [root]
    while todo:
        node = todo.pop()
        if isinstance(node, yaml.SequenceNode):
            todo += node.value
        elif isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in seen and key.value != "<<":
                    yield key
                seen.add(str(key.value))
                todo.append(value)
