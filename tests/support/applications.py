"""An application with SeqPulse's own middleware in it, served by uvicorn on this machine: what a deployment is about.

with application(secret="hmac_of_the_shop") as shop:
    shop.metrics_url                     # asked by the collector
    await shop.visit("/broken", times=3)   # what its users do
"""

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import httpx
import uvicorn
from fastapi import FastAPI
from seqpulse import SeqPulse
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

METRICS = "/seqpulse-metrics"
WELL: dict[str, Any] = {
    "requests_per_sec": 4.0,
    "latency_p95": 120.0,
    "error_rate": 0.0,
    "cpu_usage": 0.3,
    "memory_usage": 0.4,
}


@dataclass
class Application:
    url: str
    path: str
    pulse: SeqPulse
    asked: list[dict[str, str]] = field(default_factory=list[dict[str, str]])  # headers of requests for metrics
    said: list[int] = field(default_factory=list[int])  # statuses of the answers
    instead: Callable[[], Awaitable[Response]] | None = None  # answers instead of the middleware
    metrics: dict[str, Any] | None = None  # what it says of itself instead of what was measured, if it lets in

    @property
    def metrics_url(self) -> str:
        return self.url + self.path

    async def visit(self, path: str = "/", times: int = 1) -> None:
        async with httpx.AsyncClient(base_url=self.url) as client:
            for _ in range(times):
                await client.get(path)

    def is_down(self, status: int = 503) -> None:
        async def refuse() -> Response:
            return PlainTextResponse("down for maintenance", status_code=status)

        self.instead = refuse

    def hangs(self, seconds: float) -> None:
        async def hang() -> Response:
            await asyncio.sleep(seconds)
            return JSONResponse({"metrics": WELL})

        self.instead = hang

    def redirects_to(self, url: str) -> None:
        async def redirect() -> Response:
            return RedirectResponse(url)

        self.instead = redirect

    def says(self, body: Any) -> None:
        async def say() -> Response:
            return JSONResponse(body) if not isinstance(body, str) else PlainTextResponse(body)

        self.instead = say

    def is_well(self) -> None:
        self.instead = None


@contextmanager
def application(*, secret: str | None = None, path: str = METRICS) -> Generator[Application]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        pulse = SeqPulse(endpoint=unquote(path), hmac_enabled=secret is not None, hmac_secret=secret)
        made = Application(f"http://127.0.0.1:{listener.getsockname()[1]}", path, pulse)
        server = uvicorn.Server(uvicorn.Config(_app(made), log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield made
        finally:
            server.should_exit = server.force_exit = True
            thread.join(10)


def _app(made: Application) -> FastAPI:
    app = FastAPI()

    @app.get("/")
    async def home() -> str:  # pyright: ignore[reportUnusedFunction]
        return "hello"

    @app.get("/broken")
    async def broken() -> Response:  # pyright: ignore[reportUnusedFunction]
        return PlainTextResponse("it broke", status_code=500)

    app.middleware("http")(made.pulse.middleware())

    async def watch(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        if request.scope["path"].rstrip("/") != unquote(made.path).rstrip("/"):
            return await call_next(request)
        made.asked.append(dict(request.headers))
        answer = await (call_next(request) if made.instead is None else made.instead())
        if made.instead is None and made.metrics is not None and answer.status_code == 200:
            answer = JSONResponse({"metrics": made.metrics})
        made.said.append(answer.status_code)
        return answer

    app.middleware("http")(watch)
    return app
