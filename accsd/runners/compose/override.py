"""What one attempt adds to its service, as a second compose file beside the node's own, in the attempt's folder.

It is a file rather than arguments: its values may hold any character, and nobody sees them in a list of processes.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from accsd.model.fence import Fence
from accsd.runners.base import TASK_FILE, Launch
from accsd.runners.compose.declared import Declared

OVERRIDE_FILE: Final = "compose.override.json"
TASK_FILE_NAMED_BY: Final = "ACC_TASK_FILE"
TASK_FILE_SEEN: Final = "/accsd/task.json"
WORKDIR_SEEN: Final = "/accsd/work"


def attempt_labels(node: str, service: str, fence: Fence) -> dict[str, str]:
    """The labels by which a container is known as this node's and this attempt's."""
    return {
        "accsd.node": node,
        "accsd.service": service,
        "accsd.task": str(fence.task_id),
        "accsd.attempt": str(fence.attempt_id),
    }


def write_override(declared: Declared, launch: Launch, node: str) -> Path:
    path = launch.folder / OVERRIDE_FILE
    document = {"services": {declared.service: _literally(_service(declared, launch, node))}}
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(orjson.dumps(document))
    return path


def _service(declared: Declared, launch: Launch, node: str) -> dict[str, Any]:
    labels = attempt_labels(node, declared.service, launch.fence) | {"accsd.job": str(launch.job_id)}
    return {
        "labels": labels,
        "environment": {**launch.environ, TASK_FILE_NAMED_BY: TASK_FILE_SEEN},
        "volumes": _mounts(launch),
        # The image was looked for before; a start must not wait for a registry.
        "pull_policy": "never",
        "logging": _logging(declared.limits.output),
        **_limits(declared.limits.memory, declared.limits.pids),
    }


def _mounts(launch: Launch) -> list[dict[str, Any]]:
    mounts = [_bind(launch.folder / TASK_FILE, TASK_FILE_SEEN, read_only=True)]
    if launch.workdir is not None:
        mounts.append(_bind(launch.workdir.here, launch.workdir.seen, read_only=False))
    return mounts


def _bind(source: Path, target: str, *, read_only: bool) -> dict[str, Any]:
    return {"type": "bind", "source": str(source.absolute()), "target": target, "read_only": read_only}


def _logging(output: int) -> dict[str, Any]:
    """`local` keeps every byte (see container_log.py). Two files as large as the limit: what exceeds it is cut off by
    the attempt long before the first is dropped, and while the agent is down the disk still does not fill up."""
    size = max(output, 1024 * 1024) + 1024 * 1024
    return {"driver": "local", "options": {"max-size": str(size), "max-file": "2", "compress": "false"}}


def _limits(memory: int | None, pids: int | None) -> dict[str, Any]:
    """The limits, in both places where compose reads them: it refuses different values."""
    simple: dict[str, Any] = {}
    deploy: dict[str, Any] = {}
    if memory:
        simple |= {"mem_limit": memory, "memswap_limit": memory}
        deploy["memory"] = str(memory)
    if pids:
        simple["pids_limit"] = pids
        deploy["pids"] = pids
    return simple | ({"deploy": {"resources": {"limits": deploy}}} if deploy else {})


def _literally(value: Any) -> Any:
    """Doubles every $, because compose would replace $NAME in every text."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, Mapping):
        return {name: _literally(its) for name, its in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [_literally(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    return value
