"""The page of the demo: a gateway on this machine's own address, and links that let a browser in."""

import asyncio
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from accsd.db import Database
from accsd.db.access import create_code
from accsd.demo.machines import Stage
from accsd.demo.screen import Screen
from accsd.gateway.place import free_address, is_installed
from accsd.model.access import Scope

_ACTOR: Final = "demo"
_STARTS_WITHIN_SEC: Final = 30


@dataclass(frozen=True, slots=True)
class DemoPage:
    """`listen`: where the gateway is; it may not answer yet."""

    db: Database
    stage: Stage
    listen: str

    @classmethod
    def open(cls, db: Database, stage: Stage) -> "DemoPage | None":
        """None: the gateway is not installed, or this machine has no address."""
        listen = free_address(usual=False) if is_installed() else None
        if listen is None:
            return None
        stage.start_gateway(listen)
        return cls(db, stage, listen)

    async def introduce(self, screen: Screen) -> None:
        """Says where the page is, once it is there."""
        if await self._answers():
            screen.keep(f"see it in a browser (this link works once, within a minute): {await self.link()}")

    async def stay(self) -> None:
        """Until Ctrl-C."""
        _say(f"The page is open until Ctrl-C. This link works once, within a minute: {await self.link()}")
        _say("Another link, from another terminal:")
        _say(f"  ACC_DB_URL='{self.stage.db_url}' ACC_GATEWAY_LISTEN={self.listen} {accsd_command()} open")
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        try:
            await stop.wait()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def link(self) -> str:
        code = await create_code(self.db, actor=_ACTOR, scopes=[Scope.ADMIN], by=_ACTOR)
        return f"http://{self.listen}/#code={code}"

    async def _answers(self) -> bool:
        host, _, port = self.listen.rpartition(":")
        with suppress(TimeoutError):
            async with asyncio.timeout(_STARTS_WITHIN_SEC):
                while True:
                    with suppress(OSError):
                        _, writer = await asyncio.open_connection(host, int(port))
                        writer.close()
                        return True
                    await asyncio.sleep(0.1)
        return False


def accsd_command() -> str:
    """What to type here for accsd."""
    return "accsd" if shutil.which("accsd") else str(Path(sys.argv[0]).resolve())


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
