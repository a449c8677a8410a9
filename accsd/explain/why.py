"""Why a job or a task does not run: every blocker, since when, and what to try. A wait always has a reason.

`why_job` and `why_task` read it, `document` is what programs get; reasons.py has the words.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from accsd.db.pool import Database
from accsd.db.views import jobs as job_views
from accsd.db.why import Blocker, OpenTask, failed_tasks, open_tasks, step_of, why_each
from accsd.explain.reasons import Reason, reason

_ITEMS_SHOWN: Final = 5
_SHOWN: Final = 20  # tasks of one job: what keeps these keeps the others


@dataclass(frozen=True, slots=True)
class Explanation:
    """The blockers of a task, or of a job as a whole (`step` is None)."""

    job_id: UUID
    task_id: UUID | None
    step: str | None
    blockers: Sequence[Blocker]
    is_critical: bool = False  # of the tasks that are next, the one on which the most depends

    def reasons(self) -> list[tuple[Blocker, Reason]]:
        return [(found, reason(found, job=self.job_id, step=self.step)) for found in self.blockers]

    def told(self) -> list[tuple[Blocker, Reason]]:
        """The same for people: of the items of a step that it waits for, the first ones and how many there are."""
        numbered = Counter[str]()
        kept: list[tuple[Blocker, Reason]] = []
        last: dict[str, int] = {}
        for found, why in self.reasons():
            step, item, _ = str(found.detail.get("task_key", "")).partition("[")
            if found.blocker == "dependency" and item:
                numbered[step] += 1
                if numbered[step] > _ITEMS_SHOWN:
                    continue
                last[step] = len(kept)
            kept.append((found, why))
        for step, place in last.items():
            found, why = kept[place]
            if (more := found.detail.get("items_missing", numbered[step]) - _ITEMS_SHOWN) > 0:
                kept[place] = found, Reason(f'{why.text}, and for {more:,} more items of "{step}"', why.do)
        return kept


async def why_task(db: Database, task_id: UUID, silent: timedelta) -> Explanation:
    """`silent`: a node that has not been seen for so long is away."""
    job_id, key = await step_of(db, task_id)
    return Explanation(job_id, task_id, key, (await why_each(db, [task_id], silent=silent))[task_id])


async def why_job(db: Database, job_id: UUID, silent: timedelta) -> list[Explanation]:
    """Explains the job; while it runs, also the tasks that are next, and after a failure the tasks that failed."""
    itself = Explanation(job_id, None, None, (await why_each(db, [job_id], silent=silent))[job_id])
    match await job_views.job_status(db, job_id):
        case "running":
            waiting = await open_tasks(db, job_id)
            names = {task.id: task.task_key for task in _by_weight(waiting)[:_SHOWN]}
        case "error":
            names = dict(list((await failed_tasks(db, job_id)).items())[:_SHOWN])
        case _:
            return [itself]
    found = await why_each(db, list(names), silent=silent)
    told = [Explanation(job_id, task, names[task], found[task], number == 0) for number, task in enumerate(names)]
    return [itself, *told]


def document(explained: Sequence[Explanation]) -> list[dict[str, Any]]:
    """One row for each blocker."""
    return [
        {
            "job_id": each.job_id,
            "task_id": each.task_id,
            "task_key": each.step,
            "is_critical": each.is_critical,
            "blocker": found.blocker,
            "since": found.since,
            "until": found.until,
            "text": why.text,
            "next": why.advice,
            "remedies": [asdict(remedy) for remedy in why.remedies],
            "detail": found.detail,
        }
        for each in explained
        for found, why in each.reasons()
    ]


def _by_weight(tasks: Sequence[OpenTask]) -> list[OpenTask]:
    """The tasks that are next; first the one with the longest chain of steps behind it."""
    behind = _chains(tasks)
    return sorted((task for task in tasks if task.is_next), key=lambda task: -behind[task.task_key])


def _chains(tasks: Sequence[OpenTask]) -> dict[str, int]:
    """How many steps, one after the other, each task has behind it. Without recursion: a chain may be 100,000 long."""
    dependants: dict[str, list[str]] = {task.task_key: [] for task in tasks}
    items: dict[str, list[str]] = {}
    for key in dependants:
        step, item, _ = key.partition("[")
        if item:
            items.setdefault(step, []).append(key)
    for task in tasks:
        is_item = "[" in task.task_key  # which waits for its step alone
        for key in task.depends_on:
            for above in (key, *(() if is_item else items.get(key, ()))):
                if above in dependants:
                    dependants[above].append(task.task_key)
    behind: dict[str, int] = {}
    for root in dependants:
        todo = [root]
        while todo:
            key = todo[-1]
            unknown = [child for child in dependants[key] if child not in behind]
            if unknown:
                todo += unknown
                continue
            behind[todo.pop()] = max((behind[child] + 1 for child in dependants[key]), default=0)
    return behind
