"""A schedule in words and as documents: when it is due and what happens otherwise, why it stands still, what became of
each due time, and what it has lost."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from accsd.db.views.schedules import FiringRow, HistoryRow, RunRow, ScheduleRow, SkipRow, SnoozeRow, UsualTimes
from accsd.errors import UserError
from accsd.explain.words import duration, short
from accsd.model.schedule import ScheduleDef
from accsd.planning.recurrence import (
    LintWarning,
    Mark,
    MarkKind,
    Neighbourhood,
    Occurrence,
    PreviewRow,
    Rule,
    Zone,
    explain,
    missed_in_words,
    next_in_words,
    next_occurrences,
    occurrence_at,
    overlap_in_words,
    preview,
    zone_rules,
)

Marks = Mapping[tuple[datetime, int], Mark]

_MICROSECOND: Final = timedelta(microseconds=1)
_PAGE: Final = 5000
_LATE: Final = timedelta(minutes=1)  # a scheduler that runs is never so slow
_PLANNER_IS_AWAY: Final = timedelta(seconds=30)
_START_ONE: Final = "is an `accsd --role builder` running?"

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
_ENDS: Final[Mapping[str, str]] = {
    "once": "its time has passed",
    "end_at": "its end has come",
    "max_runs": "it has run as often as it may",
    "cancelled": "somebody ended it",
}


# What a schedule means


def meaning(rule: Rule | None, schedule: ScheduleRow | ScheduleDef, now: datetime | None) -> str:
    """The rule and the policies in sentences; and what is next, if it is said when now is."""
    if rule is None:
        assert isinstance(schedule, ScheduleRow), "a definition that is written has times"
        return f"On the {schedule.schedule_kind} {schedule.schedule_expr}. {overlap_in_words(schedule.overlap)}"
    ahead_of_now = [] if now is None else [next_in_words(rule, now)]
    return " ".join([explain(rule), *_policies(schedule), *ahead_of_now])


def _policies(schedule: ScheduleRow | ScheduleDef) -> Iterable[str]:
    yield missed_in_words(schedule.missed)
    yield overlap_in_words(schedule.overlap)
    if schedule.run_key is not None:
        yield f"Its runs share the key {schedule.run_key} with others."
    if schedule.max_runs is not None:
        yield f"It ends after {schedule.max_runs} run{'s' if schedule.max_runs > 1 else ''}."
    if schedule.pause_after is not None:
        span = "" if schedule.pause_for is None else f", for {duration(schedule.pause_for)}"
        yield f"{schedule.pause_after} failed jobs in a row pause it{span}."


def state_words(row: ScheduleRow) -> str:
    """The state, since when, until when and why."""
    if row.state == "active":
        return _hindered(row) or "active"
    said = f"{row.state} {away(row.since, row.now)}"
    if row.state == "snoozed" and row.next_due is not None:
        said = f"snoozed until {due_text(row.next_due, row.timezone, row.now)}"
    if row.paused_until is not None:
        said += f", until {due_text(row.paused_until, row.timezone, row.now)}"
    return said + (f": {_ENDS.get(row.reason, row.reason)}" if row.reason else "")


def _hindered(row: ScheduleRow) -> str | None:
    """Why an active schedule does not fire."""
    if not row.can_start:
        which = row.workflow if row.version is None else f"{row.workflow} version {row.version}"
        return f"active, but its workflow {which} is not: what is due is skipped"
    if row.late_for is not None and row.late_for > _LATE:
        return f"active, and due for {duration(row.late_for)}: {_START_ONE}"
    if row.unplanned_for is not None and row.unplanned_for > _PLANNER_IS_AWAY and row.next_due is None:
        return f"active, and has waited for its plan for {duration(row.unplanned_for)}: {_START_ONE}"
    return None


def what_next(row: ScheduleRow) -> str | None:
    """The command that changes the state."""
    match row.state:
        case "paused":
            return f"accsd schedules resume {row.name}"
        case "held":
            return "accsd schedules hold --lift"
        case "snoozed":
            return f"accsd schedules unsnooze {row.name}"
        case "broken":
            return f"accsd schedules edit {row.name} mends it"
        case _:
            return None


def due_text(moment: datetime, timezone: str, now: datetime) -> str:
    local = _local(moment, timezone)
    return f"{local_text(local)} {local.tzname()} ({away(moment, now)})"


def away(moment: datetime, now: datetime) -> str:
    """How far from now, by the database's clock."""
    span = moment - now
    return f"in {duration(span)}" if span > timedelta(0) else f"{duration(-span)} ago"


def _local(moment: datetime, timezone: str) -> datetime:
    """In the schedule's zone; in UTC if a plain INSERT has named one that is none."""
    try:
        return zone_rules().zone(timezone).local(moment)
    except UserError:
        return moment.astimezone(UTC)


# What is ahead


