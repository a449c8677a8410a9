"""The ledger in words: what became of each due time, and what a schedule has lost."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any, Final

from accsd.db.views.firings import FiringRow, UsualTimes
from accsd.explain.conditions import value
from accsd.explain.occurrences import in_zone, who
from accsd.explain.words import duration, local_text, short

_RAN: Final = frozenset({"fired", "caught_up"})
# They did not run because somebody wanted it so, or because another one stands for them.
_MEANT: Final = frozenset({("skipped", "excluded"), ("skipped", "requested"), ("merged", "dst_gap")})

_FATES: Final[Mapping[tuple[str, str], str]] = {
    ("fired", "on_time"): "ran on time",
    ("fired", "released"): "ran after its snooze",
    ("fired", "run_now"): "run by hand",
    ("fired", "backfill"): "ran in a backfill",
    ("fired", "event"): "ran because of an event",
    ("fired", "condition"): "ran because of a condition",
    ("caught_up", "late"): "ran late: nobody was there when it was due",
    ("caught_up", "resumed"): "ran when its pause ended",
    ("caught_up", "backfill"): "made up for by a backfill",
    ("skipped", "overlap"): "skipped: the run before it had not ended",
    ("skipped", "paused"): "skipped: the schedule was paused",
    ("skipped", "excluded"): "skipped: a calendar excludes it",
    ("skipped", "requested"): "skipped, as somebody wanted",
    ("skipped", "cooldown"): "skipped: too soon after the last one",
    ("skipped", "workflow_inactive"): "skipped: its workflow has no active version",
    ("skipped", "refused"): "skipped: its job was refused",
    ("skipped", "owner_disabled"): "skipped: its owner is disabled",
    ("skipped", "loop"): "skipped: it would have started itself over and over",
    ("skipped", "quota"): "skipped: its owner has used up the runs of this hour",
    ("skipped", "filter_error"): "skipped: its filter could not be evaluated",
    ("skipped", "broken"): "skipped: its firing failed",
    ("missed", "down"): "missed: nobody was there when it was due",
    ("missed", "too_old"): "missed: it was too old to be caught up",
    ("missed", "over_limit"): "missed: more than are caught up at once",
    ("merged", "dst_gap"): "one run with another time, because the clock was changed",
    ("merged", "catch_up"): "merged: a later one was caught up for it",
    ("merged", "overlap_queue"): "merged into the one that waits",
    ("merged", "gathered"): "merged with others into one run",
    ("snoozed", "requested"): "snoozed",
}


def fate(firing: FiringRow, timezone: str) -> str:
    """What became of a due time, in a sentence."""
    said = _FATES.get((firing.outcome, firing.reason), f"{firing.outcome}: {firing.reason}")
    detail = firing.detail or {}
    if firing.reason == "event":
        said += f" ({firing.cause_id})"
    if firing.reason == "condition" and detail.get("value") is not None:
        said += f" (value {value(detail['value'])})"
    if firing.outcome == "snoozed":
        said += f" until {local_text(in_zone(firing.due_at, timezone))}"
    if firing.outcome == "snoozed" or firing.reason in ("requested", "run_now"):
        said += who(detail.get("by"), detail.get("reason"))
    if dropped := detail.get("dropped"):
        said += f" ({dropped})"
    if blocker := detail.get("blocked_by"):
        said += f" (job {short(blocker)})"
    if firing.reason == "excluded" and "calendar" in detail:
        said += f" ({detail['calendar']}" + (f": {detail['label']}" if detail.get("label") else "") + ")"
    if why := detail.get("refusal") or detail.get("problem"):
        said += f" ({why})"
    if firing.merged_into is not None:
        said += f" ({local_text(firing.merged_into)})"
    if firing.until_nominal is not None:
        said += f"; {firing.times} times until {local_text(firing.until_nominal)}"
    return said


def firing_words(firing: FiringRow, timezone: str) -> dict[str, str]:
    """One line of the ledger, for eyes. What somebody asked for has no nominal time but the moment."""
    asked = firing.cause_id != 0
    local = in_zone(firing.due_at, timezone)
    fold = " (second pass)" if firing.fold else ""
    return {
        "nominal": local_text(local.replace(tzinfo=None)) if asked else local_text(firing.nominal) + fold,
        "outcome": firing.outcome,
        "reason": firing.reason,
        "late": duration(firing.late) if firing.late >= timedelta(seconds=1) else "",
        "job": "" if firing.job_id is None else f"{short(firing.job_id)} {firing.job_status or 'removed'}",
        "what": fate(firing, timezone),
    }


@dataclass(frozen=True, slots=True)
class Losing:
    """Of the last occurrences, how many did not run and why; those that nobody wanted to run are not lost. The gap is
    the usual time between two of them."""

    of: int
    lost: Mapping[str, int]  # outcome, reason → how many
    gap: timedelta | None
    usual_wait: timedelta | None
    usual_run: timedelta | None

    @property
    def is_losing(self) -> bool:
        return bool(self.lost)

    def document(self) -> dict[str, Any]:
        return {"losing": self.is_losing, "lost_count": sum(self.lost.values()), **asdict(self)}

    def __str__(self) -> str:
        if not self.of:
            return "nothing was due yet"
        beside = ", ".join(self._beside())
        if not self.lost:
            return f"no: the last {self.of} all ran, or were not meant to" + (f" ({beside})" if beside else "")
        why = ", ".join(f"{count} {named}" for named, count in self.lost.items())
        return f"of the last {self.of} occurrences {sum(self.lost.values())} did not run: {why}" + (
            f" ({beside})" if beside else ""
        )

    def _beside(self) -> Iterable[str]:
        if self.gap is not None:
            yield f"one each {duration(self.gap)}"
        if self.usual_wait is not None:
            yield f"a job usually waits {duration(self.usual_wait)}"
        if self.usual_run is not None:
            yield f"and runs {duration(self.usual_run)}"


def losing(last: Sequence[FiringRow], usual: UsualTimes) -> Losing:
    """`last` are rows of the ledger that times have, newest first."""
    by_time = [row for row in last if row.outcome != "snoozed"]
    lost = Counter[str]()
    for row in by_time:
        if row.outcome not in _RAN and (row.outcome, row.reason) not in _MEANT:
            lost[f"{row.outcome} ({row.reason})"] += row.times or 1
    gaps = sorted(late.due_at - early.due_at for late, early in pairwise(by_time))
    gap = gaps[len(gaps) // 2] if gaps else None
    of = sum(row.times or 1 for row in by_time)
    return Losing(of, dict(lost.most_common()), gap, usual.wait, usual.run)
