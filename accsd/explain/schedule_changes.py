"""What the state machine answered to a person who wanted to change a schedule, or one of its times."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from accsd.db.answers import Verdict
from accsd.db.firings import BackfillAnswer, OccurrenceAnswer, Ran
from accsd.db.schedules import ScheduleAnswer
from accsd.explain.changes import ChangeOutcome
from accsd.explain.words import duration, local_text, short

_REVIVED: Final = "accsd schedules edit {name} with other times, or a later --end, makes it active again"


def paused(name: str, answer: ScheduleAnswer, until: datetime | None) -> ChangeOutcome:
    end = "until somebody resumes it" if until is None else f"until {until.astimezone():%Y-%m-%d %H:%M %Z}"
    match answer.verdict:
        case Verdict.ACCEPTED:
            return _outcome(name, answer, f"schedule {name} is paused, {end}", f"accsd schedules resume {name}")
        case Verdict.REPEATED:
            return _outcome(name, answer, f"schedule {name} was paused already")
        case Verdict.REFUSED:
            return _stands(name, answer, "paused")


def resumed(name: str, answer: ScheduleAnswer, recovered: int) -> ChangeOutcome:
    match answer.verdict:
        case Verdict.ACCEPTED:
            what = f"; {recovered} of the skipped times run{'s' if recovered == 1 else ''} now" if recovered else ""
            return _outcome(name, answer, f"schedule {name} goes on{what}")
        case Verdict.REPEATED:
            return _outcome(name, answer, f"schedule {name} was not paused")
        case Verdict.REFUSED:
            return _stands(name, answer, "resumed")


def _stands(name: str, answer: ScheduleAnswer, what: str) -> ChangeOutcome:
    why, then = f"it is {answer.reason}", f"accsd schedules show {name}"
    if answer.reason == "ended":
        why, then = "it has ended", _REVIVED.format(name=name)
    elif answer.reason == "broken":
        why, then = "it is broken", f"accsd schedules show {name} says why; an edit mends it"
    return _outcome(name, answer, f"schedule {name} can't be {what}: {why}", then)


def ended(name: str, answer: ScheduleAnswer, cancelled: int, open_jobs: int) -> ChangeOutcome:
    if answer.verdict is Verdict.REPEATED:
        said = f"schedule {name} had ended already"
    else:
        said = f"schedule {name} has ended; its ledger stays"
    if cancelled:
        said += f"; {_jobs(cancelled)} cancelled"
    elif open_jobs:
        said += f"; {_jobs(open_jobs)} run on" if open_jobs > 1 else "; 1 job runs on"
    return _outcome(name, answer, said)


def _jobs(count: int) -> str:
    return f"{count} job{'s' if count != 1 else ''}"


def held(
    verdict: Verdict, *, lift: bool, by: str | None, because: str | None, held_for: timedelta | None
) -> ChangeOutcome:
    """`by`, `because` and `held_for` are those of the hold that is there."""
    if lift:
        said = "schedules go on: what was due meanwhile is late" if verdict is Verdict.ACCEPTED else "nothing was held"
        return ChangeOutcome("hold", verdict, None, said)
    who = (f" by {by}" if by else "") + (f": {because}" if because else "")
    when = "" if held_for is None or verdict is Verdict.ACCEPTED else f" {duration(held_for)} ago"
    before = "all schedules are held" if verdict is Verdict.ACCEPTED else "all schedules were held already"
    return ChangeOutcome("hold", verdict, None, f"{before}{when}{who}", "accsd schedules hold --lift")


# Single times


def snoozed(name: str, answer: OccurrenceAnswer, due: str) -> ChangeOutcome:
    """`due` is where the due time is now, or stays, in the schedule's zone."""
    which = "" if answer.nominal is None else f" {local_text(answer.nominal)}"
    if answer.verdict is not Verdict.REFUSED:
        said = f"the occurrence{which} of {name} is due {due}; later ones stay"
        return _outcome(name, answer, said, f"accsd schedules unsnooze {name}")
    why, then = {
        "not_by_time": ("it has no times", f"accsd schedules pause {name}"),
        "nothing_ahead": ("nothing is ahead", f"accsd schedules show {name}"),
        "not_later": (f"that is not later than {due}, when it is due", "--for counts from its due time"),
        "too_long": (f"that is more than 31 days after {due}", f"accsd schedules skip {name} TIME, or pause it"),
    }.get(answer.reason or "", (answer.reason or "unknown", f"accsd schedules show {name}"))
    return _outcome(name, answer, f"{name} can't be snoozed: {why}", then)


