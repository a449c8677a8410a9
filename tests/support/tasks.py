"""Commands that tasks of the tests run, as Python programs, and a count of executions that no database keeps.

Each is the text of a program for `python3 -c`. What a program notes goes to the file that its params name under "note":
one line for each execution, appended with one write, so that two that run at once don't mix.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.support.eventually import eventually

PREAMBLE = """
import json, os, signal, subprocess, sys, time
task = json.loads(sys.stdin.readline())
params = task["params"] | task["options"]
def say(**message): print(json.dumps(message), flush=True)
def note(*words):
    with open(params["note"], "a") as file:
        file.write(" ".join([task["task_key"], str(task["attempt_id"]), *map(str, words)]) + "\\n")
def until(name, seconds=60):
    deadline = time.monotonic() + seconds
    while not os.path.exists(params[name]):
        if time.monotonic() > deadline: sys.exit(f"{name} did not appear")
        time.sleep(0.02)
"""

NOTE = PREAMBLE + "note('ran')\nsay(type='result', results={'key': task['task_key']})\n"
# Notes its beginning, waits for the file `go`, prints lines meanwhile if `lines` says how many.
WAIT = (
    PREAMBLE
    + """
note('began', os.getpid())
for i in range(params.get('lines', 0)): print(f'line {i}', flush=True)
until('go')
for i in range(params.get('lines', 0), 2 * params.get('lines', 0)): print(f'line {i}', flush=True)
note('ended')
say(type='result', results={'pid': os.getpid()})
"""
)


# Does a little of everything: a line, progress, a file, a result.
EVERYTHING = (
    PREAMBLE
    + """
note('ran')
print('a line', flush=True)
say(type='progress', progress=0.5)
open('out.txt', 'w').write(task['task_key'])
say(type='artifact', path='out.txt')
say(type='result', results={'attempt': task['attempt_id']})
"""
)


def command(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def toml_service(name: str, program: str, **settings: Any) -> str:
    """A [services.NAME] table with runner process."""
    lines = [f"[services.{name}]", 'runner = "process"', f"command = {json.dumps(command(program))}"]
    return "\n".join(lines + [f"{key} = {json.dumps(value)}" for key, value in settings.items()]) + "\n"


def waiting(folder: Path) -> dict[str, Any]:
    """Options of a task that runs WAIT: it notes its beginning and waits until somebody makes the file `go`."""
    return {"note": str(folder / "notes"), "go": str(folder / "go")}


async def process_of(note: Path) -> Path:
    """The folder in /proc of the task that runs WAIT, once it has begun."""
    await eventually(lambda: notes(note), within=30)
    return Path(f"/proc/{notes(note)[0][3]}")


def attempt_folders(folder: Path, node: str = "n1") -> list[Path]:
    """What a daemon that was started in `folder` keeps of its attempts."""
    return list((folder / "state" / node / "attempts").iterdir())


def notes(path: Path) -> list[list[str]]:
    """What the tasks noted, in the order of their writing."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []
