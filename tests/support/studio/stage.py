"""The clock of the studio, and its scripts: each says after how many seconds it goes on."""

import heapq
from collections.abc import AsyncGenerator
from datetime import datetime, timedelta
from itertools import count

from accsd.db import Database
from accsd.storage import ObjectStore
from tests.support.cluster import Connection
from tests.support.studio.catalogue import BEGIN, NOW

Script = AsyncGenerator[float]

# The database's time is what the stage says; ids follow it, and none has chance in it.
_CLOCK = f"""
CREATE OR REPLACE FUNCTION accs.clock() RETURNS timestamptz LANGUAGE sql STABLE AS
  $$ SELECT '{BEGIN.isoformat()}'::timestamptz + (SELECT shift FROM accs.test_clock) $$;
CREATE OR REPLACE FUNCTION accs.waited() RETURNS interval LANGUAGE sql AS $$ SELECT interval '0' $$;
CREATE OR REPLACE FUNCTION accs.new_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
  SELECT encode(int8send((accs.unix_ms(accs.clock()) << 16) | 28672 | (nextval('accs.id_seq') & 4095))
                || int8send((-9223372036854775808) | ((currval('accs.id_seq') & 4294967295) * 1640531527 & 4294967295)),
                'hex')::uuid
$$
"""


class Stage:
    """Where the day is played. `now` is the studio's time, and the database's."""

    def __init__(self, conn: Connection, db: Database, store: ObjectStore) -> None:
        self.conn = conn
        self.db = db
        self.store = store
        self.now = BEGIN
        self._order = count()
        self._scripts: list[tuple[datetime, int, Script]] = []

    async def begin(self) -> None:
        await self.conn.execute(_CLOCK)
        await self._set_clock(BEGIN)

    def enter(self, script: Script, at: datetime | None = None) -> None:
        """From then on, or from now on, the script is played."""
        heapq.heappush(self._scripts, (at or self.now, next(self._order), script))

    async def play(self) -> None:
        """Until NOW. Whatever is under way then stays so."""
        while self._scripts and self._scripts[0][0] <= NOW:
            at, _, script = heapq.heappop(self._scripts)
            await self._set_clock(at)
            seconds = await anext(script, None)
            if seconds is not None:
                self.enter(script, at + timedelta(seconds=seconds))
        await self._set_clock(NOW)
        for _, _, script in self._scripts:
            await script.aclose()

    async def _set_clock(self, to: datetime) -> None:
        if to != self.now or to == BEGIN:
            await self.conn.execute("UPDATE accs.test_clock SET shift = $1", to - BEGIN)
        self.now = to
