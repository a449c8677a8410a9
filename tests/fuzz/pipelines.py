"""Workflows and pipelines with expressions, templates, lists, tools and schemas, each from a Random: good ones, ones
that a person wrote in haste, and ones that were made to hurt; and results of steps that nobody expected."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

from tests.fuzz.values import integer, text, value

KEYS: Final = ("a", "b", "c", "d", "my-step", "x.y")
# What must never be opened and never be called; the test says what they are.
FILE: Final = "/file/that/nobody/reads"
HOST: Final = "host.that.nobody.calls"
REAL: Final = {FILE: FILE, HOST: HOST}
NOW: Final = datetime(2026, 11, 18, 9, tzinfo=UTC)

_ROOTS: Final = (
    *(
        "params.n",
        "params.n",
        "params.text",
        "params.items",
        "params.?gone.orValue(1)",
        "params.gone",
        "params",
        "steps",
    ),
    *("steps.a.n", "steps.a.n", "steps.a.items", "steps.b", "steps.my_step.n", "steps['x.y'].text", "steps.zz.n"),
    *("job.id", "job.created_at", "job.version", "trigger", "trigger.kind", "now", "item", "item.n", "index", "nobody"),
)
_LITERALS: Final = (
    *("0", "1", "-1", "1.5", "9223372036854775807", "9223372036854775808", "1e308", "1e400", "true", "false", "null"),
    *(
        "''",
        "'x'",
        '"é\U0001f600"',
        "'${'",
        "'}'",
        "b'x'",
        "r'\\d'",
        "[]",
        "[1, 2, 3]",
        "{}",
        "{'a': 1}",
        "duration('1h')",
    ),
    *("timestamp('2026-11-18T09:00:00Z')", "timestamp('9999-12-31T23:59:59Z')", "'\\u0000'", "'\\ud800'", "0x10", "1u"),
)
_METHODS: Final = (
    *("size({})", "length({})", "string({})", "int({})", "double({})", "type({})", "dyn({})", "bytes({})", "bool({})"),
    *("{}.size()", "{}.trim()", "{}.upperAscii()", "{}.split('')", "{}.split(',')", "{}.reverse()", "{}.lowerAscii()"),
    *("{}.replace('x', 'yyyyyyyyyy')", "{}.replace('', 'x')", "{}.substring(1)", "{}.charAt(0)", "{}.join(', ')"),
    *("{}.matches('(a+)+$')", "{}.matches('([ab]?){{900}}c')", "{}.matches('(')", "{}.matches({})", "{}.indexOf('x')"),
    *("{}.map(v, v)", "{}.map(v, [v, v, v])", "{}.filter(v, v > 1)", "{}.all(v, v == v)", "{}.exists(v, v == 1)"),
    *(
        "{}.exists_one(v, true)",
        "{}.map(k, v, k)",
        "{}.map(v, {}.map(w, v))",
        "{}.getFullYear()",
        "{}.getHours('Mars/X')",
    ),
    *("{}.orValue(1)", "{}.?x.?y.orValue('')", "{}.optMap(v, v + v)", "has({})", "has({}.x)", "math.greatest({}, 1)"),
    *(
        "'%s %d'.format([{}, {}])",
        "'%1000000d'.format([{}])",
        "cel.bind(v, {}, v)",
        "secret('s')",
        "secret({})",
        "{}[0]",
    ),
    *(
        "{}['x']",
        "{}[{}]",
        "{}.x",
        "{}.x.y.z",
        "-{}",
        "!{}",
        "({})",
        "{}()",
        "{{'k': {}}}",
        "[{}, {}]",
        "open({})",
        "{}.__class__",
    ),
)
_OPERATORS: Final = ("+", "-", "*", "/", "%", "==", "!=", "<", ">", "<=", ">=", "&&", "||", "in")
_ODD: Final = (
    "\u202e",
    "\u2028",
    "\ufeff",
    "\x00",
    "\x1b[2J",
    "é",
    "\U0001f600",
    "`",
    "$",
    "${",
    "}",
    "{",
    "'",
    '"',
    "\\",
    "#",
)


@dataclass(frozen=True, slots=True)
class Made:
    """A document, the tools that are there, and what steps have left (`results`, by key: None is skipped)."""

    document: Any
    tools: list[dict[str, Any]]
    options: dict[str, Any]
    trigger: dict[str, Any]
    results: dict[str, Any]


# Expressions


def expression(random: Random, depth: int = 3) -> str:
    chance = random.random()
    if depth <= 0 or chance < 0.3:
        return random.choice(_ROOTS if random.random() < 0.75 else _LITERALS)
    if chance < 0.6:
        pattern = random.choice(_METHODS)
        return pattern.format(*(expression(random, depth - 1) for _ in range(pattern.count("{}"))))
    if chance < 0.9:
        return f"{expression(random, depth - 1)} {random.choice(_OPERATORS)} {expression(random, depth - 1)}"
    return f"({expression(random, depth - 1)} ? {expression(random, depth - 1)} : {expression(random, depth - 1)})"


def calm_expression(random: Random, kind: str = "", depth: int = 2) -> str:
    """Of sound types, where the values are as their names say: number, text, list or bool."""
    kind = kind or random.choice(("number", "text", "list", "bool"))
    if depth <= 0:
        return random.choice(_CALM_ROOTS[kind])
    pattern = random.choice(_CALM[kind])
    kinds = re.findall(r"<(\w+)>", pattern)
    for each in kinds:
        pattern = pattern.replace(f"<{each}>", calm_expression(random, each, depth - 1), 1)
    return pattern


_CALM_ROOTS: Final = {
    "number": ("params.n", "steps.a.n", "1", "7", "params.?gone.orValue(1)", "job.version"),
    "text": ("params.text", "steps.a.text", "'x'", "'é'", "job.id", "string(now)"),
    "list": ("params.items", "steps.a.items", "[1, 2, 3]", "['x', 'y']", "[]"),
    "bool": ("true", "params.n > 1", "has(steps.a.n)", "now > job.created_at"),
}
_CALM: Final = {
    "number": (
        "<number> + <number>",
        "<number> * <number>",
        "size(<text>)",
        "size(<list>)",
        "(<bool> ? <number> : 0)",
        "-<number>",
    ),
    "text": (
        *(
            "<text> + <text>",
            "<text>.replace('x', <text>)",
            "<list>.join(<text>)",
            "string(<number>)",
            "<text>.upperAscii()",
        ),
        *(
            "'%s %s'.format([<text>, <list>])",
            "<text>.substring(1)",
            "(<bool> ? <text> : '')",
            "<text>.replace('', <text>)",
        ),
    ),
    "list": (
        *(
            "<list> + <list>",
            "<list>.map(v, v)",
            "<list>.filter(v, <bool>)",
            "<text>.split('')",
            "<text>.split('x')",
            "[<text>, <number>]",
        ),
        *(
            "<list>.map(v, [v, <text>])",
            "<list>.map(v, <list>)",
            "(<bool> ? <list> : [])",
            "<list>.map(v, <list>.map(w, [v, w]))",
        ),
    ),
    "bool": (
        *(
            "<number> > <number>",
            "<text> == <text>",
            "<list> == <list>",
            "<list>.all(v, <bool>)",
            "<list>.exists(v, v == <number>)",
        ),
        *(
            "<text>.contains(<text>)",
            "<text>.matches('^(x+)+$')",
            "<text>.matches(<text>)",
            "!<bool>",
            "<bool> && <bool>",
            "<number> in <list>",
        ),
    ),
}


def hostile_expression(random: Random) -> str:
    times = random.choice((10, 100, 500, 1000))
    inner = expression(random, 1)
    made: str = random.choice(
        (
            "(" * times + inner + ")" * times,
            "[" * times + inner + "]" * times,
            "{1:" * times + inner + "}" * times,
            inner + f" + {inner}" * (times // 10),
            "params.items" + ".map(v, [v, v])" * (times // 10),
            _nested_macros(times // 50),
            "params.text" + ".replace('x', 'xxxxxxxxxx')" * (times // 10),
            "!" * times + "true",
            "true ? 1 : " * times + "1",
            "'" + "x" * 5000 + "'",
            "a" + ".b" * times,
            "1" * times,
            "params.text.matches('" + random.choice(_PATTERNS).replace("\\", "\\\\").replace("'", "") + "')",
            "steps.a.items.map(v, steps.a.items.map(w, steps.a.items.map(u, u + v + w)))",
            "'${' + '}' + \"${params.n}\"",
        )
    )
    return made


def _nested_macros(times: int) -> str:
    made = "v"
    for _ in range(times + 1):
        made = f"params.items.map(v, {made})"
    return made


def broken(random: Random, written: str) -> str:
    """With a few characters too many or too few."""
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(written) + 1)
        if random.random() < 0.5:
            written = written[:at] + random.choice(_ODD) + written[at:]
        else:
            written = written[:at] + written[at + random.choice((1, 1, 5)) :]
    return written


def any_expression(random: Random) -> str:
    chance = random.random()
    if chance < 0.4:
        return calm_expression(random, depth=random.choice((0, 1, 2, 3)))
    if chance < 0.7:
        return expression(random, random.choice((0, 0, 1, 2, 3)))
    if chance < 0.85:
        return broken(random, expression(random, 2))
    return hostile_expression(random)


def template(random: Random) -> str:
    chance = random.random()
    if chance < 0.5:
        return "${" + any_expression(random) + "}"
    if chance < 0.55:
        return random.choice(("${", "$${", "${}", "${ }", "${'}", "}${", "$${${1}}", "${${1}}", "${secret('s')}"))
    if chance < 0.58:
        return "${params.n}" * random.choice((10, 199, 201, 2000))
    if chance < 0.6:
        return "${secret(" + random.choice(("'s'", "''", "params.text", "'../x'", "'" + "s" * 200 + "'")) + ")}"
    parts = [random.choice(("n=", " ", "$", "$$", "é", "{}", text(random, longest=2_000))) for _ in range(2)]
    return parts[0] + "${" + any_expression(random) + "}" + parts[1]


def templates(random: Random, depth: int = 2) -> Any:
    """A document with templates in it."""
    match random.randrange(8 if depth else 4):
        case 0 | 1 | 2:
            return template(random)
        case 3:
            return value(random, 1)
        case 4:
            return [templates(random, depth - 1) for _ in range(random.choice((0, 1, 3)))]
        case 5:
            return deep(random, template(random))
        case _:
            return {
                random.choice(("n", "text", "${params.n}", text(random, longest=500))): templates(random, depth - 1)
                for _ in range(random.choice((0, 1, 2)))
            }


def deep(random: Random, innermost: Any) -> Any:
    for _ in range(random.choice((3, 60, 64, 65, 200, 254, 260, 900))):
        innermost = [innermost] if random.random() < 0.5 else {"a": innermost}
    return innermost


# Schemas

_PATTERNS: Final = (
    *(
        "^a$",
        "(a+)+$",
        "(a|aa)+$",
        "([ab]?){900}c",
        "(.*)*y",
        "a{1000}{1000}",
        "(?=a)b",
        r"(a)\1",
        "(",
        "[",
        "\\pL{1,100}",
    ),
    *("((((((a{10}){10}){10}){10}){10}){10})", "x" * 2_000, "(?i)é", "\\u0000", "^\\d{4}-\\d{2}-\\d{2}$", "$^" * 100),
)
_REFERENCES: Final = (
    *("#", "#/$defs/a", "#/$defs/b", "#/$defs/nobody", "#/properties/n", "#nowhere", "#/%2e%2e", "", "a", "other.json"),
    *(
        f"file://{FILE}",
        f"http://{HOST}/s.json",
        f"https://{HOST}/s.json#/a",
        f"//{HOST}/s",
        FILE,
        "urn:x",
        "ftp://x/y",
    ),
    *("https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#", "\ud800", "data:,{}"),
)
_TYPES: Final = (
    "object",
    "string",
    "integer",
    "number",
    "boolean",
    "null",
    "array",
    "nothing",
    ["string", "null"],
    [],
    7,
    None,
)
_FORMATS: Final = (
    "date-time",
    "uri",
    "email",
    "uuid",
    "regex",
    "idn-hostname",
    "ipv6",
    "json-pointer",
    "duration",
    "x",
    7,
)


def reference(random: Random) -> str:
    return random.choice(_REFERENCES).replace(FILE, REAL[FILE]).replace(HOST, REAL[HOST])


def schema(random: Random, depth: int = 3) -> Any:
    chance = random.random()
    if chance < 0.03:
        return value(random)
    if chance < 0.06:
        return _bomb(random)
    made: dict[str, Any] = {}
    for _ in range(random.choice((1, 1, 2, 3))):
        word, make = random.choice(_WORDS)
        made[word] = make(random, depth - 1)
    return made


def _below(random: Random, depth: int) -> Any:
    return schema(random, depth) if depth > 0 else random.choice((True, False, {}, {"type": "string"}))


def _list_below(random: Random, depth: int) -> Any:
    return [_below(random, depth) for _ in range(random.choice((0, 1, 2)))]


def _named_below(random: Random, depth: int) -> Any:
    return {random.choice(("a", "b", "n", "text", "items", "é")): _below(random, depth) for _ in range(2)}


def _one_of(*values: Any) -> Callable[[Random, int], Any]:
    return lambda random, depth: random.choice(values)


_WORDS: Final[Sequence[tuple[str, Callable[[Random, int], Any]]]] = (
    ("type", _one_of(*_TYPES)),
    ("type", _one_of("object")),
    *((word, _named_below) for word in ("properties", "properties", "$defs", "definitions", "dependentSchemas")),
    *((word, _below) for word in ("items", "additionalProperties", "not", "if", "then", "else", "contains")),
    *((word, _below) for word in ("unevaluatedProperties", "unevaluatedItems", "propertyNames")),
    *((word, _list_below) for word in ("allOf", "anyOf", "oneOf", "prefixItems")),
    *((word, lambda random, depth: reference(random)) for word in ("$ref", "$ref", "$dynamicRef", "$id", "$schema")),
    ("$anchor", _one_of("a", "", 7)),
    ("pattern", _one_of(*_PATTERNS)),
    ("patternProperties", lambda random, depth: {random.choice(_PATTERNS): _below(random, depth) for _ in range(2)}),
    ("format", _one_of(*_FORMATS)),
    ("required", _one_of(["n"], ["n", "n"], "n", [7], [f"f{n}" for n in range(5_000)])),
    ("enum", lambda random, depth: [value(random, 1) for _ in range(random.choice((0, 1, 5)))]),
    ("const", lambda random, depth: value(random)),
    ("multipleOf", _one_of(1, 0, -1, 0.1, 1e-300, 1e300, "1")),
    *(
        (word, _one_of(0, 1, -1, 10**30, 0.5, "1"))
        for word in ("minLength", "maxLength", "minItems", "maximum", "minimum")
    ),
    ("uniqueItems", _one_of(True, "yes")),
    ("default", lambda random, depth: value(random)),
    ("x-unknown", lambda random, depth: value(random)),
)


def _bomb(random: Random) -> dict[str, Any]:
    """Small, and much work if it is taken at its word."""
    kind = random.randrange(5)
    if kind == 0:  # each level looks at the value twice
        levels = random.choice((5, 20, 200))
        defs = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
        return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{levels}": {"type": "object"}}}
    if kind == 1:  # itself
        return {"$ref": "#", "allOf": [{"$ref": "#"}]}
    if kind == 2:
        return {"properties": {"n": {"anyOf": [{"pattern": pattern} for pattern in _PATTERNS] * 10}}}
    if kind == 3:
        return deep(random, {"type": "string"})
    return {"oneOf": [{"properties": {f"f{n}": {"const": n}}} for n in range(random.choice((10, 1_500)))]}


def good_schema(random: Random) -> dict[str, Any]:
    """Of an input that the steps here may well have."""
    made: dict[str, Any] = {
        "type": "object",
        "properties": {
            "n": random.choice(({"type": "integer"}, {"type": "number", "minimum": 0}, {}, {"enum": [1, 2, 3]})),
            "text": {"type": "string", **random.choice(({}, {"pattern": "^[a-z]*$"}, {"maxLength": 10}))},
            "items": {"type": "array", "items": {"$ref": "#/$defs/one"}},
        },
        "$defs": {"one": random.choice(({}, {"type": "integer"}, {"type": ["object", "integer"]}))},
    }
    return made | random.choice(({}, {"required": ["n"]}, {"additionalProperties": True}))


# Documents


def _wrong(random: Random) -> Any:
    return value(random)


_FIELDS: Final[dict[str, Callable[[Random], Any]]] = {
    "if": lambda random: random.choice(
        (
            any_expression(random),
            template(random),
            calm_expression(random, "bool"),
            calm_expression(random, "bool"),
            True,
        )
    ),
    "with": lambda random: {
        name: templates(random) for name in random.sample(("n", "text", "items", "x"), random.choice((0, 1, 2, 3)))
    },
    "for_each": lambda random: random.choice(
        (
            *(
                "params.items",
                "${steps.a.items}",
                "params.n",
                3,
                0,
                1_000,
                1_001,
                -1,
                10**9,
                {"a": 1, "b": template(random)},
            ),
            *([1, template(random), {"n": 3}], any_expression(random), list(range(2_000))),
        )
    ),
    "if_item": lambda random: random.choice(("item != 2", "index < 3", any_expression(random), True)),
    "delay": lambda random: random.choice(
        (0, 5, "10m", "${index * 60}", "${params.text}", template(random), -1, 1e300, "x")
    ),
    "save_as": lambda random: random.choice(("a", "b", "same", "9", "é", "x y")),
    "max_parallel": lambda random: random.choice((1, 4, 0, "4")),
    "max_items": lambda random: random.choice((1, 10, 10_000, 10_001)),
    "tolerate": lambda random: random.choice((0, 1, "10%", "101%", -1, "٣%")),
    "uses": lambda random: random.choice(
        (
            *(
                "t.one",
                "t.one@1",
                "t.two",
                "t.two@9",
                "t.tow",
                "accs.transform",
                "accs.assert",
                "accs.submit@1",
                "service:render",
            ),
            *("t.one@99999999999", "t.one@1@1", "../t", "t.٣"),
        )
    ),
    "depends_on": lambda random: random.sample(KEYS, random.choice((0, 1, 2))),
    "default_params": lambda random: random.choice(({}, {"n": 1}, {"text": "${params.n}"}, value(random))),
    "timeout": lambda random: random.choice((1, "10m", 0, -1, "${params.n}")),
    "backoff": lambda random: random.choice(({"strategy": "fixed", "base": 1}, [1, 2], value(random))),
    "requires": lambda random: random.choice(({}, {"gpu": True}, value(random))),
    "concurrency_key": lambda random: random.choice(("k", "map/x", "${params.n}")),
    "max_attempts": integer,
    "service": lambda random: random.choice(("render", "accs", text(random, longest=500))),
}
_COMMON: Final = ("if", "with", "with", "for_each", "delay", "uses", "save_as")


def _step(random: Random, key: str, before: Sequence[str], *, is_pipeline: bool, wild: float) -> Any:
    step: dict[str, Any] = {"id" if is_pipeline else "key": key}
    step["uses" if is_pipeline else "service"] = "service:render" if is_pipeline else "render"
    if before and random.random() < 0.8:
        step["depends_on"] = (
            list(before) if random.random() < 0.6 else random.sample(before, random.randint(1, len(before)))
        )
    for field in random.sample(_COMMON, random.choice((0, 1, 1, 2, 3))):
        step[field] = _FIELDS[field](random)
    if "for_each" in step:
        for field in random.sample(("if_item", "max_parallel", "max_items", "tolerate"), random.choice((0, 0, 1, 2))):
            step[field] = _FIELDS[field](random)
    if "uses" in step and not is_pipeline and random.random() < 0.9:
        step.pop("service")
    while random.random() < wild:
        field = random.choice((*_FIELDS, "nobody"))
        step[field] = _wrong(random) if random.random() < 0.5 or field == "nobody" else _FIELDS[field](random)
    return step


def tool(random: Random, name: str) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "version": random.randint(1, 3), "service": "render"}
    made["input_schema"] = good_schema(random) if random.random() < 0.6 else schema(random)
    if random.random() < 0.3:
        made["output_schema"] = schema(random)
    if random.random() < 0.2:
        made["is_active"] = False
    if random.random() < 0.2:
        made["defaults"] = random.choice(
            ({"timeout": "2m", "max_attempts": 5}, {"requires": {"gpu": True}}, value(random))
        )
    if random.random() < 0.1:
        made["examples"] = [templates(random)]
    return made


def made(random: Random) -> Made:
    wild = random.choice((0.0, 0.0, 0.0, 0.1, 0.3, 0.6))
    is_pipeline = random.random() < 0.4
    keys = KEYS[: random.randint(1, len(KEYS))]
    steps: list[Any] = [
        _step(random, key, keys[:number], is_pipeline=is_pipeline, wild=wild) for number, key in enumerate(keys)
    ]
    document: Any = {"name": "w", "pipeline" if is_pipeline else "steps": steps}
    if random.random() < 0.7:
        document["params"] = {"n": random.choice((1, 3, 2.5)), "text": "xyz", "items": [1, 2, 3]}
    if random.random() < 0.2:
        document["options_schema"] = good_schema(random) if random.random() < 0.5 else schema(random)
    if random.random() < wild:
        document[random.choice(("name", "params", "options_schema", "steps", "pipeline", "notify", "nobody"))] = value(
            random
        )
    if random.random() < wild and steps:
        steps[random.randrange(len(steps))] = value(random)
    if random.random() < 0.01:
        step = steps[-1] if isinstance(steps[-1], dict) else {"key": "z", "service": "render"}
        steps += [{**step, "key": f"s{n}", "id": f"s{n}"} for n in range(random.choice((100, 2_000)))]
    options = {"n": integer(random), "text": text(random), "items": _items(random)} if random.random() < 0.5 else {}
    return Made(
        document if random.random() < 0.98 else value(random),
        [tool(random, name) for name in random.sample(("t.one", "t.two"), random.choice((0, 1, 2, 2)))],
        options,
        random.choice(({}, {"kind": "schedule"}, {"deep": deep(random, 1)})),
        {key: _result(random) for key in KEYS if random.random() < 0.9},
    )


def _items(random: Random) -> Any:
    return random.choice(
        (
            *(
                [1, 2, 3],
                [{"n": 1}, {"n": 2.5}],
                [],
                list(range(1_000)),
                list(range(20_000)),
                ["x" * 1_000] * 500,
                value(random),
            ),
            *({"k": 1, "é": [2]}, [None, True, "x", 1.5, [], {}], [[1] * 100] * 100, "no list"),
        )
    )


def _result(random: Random) -> Any:
    """None: the step was skipped."""
    chance = random.random()
    if chance < 0.1:
        return None
    if chance < 0.7:
        return {
            "n": random.choice((1, 2.5, -1, "three")),
            "text": text(random, longest=100_000),
            "items": _items(random),
        }
    if chance < 0.8:
        return {"deep": deep(random, 1)}
    return [value(random, 2) for _ in range(3)] if chance < 0.9 else {"any": value(random)}
