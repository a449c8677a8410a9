"""Errors of an S3 server and of the way to it, as errors of errors.py.

Messages name the setting to look at, the bucket and the server; never a key's value.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self, cast
from urllib.parse import urlsplit

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
)

from accsd.errors import AccsdError, Bug, ConfigError, InvalidValue, NotFound, StorageUnavailable
from accsd.settings import StorageSettings

_AMAZON: Final = "Amazon S3"
_KEYS: Final = "storage.access_key (ACC_MINIO_ACCESS_KEY) and storage.secret_key (ACC_MINIO_SECRET_KEY)"
_WRONG_REGION: Final = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")


@dataclass(frozen=True, slots=True)
class Address:
    """The bucket and its server, as they may be shown."""

    bucket: str
    endpoint: str

    @classmethod
    def of(cls, settings: StorageSettings) -> Self:
        if settings.endpoint is None:
            return cls(settings.bucket, _AMAZON)
        parts = urlsplit(settings.endpoint)
        return cls(settings.bucket, f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}")

    def __str__(self) -> str:
        return f"bucket {self.bucket} at {self.endpoint}"


class NothingInRange(InvalidValue):
    """The object has no byte at that position."""


class BucketGone(StorageUnavailable):
    """The bucket existed, and does not any more."""


@contextmanager
def translating(address: Address, key: str | None = None) -> Generator[None]:
    try:
        yield
    except ClientError as error:
        raise _answered(error, address, key) from error
    except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, ProfileNotFound) as error:
        raise ConfigError(f"there are no credentials for {address}", hint=f"set {_KEYS}") from error
    except ParamValidationError as error:
        raise Bug(f"a request to {address} was malformed") from error
    except TimeoutError as error:
        raise StorageUnavailable(f"{address} did not answer in time") from error
    except (BotoCoreError, aiohttp.ClientError, OSError) as error:
        raise StorageUnavailable(f"{address} does not answer ({type(error).__name__})") from error


def status_of(error: ClientError) -> int:
    return int(cast("dict[str, Any]", error.response).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code_of(error: ClientError) -> str:
    """The error's code. An answer without a body (to HEAD) has only the status."""
    return str(cast("dict[str, Any]", error.response).get("Error", {}).get("Code", ""))[:100]


def _answered(error: ClientError, address: Address, key: str | None) -> AccsdError:
    status, code = status_of(error), code_of(error)
    match code:
        case "InvalidAccessKeyId":
            return ConfigError(f"{address}: storage.access_key (ACC_MINIO_ACCESS_KEY) is not known there")
        case "SignatureDoesNotMatch":
            return ConfigError(f"{address}: storage.secret_key (ACC_MINIO_SECRET_KEY) is not the access key's")
        case "RequestTimeTooSkewed":
            return StorageUnavailable(f"the clocks of this machine and of {address} differ too much", hint="run NTP")
        case "NoSuchBucket":
            return BucketGone(f"{address} is not there any more")
        case "InvalidBucketName":
            return ConfigError(f"storage.bucket: {address} refuses this name")
        case _ if code in _WRONG_REGION:
            return ConfigError(f"{address} is in another region ({code})", hint="set AWS_REGION")
        case _:
            return _by_status(status, code, address, key)


def _by_status(status: int, code: str, address: Address, key: str | None) -> AccsdError:
    if code == "NoSuchKey" or (status == 404 and code == "404"):
        return NotFound(f"there is no object {key} in {address}")
    if status == 416:
        return NothingInRange(f"object {key} in {address} ends before that")
    if status in (401, 403):
        return ConfigError(f"{address} does not permit it ({code})", hint=f"see {_KEYS} and what they may do")
    return StorageUnavailable(f"{address} answers with an error ({status} {code})")
