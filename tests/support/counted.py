"""Commands whose executions are counted where no database keeps them: in a file, by the command itself.

An execution appends `begin NODE SERVICE TASK ATTEMPT` and, `work` seconds later, the same with `end`: each in one
write, so that the order of the lines is the order of what happened on all nodes of a test.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

_SCRIPT = """
note() { printf '%s %s %s %s %s\\n' "$1" "$node" "$service" "$ACC_JOB_TASK_ID" "$ACC_ATTEMPT_ID" >>"$notes"; }
node=$1 service=$2 notes=$3
note begin
sleep "$4"
note end
"""


class Noted(NamedTuple):
    what: str
    node: str
    service: str
    task: str
    attempt: int


def counted_service(name: str, notes: Path, *, node: str, work: float = 0, **settings: Any) -> str:
    """A [services.NAME] table of a node's configuration."""
    command = ["/bin/sh", "-c", _SCRIPT, "counted", node, name, str(notes), str(work)]
    lines = [f"[services.{name}]", 'runner = "process"', f"command = {json.dumps(command)}"]
    return "\n".join(lines + [f"{key} = {json.dumps(value)}" for key, value in settings.items()]) + "\n"


def noted(notes: Path, what: str | None = None) -> list[Noted]:
    """In the order of their writing."""
    lines = notes.read_text().splitlines() if notes.exists() else []
    all_of_them = [Noted(*words[:4], attempt=int(words[4])) for words in map(str.split, lines)]
    return [line for line in all_of_them if what in (None, line.what)]


def executions(notes: Path) -> Counter[tuple[str, int]]:
    """How often each attempt of each task was begun. More than once is a bug, whoever did it."""
    return Counter((line.task, line.attempt) for line in noted(notes, "begin"))


def most_at_once(notes: Path) -> dict[tuple[str, str], int]:
    """For each node and service, how many ran at the same time at most."""
    running, most = Counter[tuple[str, str]](), dict[tuple[str, str], int]()
    for line in noted(notes):
        where = (line.node, line.service)
        running[where] += 1 if line.what == "begin" else -1
        most[where] = max(most.get(where, 0), running[where])
    return most
