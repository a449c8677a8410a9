"""Objects: where they are stored and how they are named."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from accsd.errors import ConfigError
from accsd.settings import StorageSettings
from accsd.storage.base import (
    ChecksumMismatch,
    Listed,
    ObjectStore,
    StoredObject,
    Timing,
    TooLarge,
    build_file_key,
    build_key,
)
from accsd.storage.file import FileStore

__all__ = [
    "ChecksumMismatch",
    "Listed",
    "ObjectStore",
    "StoredObject",
    "Timing",
    "TooLarge",
    "build_file_key",
    "build_key",
    "open_store",
]


@asynccontextmanager
async def open_store(
    settings: StorageSettings, *, default_folder: Path | None = None, timing: Timing | None = None
) -> AsyncGenerator[ObjectStore]:
    """The store that the settings name; `default_folder` where they name none.

    The store is not asked anything yet: `check()` says whether it can be used.
    """
    if (settings.url or "").startswith("file:"):
        yield FileStore(Path(unquote(urlsplit(settings.url or "").path)), settings.bucket)
    elif settings.url is not None or settings.endpoint is not None:
        from accsd.storage.s3 import S3Store  # the import takes most of a second: only where S3 is used

        async with S3Store.opened(settings, timing or Timing()) as store:
            yield store
    elif settings.access_key is not None or settings.secret_key is not None:
        raise ConfigError(
            "storage has keys, and neither a url nor an endpoint",
            hint="set storage.url = s3://bucket (ACC_STORAGE_URL), or storage.endpoint (ACC_MINIO_ENDPOINT)",
        )
    elif default_folder is not None:
        yield FileStore(default_folder, settings.bucket)
    else:
        raise ConfigError(
            "no storage is configured", hint="set storage.url (ACC_STORAGE_URL) to file:///folder or s3://bucket"
        )
