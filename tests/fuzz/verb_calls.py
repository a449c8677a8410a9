"""Calls of the functions of schema accs, with arguments made for their types: fitting ones, odd ones, and mixed.

Every argument travels as text and is cast by PostgreSQL, so that no driver stands between a hostile value and the verb.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from tests.fuzz.values import integer, json_text, length, moment, number, text
from tests.support.cluster import Connection

OWNER = "owner"


class Verb(NamedTuple):
    name: str
    arguments: list[tuple[str, str]]  # name, type
    optional: int  # how many of the last have a default
    may_call: frozenset[str]  # roles, and the owner where any role may


class Call(NamedTuple):
    role: str
    verb: Verb
    given: dict[str, str | None]
    is_kept: bool

    @property
    def is_allowed(self) -> bool:
        return self.role in self.verb.may_call

    @property
    def sql(self) -> str:
        types = dict(self.verb.arguments)
        passed = (f"{name} => ${n}::text::{types[name]}" for n, name in enumerate(self.given, 1))
        return f"SELECT called::text FROM accs.{self.verb.name}({', '.join(passed)}) AS called"

    def __repr__(self) -> str:
        passed = ", ".join(f"{name} => {value!r}" for name, value in self.given.items())
        return f"{self.role}: accs.{self.verb.name}({passed}); {'COMMIT' if self.is_kept else 'ROLLBACK'}"


class Known(NamedTuple):
    """What there is to be named: attempts under way, by column, and ids by what they are of."""

    live: Sequence[Mapping[str, Any]] = ()
    ids: Mapping[str, Sequence[str]] = {}


_VERBS = """
SELECT p.proname AS name, coalesce(p.proargnames[1:p.pronargs], '{}') AS names, p.pronargdefaults AS optional,
       ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY AS u (t, n) ORDER BY n) AS types,
       ARRAY(SELECT r FROM unnest($1::text[]) AS r WHERE has_function_privilege(r, p.oid, 'EXECUTE')) AS may_call
  FROM pg_proc p WHERE p.pronamespace = 'accs'::regnamespace AND p.prorettype <> 'trigger'::regtype
 ORDER BY p.oid::regprocedure::text
