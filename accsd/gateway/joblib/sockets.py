"""Socket.IO, which the original's clients may use beside REST: who is connected, in which rooms, and whose worker goes
with a socket (1.10 of the contract).

Beyond the original: a room of a job or provider is entered only with a worker of one's own, and a worker is lost with
its last socket only. A gateway that stops is no reason to lose a worker.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast
from uuid import UUID

import socketio
from engineio.packet import NOOP, Packet
from socketio.exceptions import ConnectionRefusedError as Refused
from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from accsd.db.access import caller_of_token
from accsd.db.views.joblib import node_of, worker_named
from accsd.errors import AccsdError
from accsd.gateway.context import GatewayContext
from accsd.gateway.door_access import caller_at_door
from accsd.gateway.joblib.access import ANY, DOOR, READ, reaches, require_scope
from accsd.gateway.joblib.events import Emission
from accsd.gateway.joblib.names import GLOBAL, require_room
from accsd.gateway.reach import within
from accsd.log import get_logger
from accsd.model.access import Caller
from accsd.settings.doors import JoblibSettings

PATH: Final = "/socket.io"
_log = get_logger(component="joblib")
_LISTENS_SEC: Final = 3.0
_LONGEST_NAME: Final = 200


@dataclass(eq=False, slots=True)
class _Session:
    caller: Caller
    token: str
    workers: set[UUID] = field(default_factory=set)
    rooms: set[str] = field(default_factory=set)  # that its token narrows: told one by one


class Sockets:
    def __init__(
        self, context: GatewayContext, settings: JoblibSettings, lost: Callable[[str, str], Awaitable[None]]
    ) -> None:
        """`lost` is told the node of a worker whose last socket is gone, and whose it was."""
        self._context = context
        self._settings = settings
        self._lost = lost
        self._sessions: dict[str, _Session] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self.somebody: asyncio.Event = asyncio.Event()
        self.listening: asyncio.Event = asyncio.Event()  # what happens from now on is told
        self._server: Any = socketio.AsyncServer(
            async_mode="asgi",
            cors_allowed_origins=self._allows,
            max_http_buffer_size=context.settings.gateway.limits.body,
        )
        self._app: Any = socketio.ASGIApp(self._server, socketio_path=PATH)
        self._engine: Any = self._server.eio
        self._told_end: Any = self._engine.handlers["disconnect"]
        self._engine.on("disconnect", self._ended)
        context.hub.subscribe_drain(self._end_polls)
        for event in ("connect", "disconnect"):
            self._server.on(event, getattr(self, f"_{event}"))
        for event, handler in {
            "join_job_room": self._join_job,
            "leave_job_room": self._leave_job,
            "join_provider_room": self._join_provider,
            "leave_provider_room": self._leave_provider,
            "room_join": self._join_room,
            "room_leave": self._leave_room,
        }.items():
            self._server.on(event, handler)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def viewed(self) -> list[str]:
        """The rooms that somebody looks at."""
        known = self._server.manager.rooms.get("/", {})
        narrowed = {room for session in self._sessions.values() for room in session.rooms}
        return [room[5:] for room in {*filter(None, known), *narrowed} if room.startswith("room:")]

    async def emit(self, emission: Emission) -> None:
        event, payload, room, job = emission
        await self._server.emit(event, payload, room=room)
        for sid, session in list(self._sessions.items()):
            if room in session.rooms and (not job or reaches(session.caller, job)):
                await self._server.emit(event, payload, to=sid)

    async def request(self, event: str, payload: dict[str, Any], room: str) -> None:
        await self._server.emit(event, payload, room=room)

    async def check(self) -> None:
        """Those whose token is no more are disconnected."""
        for sid, session in list(self._sessions.items()):
            if await caller_of_token(self._context.reads, session.token) is None:
                await self._server.disconnect(sid)

    async def close(self) -> None:
        for task in self._leaving:
            task.cancel()
        with suppress(Exception):
            await self._server.shutdown()

    def _allows(self, origin: str | None, environ: dict[str, Any]) -> bool:
        """A page of ours, or one that is allowed: a token is needed all the same."""
        scope = environ["asgi.scope"]
        scheme = {"ws": "http", "wss": "https"}.get(scope["scheme"], scope["scheme"])
        ours = f"{scheme}://{environ.get('HTTP_HOST', '')}"
        return origin == ours or origin in self._context.settings.gateway.cors_origins

    # A client without WebSocket always has a request under way, which the library answers only with the next packet.

    async def _ended(self, engine_sid: str, reason: str) -> None:
        if reason == self._engine.reason.CLIENT_DISCONNECT:
            self._end_poll(engine_sid)
        await self._told_end(engine_sid, reason)

    def _end_polls(self) -> None:
        """Nothing but the end of a wait: who is told that the connection is closed does not come back."""
        for engine_sid in list(self._engine.sockets):
            self._end_poll(engine_sid)

    def _end_poll(self, engine_sid: str) -> None:
        engine_socket = self._engine.sockets.get(engine_sid)
        if engine_socket is not None and not engine_socket.upgraded:
            engine_socket.queue.put_nowait(Packet(NOOP))

    # Coming and going

    async def _connect(self, sid: str, environ: dict[str, Any], auth: Any = None) -> None:
        given: Any = cast("dict[str, Any]", auth).get("token") if isinstance(auth, dict) else None
        token = given.removeprefix("Bearer ").strip() if isinstance(given, str) else ""
        try:
            caller = await caller_at_door(self._context, HTTPConnection(environ["asgi.scope"]), DOOR, token=token)
            require_scope(caller, ANY)
        except AccsdError as error:
            raise Refused(error.message) from None
        self._sessions[sid] = _Session(caller, token)
        self.somebody.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LISTENS_SEC):
                await self.listening.wait()

    async def _disconnect(self, sid: str, *_reason: Any) -> None:
        session = self._sessions.pop(sid, None)
        if not self._sessions:
            self.somebody.clear()
        if session is None or self._context.hub.is_drained:
            return
        for worker in session.workers:
            task = asyncio.create_task(self._leave(worker, session.caller.actor))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _leave(self, worker: UUID, user: str) -> None:
        await asyncio.sleep(self._settings.disconnect_grace_seconds)
        if any(worker in session.workers for session in self._sessions.values()):
            return
        try:
            await self._lost(node_of(worker), user)
        except AccsdError as error:
            _log.warning("joblib_worker_stays", worker=str(worker), error=str(error))  # the sweeper removes it

    # Rooms. Nobody waits for an answer: what is refused is not done.

    async def _join_job(self, sid: str, said: Any) -> None:
        await self._join(sid, said, "job_name", "jobs")

    async def _leave_job(self, sid: str, said: Any) -> None:
        await self._server.leave_room(sid, f"jobs:{_text(said, 'job_name')}")

    async def _join_provider(self, sid: str, said: Any) -> None:
        await self._join(sid, said, "provider_name", "providers")

    async def _leave_provider(self, sid: str, said: Any) -> None:
        await self._server.leave_room(sid, f"providers:{_text(said, 'provider_name')}")

    async def _join(self, sid: str, said: Any, member: str, kind: str) -> None:
        session, name = self._sessions.get(sid), _text(said, member)
        try:
            worker = await worker_named(self._context.reads, UUID(_text(said, "worker_id")))
        except (ValueError, AccsdError):
            return
        if session is None or worker is None or worker.user != session.caller.actor or not name:
            return
        if not reaches(session.caller, name):
            return
        session.workers.add(worker.id)
        await self._server.enter_room(sid, f"{kind}:{name}")

    async def _join_room(self, sid: str, said: Any) -> None:
        session, room = self._sessions.get(sid), _text(said, "room_id")
        try:
            require_room(room)
            if session is not None:
                require_scope(session.caller, READ)
        except AccsdError:
            return
        if session is None:
            return
        for each in {room, GLOBAL}:
            if within(session.caller) is None:
                await self._server.enter_room(sid, f"room:{each}")
            else:
                session.rooms.add(f"room:{each}")

    async def _leave_room(self, sid: str, said: Any) -> None:
        session, room = self._sessions.get(sid), f"room:{_text(said, 'room_id')}"
        if session is not None:
            session.rooms.discard(room)
            await self._server.leave_room(sid, room)


def _text(said: Any, member: str) -> str:
    """What a client has sent under that name; empty: nothing that could be meant."""
    found: Any = cast("dict[str, Any]", said).get(member) if isinstance(said, dict) else None
    return found if isinstance(found, str) and len(found) <= _LONGEST_NAME else ""
