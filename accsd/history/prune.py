"""Removes finished jobs when their time is over, and their objects after them."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from accsd.db import history
from accsd.db.files import named_files
from accsd.db.history import Removed
from accsd.db.pool import Database
from accsd.errors import InvalidValue
from accsd.settings import RetentionSettings
from accsd.storage import ObjectStore

_BATCH: Final = 500


async def prune_jobs(db: Database, kept: RetentionSettings, *, dry_run: bool = False) -> list[Removed]:
    """Walks once along all jobs; returns what was removed, by workflow. A dry run counts what would go."""
    if not kept.removes_jobs:
        return []
    found: list[Removed] = []
    after: int | None = 0
    while after is not None:
        page = await history.delete_finished_jobs(
            db, age=kept.jobs_age, workflows=kept.workflow_ages, after=after, dry_run=dry_run
        )
        found += page.removed
        after = page.next_after
    return _by_workflow(found)


async def remove_doomed(db: Database, store: ObjectStore) -> int:
    """Removes the objects of removed jobs from the store: the object first, then the note of it. An output that a
    workflow version has among its files stays."""
    removed = 0
    while keys := await history.doomed_objects(db, store.bucket, limit=_BATCH):
        named = await named_files(db, keys)
        for key in keys:
            if key in named:
                continue
            with suppress(InvalidValue):  # no object can have such a key, and other keys wait behind it
                await store.delete(key)
        removed += await history.forget_objects(db, store.bucket, keys)
    return removed


def _by_workflow(pages: Iterable[Removed]) -> list[Removed]:
    sums: dict[str, Removed] = {}
    for one in pages:
        before = sums.get(one.workflow, Removed(one.workflow, 0, 0, 0, 0, 0))
        sums[one.workflow] = Removed(
            one.workflow,
            before.jobs + one.jobs,
            before.tasks + one.tasks,
            before.artifacts + one.artifacts,
            before.bytes + one.bytes,
            before.kept + one.kept,
        )
    return [sums[name] for name in sorted(sums)]
