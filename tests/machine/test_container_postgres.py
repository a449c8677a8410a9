"""The schema on a PostgreSQL in a container: another build of the server, other defaults, reached over TCP.

The image is whatever ACC_TEST_POSTGRES_IMAGE names (`accsd-test-postgres` unless set). It must take the
variables of the official image (POSTGRES_USER, POSTGRES_PASSWORD, POSTGRES_DB) and listen on 5432.
Nothing is pulled.
"""

import os
from collections.abc import Iterator

import asyncpg
import pytest

from tests.support.cluster import Connection, database_on, install_schema, make_template, run_in_thread
from tests.support.eventually import eventually

IMAGE = os.environ.get("ACC_TEST_POSTGRES_IMAGE", "accsd-test-postgres")
PASSWORD = "container"

pytestmark = pytest.mark.needs_docker


def why_not() -> str | None:
    """The reason why this machine cannot run the container, or None."""
    import docker
    from docker.errors import DockerException, ImageNotFound

    try:
        client = docker.from_env(timeout=5)
    except DockerException as error:
        return f"no Docker engine: {error}"
    try:
        client.ping()
        client.images.get(IMAGE)
    except ImageNotFound:
        return f"no image {IMAGE} (see ACC_TEST_POSTGRES_IMAGE)"
    except DockerException as error:
        return f"the Docker engine does not answer: {error}"
    finally:
        client.close()
    return None


@pytest.fixture(scope="module")
def container_url() -> Iterator[str]:
    if reason := why_not():
        pytest.skip(reason)
    # The reaper is one more image, which would have to be pulled; the `with` removes the container.
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    from testcontainers.core.container import DockerContainer

    postgres = (
        DockerContainer(IMAGE)
        .with_env("POSTGRES_USER", "accsd")
        .with_env("POSTGRES_PASSWORD", PASSWORD)
        .with_env("POSTGRES_DB", "postgres")
        .with_exposed_ports(5432)
    )
    with postgres as running:
        host, port = running.get_container_host_ip(), running.get_exposed_port(5432)
        url = f"postgresql://accsd:{PASSWORD}@{host}:{port}/postgres"
        run_in_thread(wait_until_it_answers(url))
        yield url


async def wait_until_it_answers(url: str) -> None:
    async def answers() -> bool:
        try:
            conn: Connection = await asyncpg.connect(url, timeout=5)
        except (OSError, asyncpg.PostgresError):
            return False
        await conn.close()
        return True

    await eventually(answers, within=60, interval=0.2, what="an answer of PostgreSQL in the container")


async def test_the_schema_installs_in_a_container(container_url: str) -> None:
    version = await make_template(database_on(container_url), "accsd_in_container")
    assert version >= 150000


async def test_a_job_can_be_submitted_in_a_container(container_url: str) -> None:
    """The smoke: plain SQL is a complete submission there too."""
    url_of = database_on(container_url)
    admin: Connection = await asyncpg.connect(container_url)
    await admin.execute("CREATE DATABASE smoke")
    await admin.close()
    await install_schema(url_of("smoke"))
    conn: Connection = await asyncpg.connect(url_of("smoke"))
    try:
        await conn.execute(
            """
            INSERT INTO workflows (name, version, steps)
            VALUES ('smoke', 1, '[{"key": "only", "service": "echo"}]');
            INSERT INTO jobs (workflow_id) SELECT id FROM workflows;
            """
        )
        assert await conn.fetchval("SELECT status FROM jobs") == "queued"
    finally:
        await conn.close()
