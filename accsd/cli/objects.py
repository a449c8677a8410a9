"""The object store as a command on this machine reaches it: the one of the settings, or the default of its nodes."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from accsd.errors import ConfigError, NotFound
from accsd.settings import Settings, environment, state_folder
from accsd.storage import ObjectStore, open_store


@asynccontextmanager
async def objects(settings: Settings) -> AsyncGenerator[ObjectStore]:
    async with open_store(settings.storage, default_folder=default_folder(settings)) as store:
        yield store


def default_folder(settings: Settings) -> Path:
    """Where the daemons of this machine keep objects while no store is configured."""
    return state_folder(settings, environment()).parent / "objects"


def is_default(settings: Settings) -> bool:
    return settings.storage.url is None and settings.storage.endpoint is None


def require_store(settings: Settings) -> None:
    """For what can't be undone: on a machine that has never been a node, nobody else reads the default folder. A month
    that was stored there and dropped from the database would be lost."""
    if is_default(settings) and not state_folder(settings, environment()).is_dir():
        raise ConfigError(
            "no storage is configured, and no node keeps its objects on this machine",
            hint="give it the storage settings of the nodes: storage.url (ACC_STORAGE_URL)",
        )


def require_bucket(store: ObjectStore, bucket: str, key: str) -> None:
    if store.bucket != bucket:
        raise ConfigError(
            f'{key} is in bucket "{bucket}", and this command is configured for "{store.bucket}"',
            hint="give it the storage settings of the nodes: ACC_STORAGE_URL, ACC_MINIO_BUCKET",
        )


def elsewhere(settings: Settings, missing: NotFound) -> NotFound:
    """An object that is on record and not in the store is most likely on another machine's disk."""
    if is_default(settings):
        hint = (
            f"it is on the disk of the node that ran it, not in {default_folder(settings)} here: configure storage.url"
        )
    else:
        hint = "its retention is over, or storage.url is not that of the nodes; `accsd doctor` checks the store"
    return NotFound(missing.message, hint=hint)
