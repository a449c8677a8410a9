"""The files of a workflow version: objects in the store that are laid into its tasks. Their author names files of his
own machine (`source`); what is stored names objects, by key and checksum."""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from accsd.errors import InvalidValue

MOST_FILES: Final = 1000
LARGEST_FILES: Final = 100 * 1024**3  # bytes of all files of a workflow together
_LONGEST_NAME: Final = 500  # bytes; 255 in each part, as file systems have it
_LONGEST_PART: Final = 255
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def check_file_name(name: str) -> str:
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\\" in part or not part.isprintable() for part in parts):
        raise InvalidValue('must be a relative path such as fonts/a.ttf, without ".", ".." and "\\"')
    if len(name.encode()) > _LONGEST_NAME or any(len(part.encode()) > _LONGEST_PART for part in parts):
        raise InvalidValue(f"is too long: at most {_LONGEST_NAME} bytes, {_LONGEST_PART} in each part")
    return name


def _check_sha256(digits: str) -> str:
    if not _SHA256.fullmatch(digits):
        raise InvalidValue("must be 64 hex digits, in lower case")
    return digits


class WorkflowFile(BaseModel):
    """`source` is a path, relative to the workflow file; or else `key` is an object that is in the store."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, AfterValidator(check_file_name)]
    source: Annotated[str, Field(min_length=1)] | None = None
    key: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    sha256: Annotated[str, AfterValidator(_check_sha256)] | None = None
    size: int | None = Field(default=None, ge=0, le=LARGEST_FILES, strict=True)

    @model_validator(mode="after")
    def _is_here_or_there(self) -> Self:
        if (self.source is None) == (self.key is None):
            raise InvalidValue(
                "has a source (a file beside the workflow's) or a key (an object in the store): one of them"
            )
        if self.source is not None and (self.sha256 is not None or self.size is not None):
            raise InvalidValue("has a source, of which accsd works out sha256 and size itself")
        if self.key is not None and self.sha256 is None:
            raise InvalidValue("has a key but no sha256, by which nodes know the object")
        return self

    @property
    def meaning(self) -> dict[str, Any]:
        """What makes it the file that it is; its size follows from that."""
        return {"name": self.name, "key": self.key, "sha256": self.sha256}


def check_files(files: Sequence[WorkflowFile]) -> Sequence[WorkflowFile]:
    names: set[str] = set()
    for file in files:
        if file.name in names:
            raise InvalidValue(f'has the name "{file.name}" twice')
        names.add(file.name)
    if both := sorted(names & folders_of(names)):
        raise InvalidValue(f'has "{both[0]}" as a file, and as a folder of files')
    if sum(file.size or 0 for file in files) > LARGEST_FILES:
        raise InvalidValue(f"has more than {LARGEST_FILES // 1024**3} GiB")
    return files


def folders_of(names: Iterable[str]) -> set[str]:
    """The folders that files of these names are in, at any depth."""
    found: set[str] = set()
    for name in names:
        while (name := name.rpartition("/")[0]) and name not in found:
            found.add(name)
    return found
