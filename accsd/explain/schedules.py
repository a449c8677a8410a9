"""A schedule in words and as documents: what it means, why it stands still, what was done to it, and what happened at a
time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from accsd.db import conditions as condition_store
from accsd.db.conditions import ConditionRow
from accsd.db.pool import Database
from accsd.db.topics import EventTally, tally_of
from accsd.db.views import firings
from accsd.db.views import schedules as views
from accsd.db.views.firings import FiringRow, LedgerFilter, Surroundings
from accsd.db.views.schedules import HistoryRow, OpenRun, ScheduleRow
from accsd.errors import UserError
from accsd.explain import conditions
from accsd.explain.ledger import Losing, fate, losing
from accsd.explain.occurrences import Marks, ahead, due_text, in_zone, marks_of, neighbours, preview_document
from accsd.explain.words import away, duration, local_text, short
from accsd.model.schedule import ScheduleDef
from accsd.planning.recurrence import (
    LintWarning,
    Neighbourhood,
    Occurrence,
    PreviewRow,
    Rule,
    explain,
    lint,
    missed_in_words,
    next_in_words,
    overlap_in_words,
)

_NEXT: Final = 3
_LAST: Final = 10
_LOOKED_AT: Final = 20  # for what is being lost
_HISTORY: Final = 5
_LATE: Final = timedelta(minutes=1)  # a scheduler that runs is never so slow
_PLANNER_IS_AWAY: Final = timedelta(seconds=30)
_USUAL_MOST: Final = 100  # are caught up, which nobody has to be told
_START_ONE: Final = "is an `accsd --role builder` running?"
_ENDS: Final[Mapping[str, str]] = {
    "once": "its time has passed",
    "end_at": "its end has come",
    "max_runs": "it has run as often as it may",
    "cancelled": "somebody ended it",
}


# What a schedule means


def meaning(rule: Rule | None, schedule: ScheduleRow | ScheduleDef, now: datetime | None) -> str:
    """What starts a schedule and its policies in sentences; and what is next, if it is said when now is."""
    if rule is None:
        return " ".join([*_cause(schedule), *_bounds(schedule), *_policies(schedule)])
    ahead_of_now = [] if now is None else [next_in_words(rule, now)]
    most = None if schedule.catch_up_max == _USUAL_MOST else schedule.catch_up_max
    missed = missed_in_words(schedule.missed, catch_up=schedule.catch_up, most=most)
    return " ".join([explain(rule), missed, *_policies(schedule), *ahead_of_now])


def when(row: ScheduleRow) -> str:
    """What starts it, in a few words for a list."""
    match row.schedule_kind:
        case "event":
            return f"event {row.schedule_expr}"
        case "condition":
            return f"condition {row.schedule_expr} {conditions.threshold(row.condition or {})}".rstrip()
        case kind:
            return f"{kind} {row.schedule_expr} {row.timezone}"


def _cause(schedule: ScheduleRow | ScheduleDef) -> Iterable[str]:
    columns = _columns(schedule)
    if columns["schedule_kind"] == "condition":
        yield f"On the condition {columns['schedule_expr']}: {conditions.meaning(columns['condition'] or {})}."
    else:
        only = "" if schedule.filter is None else f" where {schedule.filter}"
        yield f"On each event {columns['schedule_expr']}{only}."
    if schedule.gather is not None:
        yield _gathered(schedule.gather)
    if schedule.cooldown is not None:
        after = "; what comes in it is one run at its end" if schedule.cooldown_trailing else ""
        yield f"Not within {duration(schedule.cooldown)} after a run{after}."
    if schedule.reenter:
        yield "Also for events that its own runs lead to."


def _columns(schedule: ScheduleRow | ScheduleDef) -> Mapping[str, Any]:
    return schedule.columns() if isinstance(schedule, ScheduleDef) else asdict(schedule)


def _gathered(gather: Mapping[str, Any]) -> str:
    ends = [f"when none came for {gather['quiet']}"] if "quiet" in gather else []
    ends += [f"{gather['at_most']} after the first"] if "at_most" in gather else []
    ends += [f"with {gather['size']} of them"] if "size" in gather else []
    which = f"Those with the same {gather['by']}" if "by" in gather else "They"
    return f"{which} are gathered into one run: {', or '.join(ends) or 'at once'}."


def _bounds(schedule: ScheduleRow | ScheduleDef) -> Iterable[str]:
    bounds = _columns(schedule)
    for word, moment in (("Not before", bounds["start_at"]), ("Ends at", bounds["end_at"])):
        if moment is not None:
            local = in_zone(moment, schedule.timezone)
            yield f"{word} {local_text(local)} {local.tzname()}."


def _policies(schedule: ScheduleRow | ScheduleDef) -> Iterable[str]:
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
    if row.state == "snoozed" and row.next_nominal is not None and row.next_due is not None:
        due = due_text(row.next_due, row.timezone, row.now)
        said = f"snoozed: the occurrence {local_text(row.next_nominal)} waits until {due}"
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


# How one without times stands


def tally_words(row: ScheduleRow, tally: EventTally) -> str:
    """Which events wait, and which the filter left out."""
    said = f"{tally.waiting} wait" if tally.waiting else "none waits"
    if tally.gathering:
        said += f", {tally.gathering} are being gathered"
    if tally.filtered:
        last = "" if tally.last_filtered is None else f", the last was event {tally.last_filtered['id']}"
        said += f"; its filter left out {tally.filtered}{last}"
    return f"{said}  → accsd events --topic '{row.schedule_expr}'"


def condition_words(condition: ConditionRow, now: datetime) -> str:
    """The state, since when, and the last value."""
    said = f"{conditions.stands(condition)}, {away(condition.since, now)}"
    if condition.last_at is not None:
        said += f"; last value {conditions.value(condition.last_value)}, {away(condition.last_at, now)}"
    elif condition.next_probe is None:
        said += f"; no sample yet: accsd conditions report {condition.name} VALUE"
    if condition.last_error is not None:
        said += f"; {condition.last_error}"
    return f"{said}  → accsd conditions show {condition.schedule}"


# What happened at


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


def what_happened_around(row: ScheduleRow, moment: datetime, around: Surroundings) -> dict[str, Any]:
    """The same for a schedule without times: what came in that minute, or what came before and after it."""
    if around.within:
        sentences = [_came(each, row.timezone) for each in around.within]
        return {"answer": "settled", "sentences": sentences, "rows": [asdict(each) for each in around.within]}
    nothing = f"{local_text(in_zone(moment, row.timezone))} {row.timezone}: nothing came in that minute"
    beside = [
        f"the last one before it: {_came(around.before, row.timezone)}" if around.before else "nothing came before it",
        *([f"the first one after it: {_came(around.after, row.timezone)}"] if around.after else []),
    ]
    return {"answer": "nothing", "sentences": [nothing, *beside], "rows": []}


def _came(firing: FiringRow, timezone: str) -> str:
    when = in_zone(firing.due_at, timezone)
    return f"{local_text(when)} {timezone}: {fate(firing, timezone)}{_made(firing)}"


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
    """All that is shown of one schedule. `rule` is None where it has no times, or such that can't be read; `tally` is
    there for one of kind event, `condition` for one of kind condition."""

    row: ScheduleRow
    rule: Rule | None
    tally: EventTally | None
    condition: ConditionRow | None
    ahead: Sequence[PreviewRow]
    last: Sequence[FiringRow]
    losing: Losing
    history: Sequence[HistoryRow]
    runs: Sequence[OpenRun]
    warnings: Sequence[LintWarning]

    def document(self) -> dict[str, Any]:
        return schedule_document(self.row, self.rule) | {
            "state_words": state_words(self.row),
            "events": None if self.tally is None else asdict(self.tally),
            "condition_state": None if self.condition is None else asdict(self.condition),
            "next": [preview_document(each) for each in self.ahead],
            "ledger": [asdict(each) | {"words": fate(each, self.row.timezone)} for each in self.last],
            "losing": self.losing.document(),
            "history": [asdict(each) for each in self.history],
            "jobs": [asdict(each) for each in self.runs],
            "warnings": [asdict(each) for each in self.warnings],
        }


async def picture_of(db: Database, name: str, spread: timedelta) -> Picture:
    """Reads all that is shown of one schedule. NotFound has the name that was meant."""
    row = await views.schedule_named(db, name)
    rule = rule_or_none(row, spread)
    marks = marks_of(await views.skips_of(db, row.id), await views.snoozes_of(db, row.id))
    looked_at = await firings.ledger_of(db, row.id, LedgerFilter(limit=_LOOKED_AT, by_time=True))
    usual = await firings.usual_times_of(db, row.id)
    return Picture(
        row=row,
        rule=rule,
        tally=await tally_of(db, row.id) if row.schedule_kind == "event" else None,
        condition=await _condition_of(db, row) if row.schedule_kind == "condition" else None,
        ahead=_ahead(row, rule, marks),
        last=await firings.ledger_of(db, row.id, LedgerFilter(limit=_LAST)),
        losing=losing(looked_at, usual),
        history=await views.history_of(db, row.id, limit=_HISTORY),
        runs=await views.open_runs_of(db, row.id),
        warnings=() if rule is None or row.state == "ended" else lint(rule, row.now, usual_run=usual.run),
    )


def rule_or_none(row: ScheduleRow, spread: timedelta) -> Rule | None:
    """A schedule that was written by hand may have a rule that can't be read: then it is broken, and says why."""
    try:
        return row.timing().rule(spread) if row.has_times else None
    except UserError:
        return None


async def _condition_of(db: Database, row: ScheduleRow) -> ConditionRow | None:
    """None until the planner has seen it."""
    return next((each for each in await condition_store.conditions(db) if each.schedule == row.name), None)


def _ahead(row: ScheduleRow, rule: Rule | None, marks: Marks) -> list[PreviewRow]:
    if rule is None or row.state in ("ended", "broken"):
        return []
    runs_left = None if row.max_runs is None else row.max_runs - row.runs
    return ahead(rule, row.now, _NEXT, marks=marks, runs_left=runs_left)