def marks_of(skips: Iterable[SkipRow], snoozes: Iterable[SnoozeRow]) -> dict[tuple[datetime, int], Mark]:
    """What the database knows of single occurrences, for a preview."""
    skipped = {
        (each.nominal, each.fold): Mark(MarkKind.SKIPPED, f"will be skipped{_who(each.by, each.reason)}")
        for each in skips
    }
    snoozed = {
        (each.nominal, each.fold): Mark(MarkKind.SNOOZED, f"snoozed{_who(each.by, each.reason)}", each.due_at)
        for each in snoozes
    }
    return skipped | snoozed


def _who(by: str | None, reason: str | None) -> str:
    return (f", by {by}" if by else "") + (f": {reason}" if reason else "")


def ahead(
    rule: Rule, after: datetime, n: int, *, marks: Marks | None = None, runs_left: int | None = None
) -> list[PreviewRow]:
    """A preview in which a snoozed occurrence is seen also when its own time has passed."""
    found = preview(rule, after, n, marks=marks, runs_left=runs_left)
    seen = {(row.nominal, row.fold) for row in found}
    late = [
        PreviewRow(nominal, fold, rule.zone.local(mark.until).tzname() or "", mark.until, (mark,))
        for (nominal, fold), mark in (marks or {}).items()
        if mark.until is not None and mark.until > after and (nominal, fold) not in seen
        if any(each.fold == fold for each in occurrence_at(rule, nominal).named)
    ]
    return sorted([*found, *late], key=lambda row: (row.due_at, row.nominal))[:n]


def between(rule: Rule, after: datetime, end: datetime) -> Iterator[Occurrence]:
    """What is due after an instant, of the occurrences whose own instant lies before the end; page by page, because
    there may be one each second, and never further, because there may be one each year."""
    bounded = replace(rule, end_at=end if rule.end_at is None else min(rule.end_at, end))
    exhausted = False
    while not exhausted:
        found, exhausted = next_occurrences(bounded, after, _PAGE)
        yield from found
        exhausted = exhausted or not found
        after = found[-1].due_at if found else after


def preview_document(row: PreviewRow) -> dict[str, Any]:
    """`marks` are the words that programs know, `notes` those for people."""
    return {
        "nominal": row.nominal,
        "fold": row.fold,
        "zone": row.abbreviation,
        "due_at": row.due_at,
        "fires": row.fires,
        "marks": [mark.kind.value for mark in row.marks],
        "notes": [mark.words for mark in row.marks],
    }


def preview_words(row: PreviewRow, zone: Zone, now: datetime) -> dict[str, str]:
    """One line of a preview, for eyes."""
    due = zone.local(row.due_at)
    return {
        "nominal": f"{local_text(row.nominal)} {row.abbreviation}",
        "due": f"{local_text(due)} {due.tzname()}",
        "in": away(row.due_at, now),
        "notes": "; ".join(mark.words for mark in row.marks),
    }


def local_text(moment: datetime) -> str:
    """A time on the wall clock, with its day: Mon 2026-11-23 02:30."""
    day = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[moment.weekday()]
    clock = f"{moment:%H:%M:%S}" if moment.second else f"{moment:%H:%M}"
    return f"{day} {moment:%Y-%m-%d} {clock}"


def warning_words(warning: LintWarning) -> str:
    return warning.message + (f" ({warning.hint})" if warning.hint else "")


def no_longer_named(rule: Rule, marks: Marks) -> list[str]:
    """Skips and snoozes that a new rule drops, because it does not name their times."""
    dropped: list[str] = []
    for (nominal, fold), mark in marks.items():
        if not any(each.fold == fold for each in occurrence_at(rule, nominal).named):
            what = "snooze" if mark.kind is MarkKind.SNOOZED else "skip"
            dropped.append(f"the {what} of {local_text(nominal)} is dropped: the new times do not have it")
    return dropped


# What has happened


def fate(firing: FiringRow, timezone: str) -> str:
    """What became of a due time, in a sentence."""
    said = _FATES.get((firing.outcome, firing.reason), f"{firing.outcome}: {firing.reason}")
    detail = firing.detail or {}
    if firing.outcome == "snoozed":
        said += f" until {local_text(_local(firing.due_at, timezone))}"
    if firing.outcome == "snoozed" or firing.reason in ("requested", "run_now"):
        said += _who(detail.get("by"), detail.get("reason"))
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
    local = _local(firing.due_at, timezone)
    fold = " (second pass)" if firing.fold else ""
    return {
        "nominal": local_text(local.replace(tzinfo=None)) if asked else local_text(firing.nominal) + fold,
        "outcome": firing.outcome,
        "reason": firing.reason,
        "late": duration(firing.late) if firing.late >= timedelta(seconds=1) else "",
        "job": "" if firing.job_id is None else f"{short(firing.job_id)} {firing.job_status or 'removed'}",
        "what": fate(firing, timezone),
    }


def history_words(row: HistoryRow, now: datetime) -> str:
    """`2h ago  edited by ana@desk: later (schedule_expr: 0 2 * * * → 0 3 * * *)`."""
    changed = row.after or {}
    before = row.before or {}
    told = [f"{key}: {_shown(before[key])} → {_shown(value)}" for key, value in changed.items() if key in before]
    what = f"{row.what} by {row.by}" if row.by else row.what
    reason = f": {row.reason}" if row.reason else ""
    return f"{away(row.ts, now)}  {what}{reason}" + (f" ({', '.join(told)})" if told else "")


