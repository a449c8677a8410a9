"""`accsd artifacts`: lists what a job has put out, and downloads it."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import click

from accsd.cli import completion
from accsd.cli.objects import elsewhere, objects, require_bucket
from accsd.cli.output import output_option, say, show, show_one
from accsd.cli.session import settings_of, with_database
from accsd.db.pool import Database
from accsd.db.views.artifacts import StoredArtifact, artifacts_of
from accsd.errors import InvalidValue, NotFound
from accsd.explain.identifiers import job_named
from accsd.explain.words import short
from accsd.settings import Settings
from accsd.storage import ObjectStore
from accsd.storage.base import check_key
from accsd.values.units import shown_size

_COLUMNS = {
    "id": "id",
    "task": "task",
    "kind": "kind",
    "name": "name",
    "size": "size",
    "content_type": "type",
    "created_at": "created",
}


@click.command()
@click.argument("job", shell_complete=completion.jobs)
@click.argument("action", required=False, type=click.Choice(["get"]))
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--to", "folder", type=click.Path(file_okay=False, path_type=Path), default=".", help="With get: where to."
)
@click.option("--task", "step", shell_complete=completion.steps, help="Only those of this step, or item of one.")
@click.option("--kind", type=click.Choice(["input", "output", "log"]), help="Only those of this kind.")
@click.option("--logs", "with_logs", is_flag=True, help="The parts of the tasks' logs too.")
@click.option("--force", is_flag=True, help="With get: replace files that are there.")
@output_option()
@click.pass_context
def artifacts(
    ctx: click.Context,
    job: str,
    action: str | None,
    names: Sequence[str],
    folder: Path,
    step: str | None,
    kind: str | None,
    with_logs: bool,
    force: bool,
    output: str,
) -> None:
    """List what a job has put out; with get, download it.

    A NAME is an id, a name, or STEP/NAME as the list shows them; without one, get takes all outputs. Each file becomes
    DIR/STEP/NAME, once it is complete and its checksum is right.

    \b
    accsd artifacts 3f2a91bc
    accsd artifacts 3f2a91bc get --to results
    accsd artifacts 3f2a91bc get render/out.wav
    """
    wanted = _Filter(step, kind, with_logs)
    settings = settings_of(ctx)

    async def work(db: Database) -> tuple[UUID, list[StoredArtifact], list[Path]]:
        job_id = await job_named(db, job)
        found = [artifact for artifact in await artifacts_of(db, job_id) if wanted.takes(artifact)]
        if action is None:
            return job_id, found, []
        chosen = _chosen(found, names, short(job_id))
        return job_id, chosen, await _download(settings, chosen, folder, force=force)

    job_id, found, files = with_database(ctx, work)
    if action is None:
        empty = f"job {short(job_id)} has put out nothing; `accsd why {short(job_id)}`"
        show([_row(artifact) for artifact in found], _COLUMNS, output, empty=empty)
    else:
        _tell_files(found, files, output)


@dataclass(frozen=True, slots=True)
class _Filter:
    step: str | None
    kind: str | None
    with_logs: bool

    def takes(self, artifact: StoredArtifact) -> bool:
        """Parts of logs are taken only where they were asked for."""
        return (
            (self.step in (None, artifact.task_key) or (artifact.task_key or "").startswith(f"{self.step}["))
            and self.kind in (None, artifact.kind)
            and (self.with_logs or self.kind == "log" or not artifact.is_log_segment)
        )


def _tell_files(artifacts: Sequence[StoredArtifact], files: Sequence[Path], output: str) -> None:
    for row, file in zip(map(_row, artifacts), files, strict=True):
        if output == "table":
            say(f"{file}  {row['size']}")
        else:
            show_one({**row, "file": file}, output, name="file")


def _row(artifact: StoredArtifact) -> dict[str, Any]:
    return {
        "id": artifact.id,
        "task": artifact.task_key,
        "attempt": artifact.attempt_id,
        "kind": artifact.kind,
        "name": artifact.name,
        "size": None if artifact.size_bytes is None else shown_size(artifact.size_bytes),
        "size_bytes": artifact.size_bytes,
        "content_type": artifact.content_type,
        "checksum": artifact.checksum,
        "bucket": artifact.bucket,
        "key": artifact.key,
        "created_at": artifact.created_at,
    }


def _chosen(found: Sequence[StoredArtifact], names: Sequence[str], job: str) -> list[StoredArtifact]:
    if not names:
        chosen = [artifact for artifact in found if artifact.kind == "output"]
        if not chosen:
            raise NotFound(f"job {job} has no outputs", hint=f"`accsd artifacts {job}` lists what there is")
        return chosen
    named: list[StoredArtifact] = []
    for name in names:
        matching = [one for one in found if name in (str(one.id), one.name, f"{one.task_key}/{one.name}", one.key)]
        if not matching:
            raise NotFound(f'job {job} has no artifact "{name}"', hint=f"`accsd artifacts {job}` lists them")
        named += [one for one in matching if one not in named]
    return named


async def _download(settings: Settings, chosen: Sequence[StoredArtifact], folder: Path, *, force: bool) -> list[Path]:
    """Checks all targets before the first byte is written."""
    targets = [_target(folder, artifact, force=force) for artifact in chosen]
    async with objects(settings) as store:
        for artifact, target in zip(chosen, targets, strict=True):
            await _fetch(settings, store, artifact, folder, target)
    return targets


def _target(folder: Path, artifact: StoredArtifact, *, force: bool) -> Path:
    parts = check_key(artifact.name)  # neither absolute nor upwards, whoever wrote the row
    target = folder.joinpath(*([artifact.task_key] if artifact.task_key else []), *parts)
    if not force and target.exists():
        raise InvalidValue(f"{target} exists already", hint="--force replaces it, --to names another folder")
    return target


async def _fetch(settings: Settings, store: ObjectStore, artifact: StoredArtifact, folder: Path, target: Path) -> None:
    require_bucket(store, artifact.bucket, artifact.key)
    _make_inside(folder, target.parent)
    try:
        await store.get_to(artifact.key, target, checksum=artifact.checksum, mode=0o644)
    except NotFound as missing:
        raise elsewhere(settings, missing) from missing


def _make_inside(folder: Path, parent: Path) -> None:
    """Makes a folder. A link may lead out of the target folder: nothing is written behind such a link."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        root = folder.resolve()
        nearest = parent
        while not nearest.exists():
            nearest = nearest.parent
        if not nearest.resolve().is_relative_to(root):
            raise InvalidValue(
                f"{parent} leads out of {folder}", hint="remove the link, or name another folder by --to"
            )
        with suppress(FileExistsError):
            parent.mkdir(parents=True)
    except OSError as error:
        raise InvalidValue(f"{parent} cannot be made: {error.strerror}", hint="name another folder by --to") from error
