"""Objects in a bucket of S3, MinIO or any server that speaks their protocol.

Importing aiobotocore takes most of a second, so open_store imports this module, and only where it is used. Opening
sends nothing to the server: a daemon starts while its store is away. The first call looks for the bucket.
"""

import io
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self

import anyio
import anyio.to_thread
from botocore.exceptions import ClientError

from accsd.errors import AccsdError, ConfigError
from accsd.log import get_logger
from accsd.settings import StorageSettings
from accsd.storage.base import (
    MOST_BYTES_AT_ONCE,
    Listed,
    StoredObject,
    Timing,
    TooLarge,
    check_key,
    check_prefix,
    check_span,
    content_type_or_default,
)
from accsd.storage.local import CHUNK, Running, Source, arriving_at
from accsd.storage.s3_client import MINIO_REGION, s3_client
from accsd.storage.s3_failures import Address, BucketGone, NothingInRange, code_of, status_of, translating

PART: Final = 8 * 1024 * 1024  # bytes of a file that are held in memory while it is sent
PAGE = 1000  # objects of a listing
_MOST_PARTS: Final = 10_000  # S3 takes no more, so the parts of a huge file are larger
_ABORT_WITHIN: Final = 10.0
_MADE_BY_ANOTHER: Final = ("BucketAlreadyOwnedByYou", "BucketAlreadyExists", "OperationAborted")

_log = get_logger(component="storage")


