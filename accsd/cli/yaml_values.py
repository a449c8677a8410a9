"""YAML as plain values, built from the parser's events: no node is kept, nothing recurses, and what a few lines can
blow up into is bounded. 100,000 steps are a second and the memory of their values; PyYAML's own tree of nodes is five
times that, and its walkers never come back from an alias within itself.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast

import yaml

from accsd.errors import Place

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # a PyYAML that was built without libyaml is slower and says the same
    from yaml import SafeLoader

_DEEPEST: Final = 100
_MOST_REPEATED: Final = 1_000_000  # values that aliases stand for, all together
_LONGEST_NUMBER: Final = 300  # characters of a plain scalar that may be something else than text

_TAG: Final = "tag:yaml.org,2002:"
_MERGE: Final = f"{_TAG}merge"
_COLLECTIONS: Final = (None, "!", f"{_TAG}map", f"{_TAG}seq")
_SCALARS: Final = {f"{_TAG}{name}" for name in ("str", "null", "bool", "int", "float", "timestamp", "binary")}


class YamlRefused(Exception):
    """What is wrong, and on which line."""

    def __init__(self, problem: str, line: int | None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line


@dataclass(frozen=True, slots=True)
class Double:
    """A key that is written twice in one mapping, at its second place."""

    key: str
    line: int


@dataclass(slots=True)
class Values:
    """One document. `lines` has the lines of the places that were asked for, as far as the document has these."""

    value: Any = None
    doubles: list[Double] = field(default_factory=list[Double])
    lines: dict[Place, int] = field(default_factory=dict[Place, int])


def documents(text: bytes, wanted: Collection[Place] = ()) -> Iterator[Values]:
    """`wanted`: places whose lines are to be noted. Raises YamlRefused."""
    try:
        loader = SafeLoader(text)
        while loader.check_event():
            if isinstance(loader.get_event(), yaml.DocumentStartEvent):
                yield _Builder(loader, wanted).document()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise YamlRefused(error.problem or error.context or "this is not YAML", line) from None
    except (yaml.YAMLError, ValueError) as error:  # an impossible date is a ValueError
        raise YamlRefused(" ".join(str(error).split()), None) from None


@dataclass(slots=True)
class _OpenValue:
    """A collection that has not ended. `size` counts the values in it, those included that aliases stand for."""

    value: dict[Any, Any] | list[Any]
    anchor: str | None
    line: int
    size: int = 1
    has_key: bool = False
    key: Any = None
    key_line: int = 0
    merged: list[Any] = field(default_factory=list[Any])


class _Builder:
    def __init__(self, loader: Any, wanted: Collection[Place]) -> None:
        self._loader = loader
        self._wanted = wanted
        self._stack: list[_OpenValue] = []
        self._anchored: dict[str, tuple[Any, int]] = {}
        self._repeated: int = 0
        self._built: Values = Values()

    def document(self) -> Values:
        while not isinstance(event := self._loader.get_event(), yaml.DocumentEndEvent):
            line = event.start_mark.line + 1
            match event:
                case yaml.ScalarEvent():
                    self._scalar(event, line)
                case yaml.SequenceStartEvent():
                    self._open(event, [], line)
                case yaml.MappingStartEvent():
                    self._open(event, {}, line)
                case yaml.AliasEvent():
                    self._alias(str(event.anchor), line)
                case _:
                    self._close()
        return self._built

    def _open(self, event: Any, value: dict[Any, Any] | list[Any], line: int) -> None:
        if event.tag not in _COLLECTIONS:
            raise YamlRefused(f"the tag {_shown(event.tag)} has no meaning here", line)
        if len(self._stack) == _DEEPEST:
            raise YamlRefused(f"this is nested deeper than {_DEEPEST} levels", line)
        if self._expects_key():
            raise YamlRefused("a key must be text", line)
        self._note(line)
        self._stack.append(_OpenValue(value, event.anchor, line))

    def _close(self) -> None:
        closed = self._stack.pop()
        if closed.merged and isinstance(closed.value, dict):
            closed.value = self._with_defaults(closed.value, closed.merged, closed.line)
        self._put(closed.value, closed.size, closed.anchor, closed.line)

    def _scalar(self, event: Any, line: int) -> None:
        value, tag = self._resolved(event, line)
        if self._expects_key():
            here = self._stack[-1]
            here.has_key, here.key, here.key_line = True, _MERGE if tag == _MERGE else value, line
            return
        self._note(self._stack[-1].key_line if self._stack and self._stack[-1].has_key else line)
        self._put(value, 1, event.anchor, line)

    def _resolved(self, event: Any, line: int) -> tuple[Any, str]:
        written: str = event.value
        tag: str | None = event.tag
        if tag is None or tag == "!":
            is_text = len(written) > _LONGEST_NUMBER or not event.implicit[0]
            tag = (
                f"{_TAG}str" if is_text else cast("str", self._loader.resolve(yaml.ScalarNode, written, (True, False)))
            )
        if tag == f"{_TAG}str":
            return written, tag
        if tag in (_MERGE, f"{_TAG}value"):
            return written, tag
        if tag not in _SCALARS or len(written) > _LONGEST_NUMBER:
            raise YamlRefused(f"the tag {_shown(tag)} has no meaning here", line)
        try:
            construct = self._loader.yaml_constructors[tag]
            return construct(self._loader, yaml.ScalarNode(tag, written, event.start_mark, event.end_mark)), tag
        except (ValueError, OverflowError) as error:
            raise YamlRefused(f'"{_shown(written)}" can\'t be read: {error}', line) from None
        except AttributeError:  # PyYAML asks a match of None for its groups
            raise YamlRefused(f'"{_shown(written)}" is no {tag.removeprefix(_TAG)}', line) from None

    def _alias(self, name: str, line: int) -> None:
        """The same value again. It is shared, but a reader who walks over the document meets it each time."""
        if name not in self._anchored:
            is_open = any(each.anchor == name for each in self._stack)
            said = f"*{_shown(name)} stands within what it names" if is_open else f"there is no anchor &{_shown(name)}"
            raise YamlRefused(said, line)
        value, size = self._anchored[name]
        self._repeated += size
        if self._repeated > _MOST_REPEATED:
            raise YamlRefused(
                f"*{_shown(name)} and the aliases before it repeat more than {_MOST_REPEATED:,} values", line
            )
        if self._expects_key():
            raise YamlRefused("a key must be text", line)
        self._note(line)
        self._put(value, size, None, line)

    def _put(self, value: Any, size: int, anchor: str | None, line: int) -> None:
        if anchor is not None:
            self._anchored[anchor] = (value, size)
        if not self._stack:
            self._built.value = value
            return
        here = self._stack[-1]
        here.size += size
        if isinstance(here.value, list):
            here.value.append(value)
            return
        key, here.has_key = here.key, False
        if key is _MERGE:
            here.merged.append(value)
            return
        if key in here.value:
            self._built.doubles.append(Double(str(key), here.key_line))
        here.value[key] = value

    def _with_defaults(self, own: dict[Any, Any], merged: list[Any], line: int) -> dict[Any, Any]:
        """`<<` gives the keys that the mapping does not have itself; of several sources, the first that has a key."""
        given: dict[Any, Any] = {}
        for each in merged:
            for one in cast("list[Any]", each) if isinstance(each, list) else [each]:
                if not isinstance(one, dict):
                    raise YamlRefused("<< takes a mapping, or a list of them", line)
                given = cast("dict[Any, Any]", one) | given
        return given | own

    def _expects_key(self) -> bool:
        return bool(self._stack) and isinstance(self._stack[-1].value, dict) and not self._stack[-1].has_key

    def _note(self, line: int) -> None:
        if self._wanted and (place := self._place()) in self._wanted:
            self._built.lines[place] = line

    def _place(self) -> Place:
        return tuple(len(each.value) if isinstance(each.value, list) else each.key for each in self._stack)


def _shown(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"
