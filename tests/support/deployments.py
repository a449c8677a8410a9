"""A project whose deployments a gateway watches: SeqPulse's own CI client, and the time that passes for it."""

from functools import partial
from typing import Any
from uuid import UUID

import anyio
from seqpulse import SeqPulseCIClient, create_ci_client

from tests.support.applications import Application
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import pass_time
from tests.support.gateway import Gateway

SECRET = "hmac_of_the_shop"
ROUTINE = {"per_minute": 100_000}


def settings_of(app: Application, **project: Any) -> dict[str, Any]:
    """[gateway.seqpulse] with the projects `shop`, of this application, and `other`."""
    shop: dict[str, Any] = {
        "endpoint": app.metrics_url,
        "hmac_secret": SECRET,
        "allow_private": True,
        "envs": ["prod", "staging"],
    }
    other = {"endpoint": "from_trigger", "allow_private": True}
    return ROUTINE | {"projects": {"shop": shop | project, "other": other}}


class Shop:
    """A gateway, the application of its project `shop`, and who deploys it."""

    def __init__(self, gateway: Gateway, app: Application) -> None:
        self.gateway = gateway
        self.app = app

    async def key(self, scope: str = "submit", *, project: str | None = "shop", **limits: Any) -> str:
        narrowed = limits | ({} if project is None else {"project": project})
        return await self.gateway.token(scope, actor=f"ci-of-{project}", limits=narrowed)

    async def ask(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, **headers: str
    ) -> tuple[int, Any]:
        """As the project's own CI, unless another key is given."""
        credential = {"X-API-Key": await self.key() if key is None else key}
        answer = await self.gateway.client.request(method, path, json=body, headers=credential | headers)
        return answer.status_code, answer.json()

    async def triggered(self, env: str = "prod", **body: Any) -> UUID:
        status, said = await self.ask("POST", "/deployments/trigger", {"env": env, **body})
        assert status == 200, said
        return UUID(said["deployment_id"])

    async def finished(self, deployment: UUID, result: str = "success") -> None:
        body = {"deployment_id": str(deployment), "result": result}
        assert await self.ask("POST", "/deployments/finish", body) == (200, {"status": "accepted", "message": None})

    async def ci(self, **given: Any) -> "Ci":
        """SeqPulse's CI client, as a pipeline has it."""
        known = {
            "base_url": self.gateway.url,
            "api_key": await self.key(),
            "metrics_endpoint": self.app.metrics_url,
            "non_blocking": False,
        }
        return Ci(create_ci_client(**known | given))

    async def build(self, conn: Connection) -> None:
        """One pass of the builder: what is due becomes work."""
        await conn.execute("SELECT FROM accs.instantiate_due_jobs()")

    async def deployed(self, conn: Connection, minutes: int = 5) -> UUID:
        """A whole deployment: announced, ended, sampled once a minute, judged."""
        deployment = await self.triggered()
        await eventually(lambda: samples(conn, deployment, "pre", 1), within=15)
        await self.finished(deployment)
        await self.sampled(conn, deployment, minutes)
        await judged(conn, deployment)
        return deployment

    async def sampled(self, conn: Connection, deployment: UUID, minutes: int = 5) -> None:
        for taken in range(1, minutes + 1):
            await eventually(lambda taken=taken: samples(conn, deployment, "post", taken), within=15)
            await pass_time(conn, 60)
            await self.build(conn)


class Ci:
    """The client beside the loop of the test: it blocks."""

    def __init__(self, client: SeqPulseCIClient) -> None:
        self.client = client

    async def trigger(self, **given: Any) -> dict[str, Any]:
        return await anyio.to_thread.run_sync(partial(self.client.trigger, **given))

    async def finish(self, **given: Any) -> dict[str, Any]:
        return await anyio.to_thread.run_sync(partial(self.client.finish, **given))


async def samples(conn: Connection, deployment: UUID, phase: str, least: int) -> bool:
    count = "SELECT count(*) FROM metric_samples WHERE deployment_id = $1 AND phase = $2"
    return await conn.fetchval(count, deployment, phase) >= least


async def judged(conn: Connection, deployment: UUID) -> str:
    async def verdict() -> str | None:
        return await conn.fetchval("SELECT verdict FROM deployment_verdicts WHERE deployment_id = $1", deployment)

    return str(await eventually(verdict, within=15))


async def jobs_of(conn: Connection, deployment: UUID) -> list[dict[str, Any]]:
    rows = await conn.fetch(
        "SELECT * FROM scheduled_jobs WHERE deployment_id = $1 ORDER BY scheduled_at, job_type DESC", deployment
    )
    return [dict(row) for row in rows]
