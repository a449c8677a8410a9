"""JSON Schema as accsd uses it (TL3, TL5): bounded, closed, and every problem in words that show no value."""

import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accsd.errors import SchemaInvalid
from accsd.values.schemas import MAX_PROBLEMS, Schema, schema_of, sentences

_SECRET = "hunter2-canary"


def _told(schema: dict[str, Any], value: Any) -> list[str]:
    return [str(each) for each in schema_of(schema).problems(value)]


@pytest.fixture
def visited() -> Iterator[tuple[str, list[str]]]:
    """A server, and what it was asked."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    serving.join()
    server.server_close()


def test_every_problem_is_told_with_its_path_and_without_the_value():
    schema = {
        "type": "object",
        "required": ["title", "frames"],
        "properties": {
            "frames": {"type": "integer", "minimum": 1},
            "codec": {"enum": ["av1", "h264"]},
            "clips": {"type": "array", "items": {"type": "object", "required": ["url"]}},
            "at": {"type": "string", "format": "date-time"},
        },
        "additionalProperties": False,
    }
    wrong = {"frames": _SECRET, "codec": _SECRET, "clips": [{}, 3], "at": _SECRET, "colour": _SECRET}

    told = _told(schema, wrong)

    assert sorted(told) == [
        "at is no date-time",
        "clips.0.url is missing",
        "clips.1 must be an object",
        'codec must be one of "av1","h264"',
        "frames must be a whole number",
        'has an unknown field "colour"',
        "title is missing",
    ]
    assert _SECRET not in " ".join(told)


def test_alternatives_are_told_in_one_sentence():
    schema = {"properties": {"size": {"anyOf": [{"type": "integer"}, {"enum": ["small", "large"]}]}}}

    assert _told(schema, {"size": _SECRET}) == [
        'size fits none of 2 forms: must be a whole number or must be one of "small","large"'
    ]


@pytest.mark.parametrize(
    "rule",
    [
        {"const": 1},
        {"pattern": "^a"},
        {"maxLength": 2},
        {"not": {"type": "string"}},
        {"oneOf": [{"type": "string"}, {"minLength": 1}]},
        {"format": "email"},
        {"allOf": [{"type": "object"}]},
        {"if": True, "then": {"type": "integer"}},
        False,
    ],
)
def test_no_kind_of_problem_shows_the_value(rule: Any):
    told = _told({"properties": {"password": rule}}, {"password": _SECRET})

    assert told
    assert all(each.startswith("password ") for each in told)
    assert _SECRET not in " ".join(told)


def test_a_long_list_of_problems_is_cut():
    schema = {"items": {"type": "string"}}

    told = _told({"properties": {"list": schema}}, {"list": [1] * 10_000})

    assert len(told) == MAX_PROBLEMS + 1
    assert told[-1] == "has more problems than are told"


def test_a_sentence_says_what_was_checked():
    assert sentences(schema_of({"required": ["a"]}).problems({}), "options") == "options.a is missing"


@pytest.mark.parametrize("where", ["$ref", "allOf", "properties", "$defs"])
def test_a_reference_to_a_host_is_refused_and_nobody_is_asked(where: str, visited: tuple[str, list[str]]):
    address, asked = visited
    reference: dict[str, Any] = {"$ref": f"{address}/schema.json"}
    schema = {
        "$ref": reference,
        "allOf": {"allOf": [reference]},
        "properties": {"properties": {"a": reference}},
        "$defs": {"$defs": {"unused": reference}},
    }[where]

    with pytest.raises(SchemaInvalid, match=r"must be the place of a schema in this document"):
        Schema(schema)
    assert asked == []


def test_a_reference_to_a_file_is_refused_and_the_file_is_not_read(tmp_path: Path):
    there = tmp_path / "schema.json"
    os.mkfifo(there)  # whoever opened it would wait for ever

    with pytest.raises(SchemaInvalid):
        Schema({"$ref": there.as_uri()})


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "http://127.0.0.1:1/", "$ref": "other"},
        {"properties": {"a": {"$id": "http://127.0.0.1:1/", "$ref": "#/$defs/b"}}, "$defs": {"b": {}}},
        {"$dynamicRef": "#node"},
        {"$schema": "http://127.0.0.1:1/mine"},
        {"$ref": "#/$defs/missing"},
        {"$ref": "#/enum/0", "enum": [{"type": "string"}]},
        {"$ref": 7},
    ],
)
def test_other_ways_out_of_the_document_are_refused(schema: dict[str, Any]):
    with pytest.raises(SchemaInvalid):
        Schema(schema)


def test_what_only_looks_like_a_reference_is_a_name_or_a_value():
    schema = {"properties": {"$ref": {"type": "string"}}, "default": {"$ref": "http://127.0.0.1:1/"}}

    assert _told(schema, {"$ref": "x"}) == []
    assert _told(schema, {"$ref": 1}) == ["$ref must be a text"]


def test_all_mistakes_of_a_schema_are_named():
    with pytest.raises(SchemaInvalid) as refused:
        Schema({"properties": {"a": {"type": "strang"}, "b": {"minimum": "low"}, "c": {"required": "x"}}})

    places = {".".join(map(str, place)) for place, _ in refused.value.complaints}
    assert places == {"properties.a.type", "properties.b.minimum", "properties.c.required"}


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "(", "(a{1000}){1000}", "a" * 2000])
def test_a_pattern_that_needs_more_than_linear_time_is_refused(pattern: str):
    for schema in ({"pattern": pattern}, {"patternProperties": {pattern: {}}}):
        with pytest.raises(SchemaInvalid):
            Schema({"properties": {"a": schema}})


def _chain(length: int) -> dict[str, Any]:
    """References that double at each step."""
    twice = {
        f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n - 1}"}, {"$ref": f"#/$defs/a{n - 1}"}]} for n in range(1, length)
    }
    return {"$defs": {"a0": {"type": "integer"}, **twice}, "$ref": f"#/$defs/a{length - 1}"}


def _nested(depth: int) -> Any:
    value: Any = "end"
    for _ in range(depth):
        value = {"a": value}
    return value


_TWICE = {"properties": {"a": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}}
_ANYWHERE = {
    "properties": {"a": {"$ref": "#"}},
    "additionalProperties": {"$ref": "#"},
    "patternProperties": {"": {"$ref": "#"}},
}


# To count what meets at one value would itself take seconds.
_MANY_ALTERNATIVES = {
    "$defs": {"a": {"anyOf": [{}] * 900}},
    "properties": {f"p{n}": {"$ref": "#/$defs/a"} for n in range(1500)},
}
_MANY_MEMBERS = {
    "anyOf": [{"additionalProperties": {}}] * 900,
    "properties": {f"p{n}": {} for n in range(1500)},
}


@pytest.mark.parametrize(
    "schema",
    [
        _chain(40),
        _TWICE,
        _ANYWHERE,
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"properties": {"a": {"$ref": "#/properties/b"}, "b": {"items": {"allOf": [{"$ref": "#/properties/b"}] * 3}}}},
        {"enum": list(range(100_000))},
        {"properties": {f"p{n}": {"pattern": rf"^\w{{1,{n}}}$"} for n in range(1, 200)}},
        _nested(100),
        _MANY_ALTERNATIVES,
        _MANY_MEMBERS,
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_a_schema_that_would_take_exponential_time_is_refused_before_it_is_compiled(schema: dict[str, Any]):
    with pytest.raises(SchemaInvalid):
        Schema(schema)


def test_a_schema_of_a_tree_is_good_however_deep_the_tree():
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "size": {"type": "number"}}}
    value: dict[str, Any] = {"size": _SECRET}
    for _ in range(60):
        value = {"left": value, "right": {}}

    [told] = _told(tree, value)

    assert told.endswith("left.size must be a number")


def test_a_pattern_that_would_backtrack_for_ever_ends():
    assert _told({"pattern": "^(a+)+$"}, "a" * 100_000 + "b") == ["does not match ^(a+)+$"]


def test_places_that_are_not_known_yet_are_left_open():
    schema = {
        "type": "object",
        "required": ["to", "text"],
        "properties": {
            "to": {"type": "integer"},
            "text": {"type": "string", "minLength": 3},
            "extra": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {"type": "integer"}}},
        },
        "additionalProperties": False,
        "if": {"properties": {"text": {"const": "x"}}},
        "else": {"required": ["never"]},
    }
    value = {"text": "${steps.a.text}", "to": "seven", "extra": {"a": "${params.a}"}, "colour": 1}

    told = [str(each) for each in schema_of(schema).problems(value, unknown=[("text",), ("extra", "a")])]

    assert sorted(told) == ['has an unknown field "colour"', "to must be a whole number"]
