"""The builder: makes the tasks of jobs that were inserted directly or whose time has come."""

from collections import Counter
from datetime import timedelta

from accsd import failpoints
from accsd.db import Database, instantiate_due_jobs
from accsd.db.submit import builder_outlook
from accsd.supervisor import Pass

_BATCH = 100
_LOCKED_PAUSE = timedelta(milliseconds=100)


class Builder:
    """Several builders may run at once: the verb takes due jobs with SKIP LOCKED, and a job is instantiated once."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run_once(self) -> Pass:
        made = await instantiate_due_jobs(self._db, limit=_BATCH)
        if made:
            failpoints.hit("instantiate.committed")
            verdicts = Counter("could not start" if job.reason else "started" for job in made)
            return Pass(did=", ".join(f"{word} {n} jobs" for word, n in sorted(verdicts.items())), more=True)
        ahead = await builder_outlook(self._db)
        # A job that is due and was not taken is locked, perhaps by another builder.
        return Pass(next_due=_LOCKED_PAUSE if ahead.is_due else ahead.next_job)