class S3Store:
    def __init__(self, client: Any, address: Address, timing: Timing) -> None:
        self._client = client
        self._address = address
        self._timing = timing
        self._looking = anyio.Lock()
        self._bucket_found = False

    @classmethod
    @asynccontextmanager
    async def opened(cls, settings: StorageSettings, timing: Timing) -> AsyncGenerator[Self]:
        address = Address.of(settings)
        async with s3_client(settings, address, timing) as client:
            yield cls(client, address, timing)

    @property
    def bucket(self) -> str:
        return self._address.bucket

    async def check(self) -> None:
        self._bucket_found = False
        await self._find_bucket()

    async def put_file(
        self, key: str, source: Path | int, *, content_type: str | None = None, limit: int | None = None
    ) -> StoredObject:
        check_key(key)
        kind, running = content_type_or_default(content_type), Running(key, limit)
        async with Source.of(source, running) as reading:
            size_of_part = max(PART, -(-await reading.size() // _MOST_PARTS))
            part = await reading.read(size_of_part)
            if len(part) < size_of_part:
                await self._ask("put_object", key, Body=io.BytesIO(part), ContentType=kind)
            else:
                async with self._uploading(key, kind) as send:
                    while part:
                        await send(part)
                        part = await reading.read(size_of_part)
        return StoredObject(self.bucket, key, running.size, running.checksum, kind)

    async def put_bytes(self, key: str, data: bytes, *, content_type: str | None = None) -> StoredObject:
        check_key(key)
        kind, running = content_type_or_default(content_type), Running(key, None)
        await anyio.to_thread.run_sync(running.add, data)
        await self._ask("put_object", key, Body=io.BytesIO(data), ContentType=kind)
        return StoredObject(self.bucket, key, running.size, running.checksum, kind)

    async def get_to(
        self, key: str, target: Path, *, checksum: str | None = None, limit: int | None = None, mode: int = 0o600
    ) -> StoredObject:
        check_key(key)
        running = Running(key, limit)
        async with self._body(key) as body, arriving_at(target, running, checksum, mode) as arrival:
            while chunk := await self._read(body, key):
                await anyio.to_thread.run_sync(running.add, chunk)
                await arrival.write(chunk)
        return StoredObject(self.bucket, key, running.size, running.checksum)

    async def get_bytes(
        self, key: str, *, start: int = 0, length: int | None = None, checksum: str | None = None
    ) -> bytes:
        check_key(key)
        check_span(start, length)
        data = await self._read_part(key, start, length)
        running = Running(key, None)
        await anyio.to_thread.run_sync(running.add, data)
        running.verify(checksum)
        return data

    async def stat(self, key: str) -> Listed:
        check_key(key)
        answer = await self._ask("head_object", key)
        return Listed(key, answer["ContentLength"], answer["LastModified"])

    async def list(self, prefix: str = "") -> AsyncIterator[Listed]:
        check_prefix(prefix)
        more: dict[str, str] = {}
        while True:
            page = await self._ask("list_objects_v2", None, Prefix=prefix, MaxKeys=PAGE, **more)
            for item in page.get("Contents", ()):
                yield Listed(item["Key"], item["Size"], item["LastModified"])
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    async def delete(self, key: str) -> None:
        check_key(key)
        await self._ask("delete_object", key)

    @asynccontextmanager
    async def _uploading(self, key: str, kind: str) -> AsyncGenerator[Callable[[bytes], Awaitable[None]]]:
        """Parts become an object if the block ends well, and are removed otherwise."""
        begun = await self._ask("create_multipart_upload", key, ContentType=kind)
        upload = {"UploadId": begun["UploadId"]}
        sent: list[dict[str, Any]] = []

        async def send(part: bytes) -> None:
            number = len(sent) + 1
            answer = await self._ask("upload_part", key, PartNumber=number, Body=io.BytesIO(part), **upload)
            sent.append({"PartNumber": number, "ETag": answer["ETag"]})

        try:
            yield send
            await self._ask("complete_multipart_upload", key, MultipartUpload={"Parts": sent}, **upload)
        except BaseException:
            await self._abort(key, upload)
            raise

    async def _abort(self, key: str, upload: dict[str, str]) -> None:
        """Removes parts that will never be completed: they cost money for ever. Where this fails too, the bucket's
        lifecycle must remove them, and the caller hears of the first failure."""
        with anyio.move_on_after(_ABORT_WITHIN, shield=True):
            try:
                with translating(self._address, key):
                    await self._client.abort_multipart_upload(Bucket=self.bucket, Key=key, **upload)
            except AccsdError as error:
                _log.warning("upload_not_aborted", key=key, error=str(error))

    @asynccontextmanager
    async def _body(self, key: str, **options: Any) -> AsyncGenerator[Any]:
        body = (await self._ask("get_object", key, **options))["Body"]
        try:
            yield body
        finally:
            body.close()  # closes the connection where bytes are left unread

    async def _read(self, body: Any, key: str) -> bytes:
        """Reads a whole chunk within the time of one request: a store that gives a byte a second is away, too."""
        parts: list[bytes] = []
        missing = CHUNK
        with translating(self._address, key), anyio.fail_after(self._timing.request.total_seconds()):
            while missing and (some := await body.read(missing)):
                parts.append(some)
                missing -= len(some)
        return b"".join(parts)

    async def _read_part(self, key: str, start: int, length: int | None) -> bytes:
        if length == 0:
            await self.stat(key)
            return b""
        last = start + (length or MOST_BYTES_AT_ONCE + 1) - 1
        parts: list[bytes] = []
        try:
            async with self._body(key, Range=f"bytes={start}-{last}") as body:
                while chunk := await self._read(body, key):
                    parts.append(chunk)
        except NothingInRange:
            return b""
        if sum(map(len, parts)) > MOST_BYTES_AT_ONCE:
            raise TooLarge(f"object {key} is larger than the {MOST_BYTES_AT_ONCE} bytes that are read at once")
        return b"".join(parts)

    async def _ask(self, operation: str, key: str | None, **arguments: Any) -> dict[str, Any]:
        await self._find_bucket()
        if key is not None:
            arguments["Key"] = key
        try:
            with translating(self._address, key):
                return await self._request(operation, **arguments)
        except BucketGone:
            self._bucket_found = False
            raise

    async def _request(self, operation: str, **arguments: Any) -> dict[str, Any]:
        with anyio.fail_after(self._timing.request.total_seconds()):
            return await getattr(self._client, operation)(Bucket=self.bucket, **arguments)

    async def _find_bucket(self) -> None:
        async with self._looking:
            if self._bucket_found:
                return
            with translating(self._address):
                if not await self._bucket_exists():
                    await self._make_bucket()
            self._bucket_found = True

    async def _bucket_exists(self) -> bool:
        try:
            await self._request("head_bucket")
        except ClientError as error:
            if status_of(error) == 404:
                return False
            if status_of(error) >= 500:
                raise
        else:
            return True
        try:
            await self._request("list_objects_v2", MaxKeys=1)  # HEAD has no body to give a reason; this answer has
        except ClientError as error:
            if code_of(error) != "AccessDenied":  # the bucket exists, but listing is not permitted: that may be meant
                raise
        return True

    async def _make_bucket(self) -> None:
        region = self._client.meta.region_name
        elsewhere = region not in (None, "aws-global", MINIO_REGION)
        where = {"CreateBucketConfiguration": {"LocationConstraint": region}} if elsewhere else {}
        try:
            await self._request("create_bucket", **where)
        except ClientError as error:
            if code_of(error) in _MADE_BY_ANOTHER:
                return
            if status_of(error) == 403:
                raise ConfigError(
                    f"{self._address} does not exist, and storage.access_key may not make it",
                    hint="make the bucket, or name another in storage.bucket",
                ) from error
            raise
