"""Makes a client of S3 from the settings: its keys, its deadlines, and options that suit every server."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Final, cast

import anyio
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from pydantic import SecretStr

from accsd.errors import ConfigError
from accsd.settings import StorageSettings
from accsd.storage.base import Timing
from accsd.storage.s3_failures import Address, translating

MINIO_REGION: Final = "us-east-1"  # unless the server is configured otherwise


@asynccontextmanager
async def s3_client(settings: StorageSettings, address: Address, timing: Timing) -> AsyncGenerator[Any]:
    options = _options(settings, timing)
    with translating(address):
        creating = cast("Any", _session().create_client("s3", **options))
        try:
            client = await creating.__aenter__()
        except ValueError:
            raise ConfigError(f"storage.endpoint: {address.endpoint} is no address of a server") from None
    try:
        yield client
    finally:
        with anyio.CancelScope(shield=True):
            await creating.__aexit__(None, None, None)


@cache
def _session() -> AioSession:
    """The session, made once: it keeps the description of S3, which takes a third of a second to read."""
    return AioSession()


def _options(settings: StorageSettings, timing: Timing) -> dict[str, Any]:
    keys = {"access_key": settings.access_key, "secret_key": settings.secret_key}
    absent = [name for name, value in keys.items() if value is None]
    # Amazon's own machines may have a role instead of keys; one key of the pair alone is a mistake.
    if absent and (settings.endpoint is not None or len(absent) == 1):
        variables = " and ".join(f"ACC_MINIO_{name.upper()}" for name in absent)
        raise ConfigError(f"storage.{' and storage.'.join(absent)}: not set", hint=f"set {variables}")
    return {
        "endpoint_url": settings.endpoint,
        "region_name": MINIO_REGION if settings.endpoint else None,
        "aws_access_key_id": _plain(settings.access_key),
        "aws_secret_access_key": _plain(settings.secret_key),
        "config": AioConfig(
            signature_version="s3v4",
            connect_timeout=timing.connect.total_seconds(),
            read_timeout=timing.silence.total_seconds(),
            retries={"mode": "standard", "total_max_attempts": timing.tries},
            max_pool_connections=32,
            # Signing the payload lets every server verify each part; not every server knows the newer checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"payload_signing_enabled": True, "addressing_style": "path" if settings.endpoint else "auto"},
        ),
    }


def _plain(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret is not None else None
