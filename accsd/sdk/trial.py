"""`python service.py --try '{"params": {…}}'`: runs one task on the author's own machine, and shows it in words."""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from accsd.sdk.wire import Task
from accsd.values.validation import did_you_mean

_GIVEN: Final = ("params", "options", "inputs")
_USAGE: Final = 64
_ENDINGS: Final = {0: "done", 65: "failed for good", 75: "failed, to be tried again", 143: "cancelled"}


def try_out(
    perform: Callable[[Task[Any]], int],
    service: str,
    document: str,
    inputs: Sequence[str],
    workdir: str | None,
    files: Sequence[str] = (),
) -> int:
    """Runs the task; returns its exit code. The folder stays, so that the author can look at the files."""
    try:
        given = _read(document)
        folder = Path(workdir or tempfile.mkdtemp(prefix=f"{service}-")).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        artifacts = [_lay(folder, each) for each in inputs]
        laid = [_lay_file(folder, each) for each in files]
    except (OSError, ValueError) as error:
        sys.stderr.write(f"--try: {error}\n")
        return _USAGE
    # No attempt_id: an author tries again and again in one folder, and each try must run.
    laid_out = {"artifacts": artifacts, "files": laid, "workdir": str(folder)}
    envelope = {**given, "service": service, "task_key": service, **laid_out}
    code = perform(Task(envelope, lambda message: _show(message, folder)))
    _write(f"{_ENDINGS.get(code, 'failed')} (exit code {code}); its files are in {folder}")
    return code


def _read(document: str) -> dict[str, Any]:
    try:
        given = json.loads(document)
    except ValueError as error:
        raise ValueError(f"this is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise ValueError("a JSON object is needed")
    for name, value in cast("dict[str, Any]", given).items():
        if name not in _GIVEN:
            raise ValueError(f'"{name}" is none of {", ".join(_GIVEN)}{did_you_mean(name, _GIVEN)}')
        if not isinstance(value, dict):
            raise ValueError(f'"{name}" must be a JSON object')
    return cast("dict[str, Any]", given)


def _lay(folder: Path, written: str) -> dict[str, Any]:
    """Copies an input to where accsd would lay it: STEP=FILE, or =FILE for one that came with the job."""
    step, separator, file = written.partition("=")
    if not separator or not Path(file).is_file():
        raise ValueError(f"--input {written} is not STEP=FILE with a file that exists")
    target = folder / "inputs" / (step or "_job") / Path(file).name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)
    return {"task_key": step or None, "name": target.name, "path": str(target.relative_to(folder))}


def _lay_file(folder: Path, written: str) -> dict[str, Any]:
    """Copies a file of the workflow to where accsd would lay it: NAME=FILE."""
    name, _, file = written.partition("=")
    target = folder / "files" / name
    if not name or not Path(file).is_file() or not target.resolve().is_relative_to((folder / "files").resolve()):
        raise ValueError(f"--file {written} is not NAME=FILE with a file that exists")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)
    return {"name": name, "path": str(target.relative_to(folder))}


def _show(message: Mapping[str, Any], folder: Path) -> None:
    match message["type"]:
        case "progress":
            _write(f"{message['progress']:6.0%}  {message.get('message', '')}".rstrip())
        case "log":
            data = f"  {json.dumps(message['data'], default=str)}" if "data" in message else ""
            _write(f"{message['level']:>6}  {message['message']}{data}")
        case "artifact":
            _write(f"  file  {folder / message['path']}  {message['content_type'] or ''}".rstrip())
        case "result":
            _write(f"result  {json.dumps(message['results'], ensure_ascii=False)}")
        case _:
            pass


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
