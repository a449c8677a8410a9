"""JSON Schema (draft 2020-12): checks what people and programs send against what a workflow or a tool says that it
takes. The only module that speaks to jsonschema_rs, which takes 0.1 s to import and is imported with the first schema.

A schema comes from a person, and is bounded before the library sees it: it refers to places in itself only (by itself
the library would follow references to files and hosts), its patterns need linear time, and no value is looked at more
than a thousand times. Values are never shown: they may be secrets.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

import orjson

from accsd.errors import Place, SchemaInvalid
from accsd.values.json import MAX_DEPTH, is_too_deep
from accsd.values.validation import Problem

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

MAX_SCHEMA_BYTES: Final = 64 * 1024
MAX_LOOKS: Final = 1000  # how many parts of a schema may apply to one value
MAX_TOGETHER: Final = 20_000  # how many pairs of parts of a schema may meet at one value: each is looked at to count
MAX_PATTERNS: Final = 100
MAX_PATTERN_CHARS: Final = 1000
MAX_PROBLEMS: Final = 50
_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_PATTERN_BYTES: Final = 256 * 1024  # of a compiled pattern: larger ones take tens of milliseconds to compile
_SHOWN: Final = 80

# Where a schema holds schemas. "same": for the same value; the others: for the elements or members of the value.
_SAME_ONE: Final = ("not", "if", "then", "else")
_SAME_LIST: Final = ("allOf", "anyOf", "oneOf")
_ELEMENTS: Final = ("items", "contains", "unevaluatedItems")
_MEMBERS: Final = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_NAMED: Final = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
_REFUSED: Final = ("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$anchor", "$vocabulary")
# What can be said of a value while some places below it are not known yet.
_OF_SHAPE: Final = frozenset(
    {"type", "required", "additionalProperties", "minProperties", "maxProperties", "minItems", "maxItems"}
)
_CHOSEN_BY_VALUE: Final = frozenset({"if", "then", "else", "anyOf", "oneOf", "not", "dependentSchemas"})


class Schema:
    """A schema that was found good. Raises SchemaInvalid with everything that is wrong with it."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        found = _Look(document).problems() or _complaints(document)
        if found:
            told = [(problem.place, str(problem)) for problem in found]
            raise SchemaInvalid("; ".join(sentence for _, sentence in told[:5]), complaints=told)
        self._document: Final = document

    @cached_property
    def _validator(self) -> "Validator":
        return _compiled(self._document)

    def problems(self, value: Any, *, unknown: Iterable[Place] = ()) -> list[Problem]:
        """Everything that is wrong with a value, the first fifty in words. `unknown` are places whose values are not
        known yet: nothing is said of them, nor of what depends on them."""
        if self._validator.is_valid(value):
            return []
        missing = tuple(unknown)
        found = (error for error in self._validator.iter_errors(value) if _counts(error, missing))
        told = list(islice(found, MAX_PROBLEMS + 1))
        said = sorted({problem for error in told[:MAX_PROBLEMS] for problem in _said(error)}, key=_by_place)
        return said if len(told) <= MAX_PROBLEMS else [*said, Problem((), "has more problems than are told")]


def schema_of(document: Mapping[str, Any]) -> Schema:
    """The schema, compiled once for each text. Raises SchemaInvalid."""
    try:
        return _kept(orjson.dumps(document, option=orjson.OPT_SORT_KEYS))
    except TypeError:
        raise SchemaInvalid(f"a schema is nested deeper than {MAX_DEPTH} levels, or no JSON") from None


@lru_cache(maxsize=256)
def _kept(text: bytes) -> Schema:
    return Schema(orjson.loads(text))


def sentences(problems: Iterable[Problem], what: str) -> str:
    """All of them in one line: `options.frames must be a whole number; …`."""
    return "; ".join(f"{what}{'.' if each.place else ' '}{each}" for each in problems)


# What is wrong with a schema


