"""Workflow files, YAML and JSON: each is taken or refused as WorkflowInvalid in words, within its time and memory."""

import json
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import orjson
import yaml

from accsd.cli import workflow_files
from accsd.errors import WorkflowInvalid
from accsd.model import WorkflowDef
from tests.fuzz.cases import Run, at_length, contained
from tests.fuzz.values import Files, in_a_folder, in_words, json_text, nested, value, with_odd_bytes

STEP_FIELDS: dict[str, tuple[Any, ...]] = {
    "key": ("a", "b", "c", "a.b", "A b"),
    "service": ("render", "s-1", "Render", "x" * 41),
    "depends_on": ([], ["a"], ["b"], ["nobody"], ["a", "a"], "a", 5),
    "default_params": ({}, {"n": 1}, {"big": "x" * 70_000}, []),
    "max_attempts": (1, 3, 0, 10**7, "3"),
    "backoff": ({"strategy": "fixed", "base": 1}, [1, 2, 3], {"base": -1}, "fast"),
    "timeout": (1, 600, 0.5, 0, 1e300, "10m"),
    "requires": ({}, {"gpu": True}, {"gpu": [1]}),
    "node": ("n1", ""),
    "concurrency_key": ("k", ""),
    "concurrency_limit": (1, 0),
    "when": ("true",),
}
DOCUMENT_FIELDS: dict[str, tuple[Any, ...]] = {
    "name": ("w", "", "x" * 201, 7),
    "version": (1, 2, 0, 2**31, "1"),
    "is_active": (True, "yes"),
    "notify": ([], ["job.done"], ["job.eaten"], "job.done"),
    "id": ("00000000-0000-7000-8000-000000000001", "x"),
    "created_at": ("2024-01-01",),
    "created_by": ("me",),
}
# YAML itself: aliases, tags, merges, numbers and dates that are none, several documents.
ODD_YAML = (
    "steps: &s [*s]\nname: w\n",
    "name: w\nsteps: &s [*s, *s]\n",
    "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 5)}]\n" for a, b in pairwise("abcdefgh")).replace("*a", "x")
    + "name: w\nsteps: [*h, *h]\n",
    "name: w\nsteps:\n- &a {key: a, service: s}\n- *a\n",
    "name: w\nsteps:\n- {key: a, service: s, default_params: &p {self: *p}}\n",
    "name: !!python/object/apply:os.system [id]\nsteps: []\n",
    "name: !!binary aGVsbG8=\nsteps: []\n",
    "name: !!set {a, b}\nsteps: !!omap [a: 1]\n",
    "name: !!timestamp 2024-13-45\nsteps: []\n",
    "name: 2024-99-99\nsteps: []\n",
    "name: w\nsteps:\n- {<<: {key: a}, service: s}\n- {<<: [{key: b}, 7], service: s}\n",
    "? [a, b]\n: c\nname: w\n",
    "? {a: b}\n: c\n",
    "name: w\nname: v\nsteps: []\n",
    "name: w\nsteps: []\n---\nname: v\nsteps: [{key: a, service: s}]\n---\n",
    "%YAML 9.9\n---\nname: w\n",
    "name: |\n  " + "x" * 100_000 + "\nsteps: []\n",
    "name: \tw\nsteps: []\n",
    "name: 0x" + "f" * 5_000 + "\nsteps: []\n",
    "name: " + "9" * 5_000 + "\nsteps: []\n",
    "name: 190:20:30\nsteps: []\n",
    "name: .inf\nsteps: .nan\n",
    "[" * 2_000 + "]" * 2_000,
    "- " * 2_000 + "x",
    "{a: " * 2_000 + "}" * 2_000,
    "*unknown\n",
    "name: 'w\n",
    "",
    "---\n",
    "7",
)
DEEP = "a nesting deeper than a writer of YAML makes"


def workflow_file(random: Random) -> Files:
    chance = random.random()
    if chance < 0.25:
        written = random.choice(ODD_YAML)
    elif chance < 0.3:
        written = json_text(random)
    else:
        written = random.choice((json.dumps, _as_yaml))(_document(random))
        written = written.replace(f'"{DEEP}"', DEEP).replace(DEEP, nested(random))
    content = written.encode("utf-8", "surrogatepass")
    for _ in range(random.choice((0, 0, 0, 1, 2))):
        content = with_odd_bytes(random, content)
    return {random.choice(("w.yaml", "w.yaml", "w.yml", "w.json")): content}


def _document(random: Random) -> Any:
    document: dict[Any, Any] = {"name": "w", "steps": [_step(random, key) for key in "abcd"[: random.randrange(5)]]}
    for _ in range(random.randrange(3)):
        field = random.choice((*DOCUMENT_FIELDS, "steps", "title"))
        fitting = DOCUMENT_FIELDS.get(field, ())
        document[field] = random.choice(fitting) if fitting and random.random() < 0.6 else value(random)
    if random.random() < 0.1:
        document[random.choice((7, None, True, 1.5))] = value(random)
    return document if random.random() < 0.95 else value(random)


def _step(random: Random, key: str) -> Any:
    step: dict[str, Any] = {"key": key, "service": "render"}
    for field in random.sample(list(STEP_FIELDS), random.choice((0, 1, 1, 2, 5))):
        step[field] = random.choice(STEP_FIELDS[field]) if random.random() < 0.6 else value(random)
    if random.random() < 0.05:
        step["default_params"] = {"deep": DEEP}
    return step if random.random() < 0.95 else value(random)


def _as_yaml(document: Any) -> str:
    try:
        return yaml.safe_dump(document, allow_unicode=True)
    except (yaml.YAMLError, RecursionError):
        return json.dumps(document)


def read_workflows(files: Files) -> None:
    def use(folder: Path) -> None:
        try:
            for document in workflow_files.read([str(folder)]):
                workflow = document.checked()
                assert isinstance(workflow, WorkflowDef)
                orjson.dumps(workflow.steps_document())
                workflow_files.canonical_yaml(workflow)
        except WorkflowInvalid as error:
            in_words(error)

    in_a_folder(files, use)


@at_length(cases=900)
def test_a_workflow_file_is_taken_or_refused_in_words(run: Run):
    contained(run, workflow_file, read_workflows)
