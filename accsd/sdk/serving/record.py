"""The record of one task: a folder with its envelope, its output and, at last, its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ENVELOPE, STDOUT, STDERR, END = "task.json", "stdout", "stderr", "end"
DRAINING = "draining"  # beside the records


def name_of(task: object, attempt: object, node: str) -> str:
    return f"{task}.{attempt}@{node}"


def conclude(record: Path, code: int | None, lost: str | None) -> None:
    draft = record / f"{END}.draft"
    draft.write_text(json.dumps({"exit_code": code, "lost": lost}))
    draft.replace(record / END)


def sizes(record: Path) -> dict[str, int]:
    return {name: (record / name).stat().st_size for name in (STDOUT, STDERR)}


def status(record: Path) -> dict[str, Any]:
    task, _, attempt = record.name.partition("@")[0].rpartition(".")
    try:
        end = json.loads((record / END).read_text())
        state = "ended"
    except OSError:
        end, state = {}, "running"
    # Sizes are read after the end: then they are final.
    return {"task_id": task, "attempt_id": int(attempt), "state": state, **end, **sizes(record)}