"""
_ATTEMPTS = "SELECT task_id, job_id, attempt_id, owner, node, service FROM accs.live ORDER BY task_id DESC LIMIT 20"
_IDS = {
    "jobs": "(SELECT id::text FROM jobs ORDER BY id DESC LIMIT 8) UNION ALL"
    " (SELECT id::text FROM jobs WHERE finished_at IS NOT NULL ORDER BY id DESC LIMIT 12)",
    "tasks": "SELECT id::text FROM job_tasks ORDER BY id DESC LIMIT 30",
    "unresolved": "SELECT task_id::text FROM accs.waiting WHERE hold = 'resolve' ORDER BY task_id DESC LIMIT 10",
    "workflows": "SELECT id::text FROM workflows",
    "letters": "SELECT id::text FROM dead_letters ORDER BY id DESC LIMIT 10",
    "outbox": "SELECT id::text FROM outbox_events ORDER BY id DESC LIMIT 10",
    "claims": "SELECT claim_id::text FROM outbox_events WHERE claim_id IS NOT NULL LIMIT 5",
    "archives": "SELECT id::text FROM accs.archives LIMIT 5",
    "orders": "SELECT id::text FROM accs.node_orders ORDER BY id LIMIT 5",
    "deployments": "SELECT id::text FROM accs.seqpulse_deployments ORDER BY id DESC LIMIT 5",
}
# By the name of the parameter without its p_: what it may well be given.
_FITTING: dict[str, tuple[str, ...]] = {
    "node": ("n1", "n2", "n3"),
    "nodes": ("n1", "n2", "n3"),
    "counting_on": ("n1", "n2", "n3"),
    "owner": ("n1", "n2", "owner-1"),
    "service": ("render", "mix"),
    "services": ("render", "mix"),
    "kind": ("service", "workflow", "node", "output", "input", "log", "sleep", "relay"),
    "name": ("render", "chain", "keyed", "n1", "t1"),
    "workflow": ("chain", "diamond", "keyed"),
    "workflows": ("chain", "keyed"),
    "key": ("disk", "a/b"),
    "keys": ("disk", "a", "a/b"),
    "from_steps": ("a", "b", "top"),
    "outcome": ("done", "error"),
    "task_keys": ("a", "each", "each[0]", "join"),
    "outcomes": ("done", "error", "delivered", "retry", "dead"),
    "levels": ("info", "warn", "error", "debug"),
    "types": ("log", "progress", "status"),
    "sources": ("api", "agent:render"),
    "events": ("job.done", "job.error", "notify"),
    "target": ("t1", "n1"),
    "topic": ("shop.order", "shop"),
    "which": ("nightly",),
    "awake_state": ("awake", "sleep", "unknown"),
    "state": ("awake", "sleep", "asleep", "ready"),
    "method": ("wol", "provider", "script"),
    "wake_method": ("wol", "provider", "script"),
    "mac": ("00:11:22:33:44:55",),
    "project": ("shop",),
    "env": ("prod", "staging"),
    "result": ("success", "failed"),
    "partition": ("task_events_2020_01", "task_events_default", "jobs"),
}
_IDS_OF = {
    **dict.fromkeys(("job", "job_ids", "jobs", "try", "tries"), "jobs"),
    **dict.fromkeys(("task", "task_ids"), "tasks"),
    **dict.fromkeys(("workflow", "workflow_ids", "workflows"), "workflows"),
    "id": "orders",
    "dead_letter_ids": "letters",
    "ids": "outbox",
    "claim": "claims",
    "deployment": "deployments",
}
_COLUMN_OF = {
    "task": "task_id",
    "task_ids": "task_id",
    "attempt_ids": "attempt_id",
    "job": "job_id",
    "job_ids": "job_id",
}
_PLAIN: dict[str, tuple[str, ...]] = {
    "uuid": ("01a1eb32-2289-71b2-8000-003000000000",),
    "integer": ("0", "1", "2", "100"),
    "bigint": ("0", "1", "2"),
    "numeric": ("0", "0.5", "1"),
    "double precision": ("0", "1", "15"),
    "real": ("0", "1", "15"),
    "boolean": ("true", "false"),
    "interval": ("1 s", "1 min", "0"),
    "timestamp with time zone": ("now", "tomorrow"),
    "timestamp without time zone": ("now", "tomorrow"),
    "jsonb": ("{}", '{"render": 1}', '{"from": "done", "to": "error"}'),
    "text": ("x", "because"),
    "cidr": ("10.0.0.0/8",),
    "bytea": ("\\x" + "00" * 32,),
}


def _given(random: Random, _known: Known) -> str | None:
    return random.choice(('{"with": {"item": 1}}', '{"with": {}, "now": "x"}', "{}", None, json_text(random)))


def _verdicts(random: Random, known: Known) -> str:
    """Mostly of tasks that wait to be resolved, and with one field that is odd now and then."""
    said: list[dict[str, Any]] = []
    for _ in range(random.choice((1, 1, 2, 5))):
        ids = known.ids["unresolved" if random.random() < 0.8 else "tasks"] or known.ids["tasks"]
        one: dict[str, Any] = {
            "task_id": random.choice(ids or ("x",)),
            "generation": random.choice((0, 0, 0, 1)),
            "verdict": random.choice(("run", "skip", "error", "done")),
            "given": {"with": {"x": 1}},
            "delay": random.choice((None, 0, 5)),
            "reason": random.choice(("condition_false", "template_error", "upstream_failed", None)),
        }
        if random.random() < 0.3:
            one[random.choice((*one, "message", "results"))] = random.choice((None, 5, "x", [], {}, 1e300, -1, True))
        said.append(one)
    return json.dumps(said)


# Arguments that mean something only as a whole.
_WRITTEN: dict[str, Callable[[Random, Known], str | None]] = {"given": _given, "verdicts": _verdicts}


async def find_verbs(conn: Connection, roles: Sequence[str]) -> list[Verb]:
    found: list[Verb] = []
    for row in await conn.fetch(_VERBS, roles):
        may_call = frozenset([*row["may_call"], OWNER] if row["may_call"] else [])
        found.append(Verb(row["name"], list(zip(row["names"], row["types"], strict=True)), row["optional"], may_call))
    return found


async def look(conn: Connection) -> Known:
    live = [dict(row) for row in await conn.fetch(_ATTEMPTS)]
    return Known(live, {name: [row[0] for row in await conn.fetch(query)] for name, query in _IDS.items()})


def made(random: Random, verbs: Sequence[Verb], known: Known, role: str) -> Call:
    """Mostly one argument is odd, so that the others do not stop the call before it comes to that one."""
    # The owner may do everything, also what damages: the pieces that no role is given are not for calling.
    is_allowed = role == OWNER or random.random() < 0.85
    candidates = [verb for verb in verbs if (role in verb.may_call) == is_allowed]
    (verb,) = random.choices(candidates, [len(each.arguments) + 0.2 for each in candidates])
    arguments = verb.arguments[: len(verb.arguments) - random.randrange(verb.optional + 1)]
    attempt = random.choice(known.live) if known.live and random.random() < 0.7 else {}
    share = random.choice((0, 0, 0, 0.3, 1))
    odd = {name for name, _ in arguments if random.random() < share}
    if arguments and random.random() < 0.7:
        odd.add(random.choice(arguments)[0])
    count = random.choice((1, 1, 2, 3))
    given = {
        name: _odd_argument(random, kind) if name in odd else _argument(random, known, name, kind, attempt, count)
        for name, kind in arguments
    }
    _with_a_task_to_resolve(random, verb, known, given)
    return Call(role, verb, given, is_kept=random.random() < 0.6)


def _with_a_task_to_resolve(random: Random, verb: Verb, known: Known, given: dict[str, str | None]) -> None:
    if verb.name == "fan_out" and known.ids.get("unresolved") and random.random() < 0.7:
        given["p_task"], given["p_generation"] = random.choice(known.ids["unresolved"]), "0"


def _argument(random: Random, known: Known, name: str, kind: str, attempt: Mapping[str, Any], count: int) -> str | None:
    """As somebody would give it who means it; the first of several is of one attempt that is under way."""
    if not kind.endswith("[]"):
        return _fitting(random, known, name, kind, attempt)
    values = [_fitting(random, known, name, kind[:-2], {} if n else attempt) for n in range(count)]
    return _array(values[:1] * count if random.random() < 0.15 else values)


def _fitting(random: Random, known: Known, name: str, kind: str, attempt: Mapping[str, Any]) -> str | None:
    short = name.removeprefix("p_")
    if short in _WRITTEN:
        return _WRITTEN[short](random, known)
    if (column := _COLUMN_OF.get(short, short)) in attempt:
        return str(attempt[column])
    if kind in ("uuid", "bigint") and (ids := known.ids.get(_IDS_OF.get(short, ""))):
        return random.choice(ids)
    if kind == "text" and short in _FITTING:
        return random.choice(_FITTING[short])
    if kind in _PLAIN:
        return random.choice(_PLAIN[kind])
    assert _is_row(kind), f"teach this fuzz the type {kind}"
    return None


def _odd_argument(random: Random, kind: str) -> str | None:
    """Of an array also: empty, long, with other bounds, of two dimensions, of another length than the others."""
    if random.random() < 0.1:
        return None
    if not kind.endswith("[]"):
        return _odd(random, kind)
    values = [_odd(random, kind[:-2]) for _ in range(random.choice((0, 1, 1, 2, 5)))]
    if random.random() < 0.05 and values and len(values[0] or "") < 100:
        values = values[:1] * 5_000
    literal = _array(values)
    chance = random.random()
    if chance < 0.15:
        return f"{{{literal},{literal}}}"
    return f"[5:{4 + len(values)}]={literal}" if chance < 0.2 and values else literal


def _odd(random: Random, kind: str) -> str | None:
    if random.random() < 0.1 or _is_row(kind):
        return None
    match kind:
        case "uuid":
            return random.choice(("00000000-0000-0000-0000-000000000000", f"{random.getrandbits(128):032x}", "x"))
        case "integer" | "bigint":
            return str(integer(random))
        case "numeric" | "double precision" | "real":
            return number(random)
        case "interval":
            return length(random)
        case "timestamp with time zone" | "timestamp without time zone":
            return moment(random)
        case "jsonb":
            return json_text(random)
        case "text":
            return text(random) if random.random() < 0.97 else "a\x00b"
        case "bytea":
            return random.choice(("", "\\x00", "\\x" + "ff" * 32, "\\x" + "00" * 5_000, "\\xZZ"))
        case "cidr":
            return random.choice(("::/0", "0.0.0.0/0", "10.0.0.1/8", "x"))
        case _:
            return random.choice(("true", "false", "maybe"))


def _is_row(kind: str) -> bool:
    return "." in kind or kind in ("jobs", "job_tasks", "schedules", "events", "task_events", "firings")


def _array(values: Sequence[str | None]) -> str:
    return "{" + ",".join(_element(value) for value in values) + "}"


def _element(value: str | None) -> str:
    if value is None:
        return "NULL"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