class _Look:
    """The places of a schema that hold schemas, before the library sees any of it."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._schemas: dict[Place, Any] = {}
        self._problems: list[Problem] = []
        self._same: dict[Place, Counter[Place]] = {}
        self._met = 0

    def problems(self) -> list[Problem]:
        if is_too_deep(self._document):
            return [Problem((), f"is nested deeper than {MAX_DEPTH} levels")]
        size = len(orjson.dumps(self._document))
        if size > MAX_SCHEMA_BYTES:
            return [Problem((), f"has {size} bytes; it may have {MAX_SCHEMA_BYTES}")]
        self._schemas = dict(_schemas(self._document))
        for place, schema in self._schemas.items():
            if isinstance(schema, dict):
                self._problems += self._refused(place, cast("dict[str, Any]", schema))
        self._problems += self._patterns()
        return self._problems or list(self._looks())

    def _refused(self, place: Place, schema: Mapping[str, Any]) -> Iterator[Problem]:
        for keyword in _REFUSED:
            if keyword in schema:
                yield Problem((*place, keyword), "is not supported; refer to a place in the schema: #/$defs/NAME")
        if place and "$id" in schema:
            yield Problem((*place, "$id"), "stands at the top of a schema only")
        if schema.get("$schema", _DRAFT) not in (_DRAFT, f"{_DRAFT}#"):
            yield Problem((*place, "$schema"), f"must be {_DRAFT}: no other draft is known")
        if "$ref" not in schema:
            return
        if self._meant(schema["$ref"]) is None:
            yield Problem((*place, "$ref"), "must be the place of a schema in this document, such as #/$defs/NAME")

    def _patterns(self) -> Iterator[Problem]:
        written = [*_patterns(self._schemas)]
        if len(written) > MAX_PATTERNS:
            yield Problem((), f"has {len(written)} patterns; it may have {MAX_PATTERNS}")
        for place, pattern in written:
            if len(pattern) > MAX_PATTERN_CHARS:
                yield Problem(place, f"has a pattern longer than {MAX_PATTERN_CHARS} characters")

    def _meant(self, reference: Any) -> Place | None:
        """The place of the schema that a reference means."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            return None
        here: Any = self._document
        place: list[str | int] = []
        for part in unquote(reference[1:]).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            step: Any = int(name) if isinstance(here, list) and name.isdecimal() else name
            try:
                here = cast("Any", here)[step]
            except (KeyError, IndexError, TypeError):
                return None
            place.append(step)
        return tuple(place) if tuple(place) in self._schemas else None

    def _looks(self) -> Iterator[Problem]:
        """Whether a value may be looked at too often: references that meet again and again double at each level."""
        try:
            looks = {place: sum(self._at(place).values()) for place in self._schemas}
            below = {place: list(self._below(place)) for place in self._schemas}
        except _Circle as circle:
            yield Problem(circle.place, "refers to itself without going into the value")
            return
        except _Entangled:
            yield Problem((), "has too many parts that apply to the same value: merge them, or use fewer alternatives")
            return
        for _ in range(MAX_DEPTH):
            if (most := max(looks.values(), default=0)) > MAX_LOOKS:
                yield Problem((), f"would look at one value {most} times or more; {MAX_LOOKS} are allowed")
                return
            deeper = {
                place: max((sum(looks[each] * n for each, n in part.items()) for part in parts), default=0)
                for place, parts in below.items()
            }
            if deeper == looks:
                return
            looks = deeper

    def _at(self, place: Place, above: tuple[Place, ...] = ()) -> Counter[Place]:
        """The schemas that apply to the same value as this one, and how often each does."""
        if place in above:
            raise _Circle(place)
        if place not in self._same:
            found = Counter({place: 1})
            for each in _same(self._schemas[place], place, self._meant):
                also = self._at(each, (*above, place))
                self._meet(len(also))
                found.update(also)
                if sum(found.values()) > MAX_LOOKS:
                    break  # one that is too many is enough to know
            self._same[place] = found
        return self._same[place]

    def _below(self, place: Place) -> Iterator[Counter[Place]]:
        """For each member that a value may have, and for its elements: the schemas that apply to it."""
        named: dict[str, Counter[Place]] = {}
        members, elements = Counter[Place](), Counter[Place]()
        self._meet(len(self._at(place)))
        for each, n in self._at(place).items():
            schema = self._schemas[each]
            if not isinstance(schema, dict):
                continue
            for name in _table(schema, "properties"):
                named.setdefault(name, Counter()).update({(*each, "properties", name): n})
            members.update({(*each, "patternProperties", name): n for name in _table(schema, "patternProperties")})
            members.update({(*each, key): n for key in _MEMBERS if (*each, key) in self._schemas})
            elements.update({(*each, key): n for key in _ELEMENTS if (*each, key) in self._schemas})
            first = _list(cast("dict[str, Any]", schema).get("prefixItems"))
            elements.update({(*each, "prefixItems", i): n for i in range(len(first))})
        for of_name in (*named.values(), Counter[Place]()):
            if of_name or members:
                self._meet(len(of_name) + len(members))
                yield of_name + members
        if elements:
            self._meet(len(elements))
            yield elements

    def _meet(self, parts: int) -> None:
        self._met += parts
        if self._met > MAX_TOGETHER:
            raise _Entangled


