"""Object keys. Only accsd builds them, and no value that a caller gives can leave `{kind}s/{job_id}/{task_key}/`.

With an attempt in it the key is fenced like every other write: two attempts at a task never touch each other's objects.
"""

import re
from uuid import UUID

from accsd.errors import InvalidValue
from accsd.model.state import ArtifactKind
from accsd.values.names import check_step_key

_EXTENSION = re.compile(r"[A-Za-z0-9]+(?:\.[A-Za-z0-9]+)*")
_LONGEST_EXTENSION = 16
_LONGEST_PART = 255  # bytes: the limit of file systems for a name
_LONGEST_KEY = 1024  # bytes: the limit of S3 for a key


def build_key(
    job_id: UUID | str,
    task_key: str,
    kind: ArtifactKind | str,
    ext: str | None = None,
    *,
    attempt_id: int | None = None,
    name: str | None = None,
) -> str:
    """`outputs/{job_id}/{task_key}/[{attempt_id}/]{name}[.ext]`; the name is the kind where none is given.

    `name` may have folders (`frames/001.png`). A log is `.jsonl` unless another extension is given.
    """
    kind = _kind(kind)
    parts = [f"{kind}s", _job(job_id), check_step_key(task_key)]
    if attempt_id is not None:
        parts.append(_attempt(attempt_id))
    parts.append(_name(name or kind.value) + _suffix(ext, kind, name))
    return _bounded("/".join(parts))


def _kind(kind: ArtifactKind | str) -> ArtifactKind:
    try:
        return ArtifactKind(kind)
    except ValueError:
        raise InvalidValue("the kind of an artifact must be input, output or log") from None


def _job(job_id: UUID | str) -> str:
    try:
        return str(job_id if isinstance(job_id, UUID) else UUID(job_id))
    except ValueError:
        raise InvalidValue("the job id of an object key must be a UUID") from None


def _attempt(attempt_id: int) -> str:
    if attempt_id < 0:
        raise InvalidValue("the attempt of an object key must not be negative")
    return str(attempt_id)


def _name(name: str) -> str:
    for part in name.split("/"):
        if part in ("", ".", "..") or "\\" in part or not part.isprintable():
            raise InvalidValue(
                'the name of an object must be a relative path of printable characters, without "." or ".."'
            )
    return name


def _suffix(ext: str | None, kind: ArtifactKind, name: str | None) -> str:
    """The extension, unless the name ends with it already."""
    if ext is None:
        ext = "jsonl" if kind is ArtifactKind.LOG else ""
    suffix = ext.removeprefix(".")
    if not suffix:
        return ""
    if len(suffix) > _LONGEST_EXTENSION or not _EXTENSION.fullmatch(suffix):
        raise InvalidValue("the extension of an object must be letters and digits, such as wav or tar.gz")
    return "" if name is not None and name.endswith(f".{suffix}") else f".{suffix}"


def _bounded(key: str) -> str:
    if len(key.encode()) > _LONGEST_KEY or any(len(part.encode()) > _LONGEST_PART for part in key.split("/")):
        raise InvalidValue(f"the object key is too long: at most {_LONGEST_KEY} bytes, {_LONGEST_PART} in each part")
    return key