def _shown(value: Any) -> str:
    return "nothing" if value is None or value in ([], {}) else str(value)


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


# What happened at


def named_at(rule: Rule, moment: datetime) -> Neighbourhood:
    """What a rule names at a time that somebody typed: on the wall clock, or, with an offset, an instant."""
    if moment.tzinfo is None:
        return occurrence_at(rule, moment)
    found, _ = next_occurrences(rule, moment - _MICROSECOND, 1)
    exact = [each for each in found if moment in (each.instant, each.due_at)]
    if not exact and rule.shift:
        found, _ = next_occurrences(rule, moment + rule.shift - _MICROSECOND, 1)
        exact = [each for each in found if each.instant == moment]
    around = occurrence_at(rule, exact[0].nominal if exact else rule.zone.local(moment))
    return Neighbourhood(tuple(exact), around.before, around.after)


def neighbours(around: Neighbourhood) -> str:
    """The times beside one that the rule does not name."""
    sides = [
        f"the one {word} it is {local_text(each.nominal)}"
        for word, each in (("before", around.before), ("after", around.after))
        if each is not None
    ]
    return ", ".join(sides) or "it names no time near it"


def what_happened(
    row: ScheduleRow, nominal: datetime, around: Neighbourhood, rows: Sequence[FiringRow], marks: Marks
) -> dict[str, Any]:
    """The answer to "what happened at": settled, ahead, not settled, or that the rule does not name the time."""
    when = f"{local_text(nominal.replace(tzinfo=None))} {row.timezone}"
    if rows:
        sentences = [f"{when}{_pass(each.fold)}: {fate(each, row.timezone)}{_made(each)}" for each in rows]
        return {"answer": "settled", "sentences": sentences, "rows": [asdict(each) for each in rows]}
    if not around.named:
        said = f"{when}: the schedule does not name this time; {neighbours(around)}"
        beside = {"before": around.before and around.before.nominal, "after": around.after and around.after.nominal}
        return {"answer": "not_named", "sentences": [said], "rows": [], **beside}
    ahead_of_it = any(each.due_at > row.now for each in around.named)
    sentences = [f"{when}{_pass(each.fold)}: {not_settled(row, each, marks)}" for each in around.named]
    dues = [each.due_at for each in around.named]
    answer = "ahead" if ahead_of_it else "not_settled"
    return {"answer": answer, "sentences": sentences, "rows": [], "due_at": dues}


def _pass(fold: int) -> str:
    return " (second pass)" if fold else ""


def _made(firing: FiringRow) -> str:
    late = f", {duration(firing.late)} late" if firing.late >= _LATE else ""
    return late + ("" if firing.job_id is None else f"; job {short(firing.job_id)} is {firing.job_status or 'removed'}")


def not_settled(row: ScheduleRow, occurrence: Occurrence, marks: Marks) -> str:
    """Why the ledger has no row of a time that the rule names."""
    mark = marks.get((occurrence.nominal, occurrence.fold))
    due = (mark.until if mark else None) or occurrence.due_at
    if due > row.now:
        words = "" if mark is None else f"; {mark.words}"
        return f"it lies ahead: due {due_text(due, row.timezone, row.now)}{words}" + _stands_still(row)
    if occurrence.due_at <= row.created_at:
        return f"the schedule was not there yet: it was created {due_text(row.created_at, row.timezone, row.now)}"
    if row.state == "ended" and occurrence.due_at >= row.since:
        return f"the schedule had ended: {due_text(row.since, row.timezone, row.now)}"
    if occurrence.due_at > row.settled_until:
        return f"it was due, and nobody has settled it yet: {_START_ONE}"
    return "the rule names it now, but did not when it was due; `accsd schedules show` has the history"


def _stands_still(row: ScheduleRow) -> str:
    return "" if row.state in ("active", "snoozed") else f" (the schedule is {state_words(row)})"


# Documents


def schedule_document(row: ScheduleRow, rule: Rule | None) -> dict[str, Any]:
    """A schedule for programs, in a list. It has no words if its rule can't be read: then it is broken."""
    plain = asdict(row)
    del plain["calendars"], plain["now"]
    return plain | {"words": meaning(rule, row, None) if rule is not None or not row.has_times else None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All that is shown of one schedule. `rule` is None where it has no times, or such that can't be read."""

    row: ScheduleRow
    rule: Rule | None
    ahead: Sequence[PreviewRow]
    last: Sequence[FiringRow]
    losing: Losing
    history: Sequence[HistoryRow]
    runs: Sequence[RunRow]
    warnings: Sequence[LintWarning]

    def document(self) -> dict[str, Any]:
        return schedule_document(self.row, self.rule) | {
            "state_words": state_words(self.row),
            "next": [preview_document(each) for each in self.ahead],
            "ledger": [asdict(each) | {"words": fate(each, self.row.timezone)} for each in self.last],
            "losing": self.losing.document(),
            "history": [asdict(each) for each in self.history],
            "jobs": [asdict(each) for each in self.runs],
            "warnings": [asdict(each) for each in self.warnings],
        }
