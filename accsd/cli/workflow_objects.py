"""The files that a workflow names, on their way from its author's machine into the object store."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from accsd.cli.objects import elsewhere, objects, require_store
from accsd.cli.output import say
from accsd.db.files import named_files
from accsd.db.pool import Database
from accsd.errors import InvalidValue, NotFound, WorkflowInvalid
from accsd.model import WorkflowDef
from accsd.model.files import WorkflowFile
from accsd.settings import Settings
from accsd.storage import ObjectStore, build_file_key
from accsd.values.units import shown_size

_CHANGED: Final = "it was changed while it was read"


def hashed(workflows: Sequence[WorkflowDef]) -> tuple[list[WorkflowDef], dict[str, Path]]:
    """The workflows with the keys that their sources have in the store, and these sources by key."""
    sources: dict[str, Path] = {}
    known: dict[str, WorkflowFile] = {}

    def named(file: WorkflowFile) -> WorkflowFile:
        if file.source is None:
            return file
        if file.source not in known:
            digest, size = _read(file, Path(file.source))
            known[file.source] = WorkflowFile(name=file.name, key=build_file_key(digest), sha256=digest, size=size)
            sources[build_file_key(digest)] = Path(file.source)
        return known[file.source].model_copy(update={"name": file.name})

    return [
        one.model_copy(update={"files": [named(file) for file in one.files]}) if one.files else one for one in workflows
    ], sources


def _read(file: WorkflowFile, path: Path) -> tuple[str, int]:
    try:
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
            return digest, opened.tell()
    except OSError as error:
        raise InvalidValue(f'file "{file.name}": {path} can\'t be read: {error.strerror}') from error


async def stored(
    db: Database,
    settings: Settings,
    workflows: Sequence[WorkflowDef],
    sources: Mapping[str, Path],
    *,
    again: bool = False,
) -> list[WorkflowDef]:
    """Puts what the store lacks into it; returns the workflows with the sizes of their files. `again`: puts all
    sources, whatever is there."""
    if not any(one.files for one in workflows):
        return list(workflows)
    require_store(settings)
    async with objects(settings) as store:
        # What no version names may be about to be removed (`accsd history orphans`): put again, it is young.
        kept: set[str] = set() if again else await named_files(db, list(sources))
        for key, source in sources.items():
            if key not in kept or not await _is_there(store, key, source.stat().st_size):
                await _put(store, key, source)
        return [
            one.model_copy(update={"files": [await _sized(settings, store, one, file) for file in one.files]})
            for one in workflows
        ]


async def _is_there(store: ObjectStore, key: str, size: int) -> bool:
    try:
        return (await store.stat(key)).size_bytes == size
    except NotFound:
        return False


async def _put(store: ObjectStore, key: str, source: Path) -> None:
    put = await store.put_file(key, source)
    if build_file_key(put.checksum.removeprefix("sha256:")) != key:
        await store.delete(key)  # under this key nobody may find other bytes
        raise InvalidValue(f"{source} was not stored: {_CHANGED}", hint="apply the workflow again")
    say(f"stored {source.name}, {shown_size(put.size_bytes)}", err=True)


async def _sized(settings: Settings, store: ObjectStore, workflow: WorkflowDef, file: WorkflowFile) -> WorkflowFile:
    assert file.key is not None, "sources have their keys by now"
    if file.size is not None:
        return file
    try:
        return file.model_copy(update={"size": (await store.stat(file.key)).size_bytes})
    except (NotFound, InvalidValue) as error:
        hint = elsewhere(settings, error).hint if isinstance(error, NotFound) else error.hint
        said = f'workflow "{workflow.name}": file "{file.name}": there is no object {file.key} in the store'
        raise WorkflowInvalid(said, hint=hint) from error