class _Entangled(Exception):
    """To count how often a value is looked at would itself take long."""


class _Circle(Exception):
    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place


def _schemas(schema: Any, at: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every schema in a schema, with its place. Values that only look like schemas (enum, const, default) are none."""
    yield at, schema
    if not isinstance(schema, dict):
        return
    holder = cast("dict[str, Any]", schema)
    for keyword in (*_SAME_ONE, *_ELEMENTS, *_MEMBERS):
        if isinstance(holder.get(keyword), dict | bool):
            yield from _schemas(holder[keyword], (*at, keyword))
    for keyword in (*_SAME_LIST, "prefixItems"):
        if isinstance(holder.get(keyword), list):
            for number, each in enumerate(holder[keyword]):
                yield from _schemas(each, (*at, keyword, number))
    for keyword in _NAMED:
        for name, each in _table(holder, keyword).items():
            yield from _schemas(each, (*at, keyword, name))


def _same(schema: Any, at: Place, meant: Callable[[Any], Place | None]) -> Iterator[Place]:
    if not isinstance(schema, dict):
        return
    holder = cast("dict[str, Any]", schema)
    if (reference := meant(holder.get("$ref"))) is not None:
        yield reference
    yield from ((*at, keyword) for keyword in _SAME_ONE if isinstance(holder.get(keyword), dict | bool))
    for keyword in _SAME_LIST:
        yield from ((*at, keyword, number) for number in range(len(_list(holder.get(keyword)))))
    yield from ((*at, "dependentSchemas", name) for name in _table(holder, "dependentSchemas"))


def _patterns(schemas: Mapping[Place, Any]) -> Iterator[tuple[Place, str]]:
    for place, schema in schemas.items():
        if isinstance(schema, dict):
            if isinstance(pattern := cast("dict[str, Any]", schema).get("pattern"), str):
                yield (*place, "pattern"), pattern
            yield from (((*place, "patternProperties"), name) for name in _table(schema, "patternProperties"))


def _table(schema: Any, keyword: str) -> dict[str, Any]:
    found = schema.get(keyword)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _list(found: Any) -> list[Any]:
    return cast("list[Any]", found) if isinstance(found, list) else []


def _complaints(document: Mapping[str, Any]) -> list[Problem]:
    """What JSON Schema itself says of the document; of a pattern, the engine that would match it."""
    import jsonschema_rs

    found = [problem for error in _of_schemas().iter_errors(document) for problem in _said(error)]
    if found:
        return found[:MAX_PROBLEMS]
    try:
        _compiled(document)
    except jsonschema_rs.ValidationError as error:
        what = "is no pattern that needs linear time (no look-around, no back-references, no large repetitions)"
        is_pattern = "pattern" in error.instance_path or "patternProperties" in error.instance_path
        return [Problem(tuple(error.instance_path), what if is_pattern else "can't be used")]
    return []


@lru_cache(maxsize=1)
def _of_schemas() -> "Validator":
    return _compiled({"$ref": _DRAFT})


def _compiled(document: Mapping[str, Any]) -> "Validator":
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(
        cast("dict[str, Any]", document),
        validate_formats=True,
        retriever=_refuse,
        pattern_options=jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES, dfa_size_limit=_PATTERN_BYTES),
    )


def _refuse(uri: str, /) -> Any:
    raise ValueError(f"{uri} is not in this document")


# What is wrong with a value


def _counts(error: "ValidationError", unknown: Sequence[Place]) -> bool:
    """Whether it is wrong whatever the unknown places will hold."""
    place = tuple(error.instance_path)
    for each in unknown:
        if place[: len(each)] == each:
            return False
        if each[: len(place)] == place:
            by_choice = _CHOSEN_BY_VALUE.intersection(map(str, error.schema_path))
            if error.kind.name not in _OF_SHAPE or by_choice:
                return False
    return True


def _by_place(problem: Problem) -> tuple[tuple[int, int, str], ...]:
    """Elements of a list in their order; members by name, because jsonb keeps no other order."""
    return tuple((0, each, "") if isinstance(each, int) else (1, 0, each) for each in problem.place)


def _said(error: "ValidationError") -> Iterator[Problem]:
    place, about = tuple(error.instance_path), error.kind.as_dict()
    match error.kind.name:
        case "required":
            yield Problem((*place, str(about.get("property", ""))), "is missing")
        case "additionalProperties" | "unevaluatedProperties":
            for name in about.get("unexpected", ()):
                yield Problem(place, f'has an unknown field "{_short(name)}"')
        case "falseSchema" if error.schema_path and error.schema_path[-1] in _MEMBERS:
            yield Problem(place, "has a field, and takes none")
        case "anyOf" | "oneOf":
            yield Problem(place, _alternatives(place, about.get("context", ())))
        case kind:
            yield Problem(place, _words(kind, about))


def _alternatives(place: Place, context: Sequence[Sequence["ValidationError"]]) -> str:
    if not all(context):
        return "fits more than one of the forms that exclude each other"
    first = [next(_said(errors[0])) for errors in context]
    shown = " or ".join(dict.fromkeys(str(Problem(each.place[len(place) :], each.what)) for each in first[:4]))
    return f"fits none of {len(context)} forms: {shown}{' …' if len(first) > 4 else ''}"


_TYPES: Final = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "object": "an object",
    "array": "a list",
}


def _words(kind: str, about: Mapping[str, Any]) -> str:
    limit = about.get("limit")
    match kind:
        case "type":
            types: Sequence[str] = about.get("types", ())
            return f"must be {' or '.join(_TYPES.get(each) or each for each in types)}"
        case "enum":
            return f"must be one of {_short(orjson.dumps(about.get('options')).decode()[1:-1])}"
        case "const":
            return f"must be {_short(orjson.dumps(about.get('expected_value')).decode())}"
        case "pattern":
            return f"does not match {_short(about.get('pattern', ''))}"
        case "format":
            return f"is no {about.get('format')}"
        case "minimum":
            return f"must be at least {limit}"
        case "maximum":
            return f"must be at most {limit}"
        case "exclusiveMinimum":
            return f"must be above {limit}"
        case "exclusiveMaximum":
            return f"must be below {limit}"
        case "multipleOf":
            return f"must be a multiple of {about.get('multiple_of')}"
        case "minLength" | "minItems" | "minProperties":
            return f"must have at least {limit} {_COUNTED[kind[3:]]}"
        case "maxLength" | "maxItems" | "maxProperties":
            return f"must have at most {limit} {_COUNTED[kind[3:]]}"
        case "uniqueItems":
            return "has the same element twice"
        case "contains":
            return "lacks an element that it must have"
        case "propertyNames":
            return "has a field whose name is not allowed"
        case "falseSchema":
            return "must not be there"
        case "not":
            return "has a form that is not allowed"
        case _:
            return f"breaks the rule {kind}"


_COUNTED: Final = {"Length": "characters", "Items": "elements", "Properties": "fields"}


def _short(text: object) -> str:
    shown = str(text)
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"
