"""Archive: months that have been kept long enough go to the object store, finished jobs leave.

It looks once an hour. A store that is away holds up the history and nothing else; an archive that is not as it was
written keeps its month in the database until a person has looked at it. While the database's clock can't be trusted
nothing leaves.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Final

from accsd.db import Database
from accsd.errors import AccsdError, Bug, ConfigError, DatabaseUnavailable, Unavailable
from accsd.history.archive import archive, months_to_archive
from accsd.history.clocks import HINT, Clocks
from accsd.history.prune import prune_jobs, remove_doomed
from accsd.log import get_logger
from accsd.metrics import Metrics
from accsd.settings import RetentionSettings
from accsd.storage import ObjectStore
from accsd.supervisor import Pass

_EVERY: Final = timedelta(hours=1)
_AFTER_FAILURE: Final = timedelta(minutes=5)
_log = get_logger(role="archive")


class Archiver:
    """Several archivers may run at once: the second finds the work done, or does it again with the same outcome."""

    def __init__(
        self,
        login: Callable[[], AbstractAsyncContextManager[Database]],
        store: ObjectStore,
        kept: RetentionSettings,
        *,
        metrics: Metrics,
        clocks: Clocks,
    ) -> None:
        """`login` opens the database for one pass: removing history may need another login than the builder's.
        `clocks` are those of the process: an archiver that is made anew knows of a jump that was seen before."""
        self._login = login
        self._store = store
        self._kept = kept
        self._metrics = metrics
        self._clocks = clocks
        metrics.archives()

    async def run_once(self) -> Pass:
        async with self._login() as db:
            return await self._look(db)

    async def _look(self, db: Database) -> Pass:
        if (wrong := await self._clocks.problem(db)) is not None:
            _log.error("retention_refused", reason=wrong, hint=HINT)
            self._metrics.archive_passed("clock")
            return Pass(next_due=_AFTER_FAILURE, obstacle=f"nothing leaves the database: {wrong}")
        done = await self._let_go(db)
        self._metrics.archive_passed("done" if done.obstacle is None else "hindered")
        return done

    async def _let_go(self, db: Database) -> Pass:
        sentences: list[str] = []
        obstacles: list[str] = []
        try:
            for partition in await months_to_archive(db, self._kept):
                await self._archive(db, partition, sentences, obstacles)
            sentences += await self._prune(db)
        except (DatabaseUnavailable, Bug):
            raise
        except ConfigError as error:
            obstacles.append(f"{error}; retention.database_url names a login that may (the role accs_archive)")
        except (AccsdError, OSError) as error:  # not the supervisor's quick retries: a month may be read in vain
            obstacles.append(str(error))
        return Pass(
            did="; ".join(sentences) or None,
            next_due=_AFTER_FAILURE if obstacles else _EVERY,
            obstacle="; ".join(obstacles) or None,
        )

    async def _archive(self, db: Database, partition: str, sentences: list[str], obstacles: list[str]) -> None:
        """Archives one month. A month that can't leave must not keep the others."""
        try:
            outcome = await archive(db, self._store, partition)
        except (Unavailable, Bug, ConfigError):
            raise
        except (AccsdError, OSError) as error:  # an OSError: TMPDIR has no room for this month
            _log.error("archive_failed", partition=partition, error=str(error), hint=getattr(error, "hint", None))
            obstacles.append(f"{partition}: {error}")
            return
        if outcome.refused is None:
            _log.info("archived", partition=partition, rows=outcome.archive.rows, digest=outcome.archive.digest)
            self._metrics.archived(outcome.archive.size_bytes)
            sentences.append(outcome.sentence)
        else:
            _log.error("archive_refused", partition=partition, reason=outcome.refused, key=outcome.archive.key)
            obstacles.append(outcome.sentence)

    async def _prune(self, db: Database) -> list[str]:
        gone = await prune_jobs(db, self._kept)
        objects = await remove_doomed(db, self._store)
        sentences = [f"{one.jobs} jobs of {one.workflow} removed" for one in gone if one.jobs]
        return [*sentences, f"{objects} objects removed"] if objects else sentences
