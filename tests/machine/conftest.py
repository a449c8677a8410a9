"""What tests of this machine share: a server that speaks S3."""

from collections.abc import Iterator

import pytest

from tests.support import objectstore
from tests.support.objectstore import S3Server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    try:
        with objectstore.running() as server:
            yield server
    except objectstore.NoServer as reason:
        pytest.skip(str(reason))