def unsnoozed(name: str, answer: OccurrenceAnswer) -> ChangeOutcome:
    if answer.verdict is Verdict.REPEATED:
        return _outcome(name, answer, f"nothing of {name} was snoozed")
    return _outcome(name, answer, f"{name} is due at its own time again; what has passed runs now")


def skipped(name: str, nominal: datetime, answer: OccurrenceAnswer, *, skip: bool) -> ChangeOutcome:
    when = f"{local_text(nominal)} of {name}"
    match answer.verdict:
        case Verdict.ACCEPTED if skip:
            return _outcome(name, answer, f"{when} will be skipped", f"accsd schedules unskip {name} {_iso(nominal)}")
        case Verdict.ACCEPTED:
            return _outcome(name, answer, f"{when} will run")
        case Verdict.REPEATED:
            return _outcome(name, answer, f"{when} was {'marked already' if skip else 'not to be skipped'}")
        case Verdict.REFUSED:
            why = {
                "already_settled": "it has passed",
                "not_an_occurrence": "the schedule does not name this time",
            }.get(answer.reason or "", answer.reason)
            then = f"accsd schedules ledger {name} --at {_iso(nominal)}"
            return _outcome(name, answer, f"{when} can't be {'skipped' if skip else 'unskipped'}: {why}", then)


def _iso(nominal: datetime) -> str:
    return nominal.isoformat(timespec="minutes" if not nominal.second else "seconds")


def ran(name: str, answer: Ran) -> ChangeOutcome:
    beside = "" if answer.state == "active" else f" (the schedule is {answer.state})"
    if answer.job_id is not None:
        job = short(answer.job_id)
        again = "this key was used before: " if answer.verdict is Verdict.REPEATED else ""
        return ChangeOutcome(
            answer.job_id, answer.verdict, None, f"{again}job {job} of {name}{beside}", f"accsd job {job}"
        )
    why, then = _why_not_run(name, answer.reason, answer.detail)
    return ChangeOutcome(name, answer.verdict, answer.reason, f"{name} does not run now: {why}{beside}", then)


def _why_not_run(name: str, reason: str | None, detail: Mapping[str, Any]) -> tuple[str, str]:
    match reason:
        case "overlap":
            blocker = detail.get("blocked_by")
            who = "its last run" if blocker is None else f"job {short(blocker)}"
            return f"{who} has not ended", f"accsd schedules run {name} --force runs it beside"
        case "overlap_queue":
            return "one waits already, and stands for it", f"accsd schedules show {name}"
        case "workflow_inactive":
            return "its workflow has no active version", "accsd workflows list --all"
        case _:
            return str(detail.get("refusal") or reason), f"accsd schedules show {name}"


# Backfills


def backfill_refused(name: str, answer: BackfillAnswer) -> ChangeOutcome:
    why, then = {
        "conflict": ("somebody has edited the schedule meanwhile", f"accsd schedules backfill {name} … --dry-run"),
        "plan_changed": (
            f"it would do something else by now (run {answer.would_run}, leave {answer.would_leave})",
            "look at it again with --dry-run, which gives a new token",
        ),
    }.get(answer.reason or "", (answer.reason or "unknown", f"accsd schedules show {name}"))
    return ChangeOutcome(name, answer.verdict, answer.reason, f"the backfill of {name} was refused: {why}", then)


def backfill_cancelled(backfill: object, answer: OccurrenceAnswer) -> ChangeOutcome:
    named = short(str(backfill))
    match answer.verdict:
        case Verdict.ACCEPTED:
            return ChangeOutcome(str(backfill), answer.verdict, None, f"backfill {named} is cancelled")
        case Verdict.REPEATED:
            return ChangeOutcome(str(backfill), answer.verdict, None, f"backfill {named} was cancelled before")
        case Verdict.REFUSED:
            why = "it is done already" if answer.reason == "already_finished" else answer.reason
            said = f"backfill {named} can't be cancelled: {why}"
            return ChangeOutcome(str(backfill), answer.verdict, answer.reason, said, "accsd schedules backfills list")


def _outcome(name: str, answer: ScheduleAnswer | OccurrenceAnswer, said: str, then: str | None = None) -> ChangeOutcome:
    return ChangeOutcome(name, answer.verdict, answer.reason, said, then)
