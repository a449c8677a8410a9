"""What the door's routes, sockets and roles share."""

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, cast

from starlette.requests import Request

from accsd.db import Database
from accsd.db.joblib import RemovedWorker, remove_worker
from accsd.gateway.context import GatewayContext
from accsd.gateway.joblib.board import Board
from accsd.gateway.joblib.claims import Claims
from accsd.gateway.joblib.news import News
from accsd.gateway.joblib.sockets import Sockets
from accsd.settings.doors import JoblibSettings


class Desk:
    def __init__(self, context: GatewayContext) -> None:
        settings = context.settings.gateway.joblib
        assert settings is not None, "the door is opened only if its section is there"
        self.context = context
        self.settings: JoblibSettings = settings
        self.board: Board = Board(settings)
        self.claims: Claims = Claims(context, settings)
        self.sockets: Sockets = Sockets(context, settings, self._lost)
        self.news: News = News(context, self.sockets)
        context.hub.subscribe_doors(self._heard)
        context.hub.subscribe_drain(self.board.release)

    def verbs(self, request_id: str) -> Database:
        return self.context.verbs.acting("http", request_id)

    @property
    def keeps_dead_letters(self) -> bool:
        return self.settings.dead_letters == "keep"

    async def remove_worker(
        self, db: Database, node: str, *, silent: timedelta | None = None, by: str | None = None
    ) -> RemovedWorker | None:
        removed = await remove_worker(db, node, silent=silent, keep=self.keeps_dead_letters, by=by)
        if removed is not None:
            self.changed(jobs=removed.jobs, providers=removed.providers)
        return removed

    def changed(self, *, jobs: Iterable[str] = (), providers: Iterable[str] = (), node: str | None = None) -> None:
        """Jobs or providers of these rooms, or what this worker serves, are not what they were. The verbs notify all
        gateways of it; a gateway that hears no notifications tells at least what it has done itself."""
        if not self.context.listener.is_listening:
            self._apply(jobs, providers, node)
        self.context.hub.stir()

    async def _lost(self, node: str, user: str) -> None:
        await self.remove_worker(self.context.verbs, node, by=user)

    def _heard(self, payload: str) -> None:
        """From the database: of this door, of another one, or empty: something may have been missed."""
        try:
            said: Any = json.loads(payload) if payload else {"door": "joblib"}
        except ValueError:
            return
        told = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
        if told.get("door") == "joblib":
            self._apply(told.get("jobs"), told.get("providers"), told.get("worker"))

    def _apply(self, jobs: Iterable[str] | None, providers: Iterable[str] | None, node: str | None) -> None:
        """None: of every room."""
        self.news.invalidate("jobs_invalidate", jobs)
        self.news.invalidate("providers_invalidate", providers)
        if node is not None:
            self.claims.reconsider(node)


def desk_of(request: Request) -> Desk:
    return cast("Desk", request.state.joblib)
