"""Plans schedules ahead of time: turns each rule into the next occurrences, as rows of data that SQL alone can fire.

Several planners may run at once: a plan that was made for another revision, or with older rules of its zone, is
refused. What is planned fires whether a planner runs or not.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from accsd import failpoints
from accsd.db import Database
from accsd.db.firings import scheduler_outlook
from accsd.db.schedules import ScheduleToPlan, note_zones, plan_schedules, schedules_to_plan
from accsd.errors import UserError
from accsd.log import get_logger
from accsd.supervisor import Pass

if TYPE_CHECKING:
    from accsd.planning.recurrence import Occurrence, Rule, ZoneRules

_BATCH: Final = 100
_AHEAD: Final = 32
_AHEAD_OFTEN: Final = 256  # of a schedule that fires every few seconds
_OFTEN: Final = timedelta(seconds=10)
_EACH_KEPT: Final = 1000  # of an outage: older occurrences are one row of the ledger
_PAGE: Final = 5000
_MOST_COUNTED: Final = 100_000  # beyond it the occurrences of an outage are not counted
_OLDER_AGAIN: Final = timedelta(minutes=1)
_log = get_logger(role="planner")


class Planner:
    def __init__(self, db: Database, *, node: str, spread: timedelta = timedelta(0)) -> None:
        self._db = db
        self._node = node
        self._spread = spread  # of schedules that say nothing of it
        self._noted: dict[str, str] = {}  # the zones that the database knows our rules of
        self._older: dict[str, str] = {}  # zones for which newer rules than ours are on record, and their version

    async def run_once(self) -> Pass:
        asked = await schedules_to_plan(self._db, limit=_BATCH, except_zones=list(self._older))
        if not asked:
            return await self._rest()
        await self._note_zones(asked)
        mine = [each for each in asked if each.timezone not in self._older]
        # In a thread: a rule of many years takes milliseconds, and the loop has leases to keep.
        plans = await asyncio.to_thread(self._plans, mine)
        failpoints.hit("plan.computed")
        answers = await plan_schedules(self._db, plans, by=self._node) if plans else {}
        failpoints.hit("plan.written")
        for each, plan in zip(mine, plans, strict=True):
            if "problem" in plan:
                _log.warning("schedule_broken", schedule=each.name, problem=plan["problem"])
        for each in mine:
            if answers.get(each.id) == "other_rules":  # somebody has brought newer ones since: looked at again
                self._noted.pop(each.timezone, None)
        taken = sum(answer == "accepted" for answer in answers.values())
        return Pass(did=f"planned {taken} schedules" if taken else None, more=len(asked) == _BATCH or taken < len(mine))

    def _plans(self, asked: Sequence[ScheduleToPlan]) -> list[dict[str, Any]]:
        return [plan_of(each, self._noted.get(each.timezone, ""), spread=self._spread) for each in asked]

    async def _rest(self) -> Pass:
        ahead = await scheduler_outlook(self._db)
        if not self._older:
            return Pass(next_due=ahead.next_plan)
        zones = ", ".join(f"{zone} ({version})" for zone, version in sorted(self._older.items()))
        said = f"newer time zone rules than these are in use for {zones}: update tzdata; nothing is planned there"
        self._older.clear()  # asked again
        return Pass(next_due=_OLDER_AGAIN, obstacle=said)

    async def _note_zones(self, asked: Sequence[ScheduleToPlan]) -> None:
        """Says with which rules this process plans in the zones that it has not spoken of yet."""
        digests = await asyncio.to_thread(
            _digests, {each.timezone for each in asked} - self._noted.keys(), asked[0].now
        )
        if digests:
            version = _rules().version
            self._older = await note_zones(self._db, version, digests, by=self._node)
            self._noted.update({zone: digest for zone, digest in digests.items() if zone not in self._older})
            for zone, theirs in self._older.items():
                _log.warning("zone_rules_are_old", zone=zone, ours=version, recorded=theirs)


def _rules() -> "ZoneRules":
    from accsd.planning.recurrence import zone_rules

    return zone_rules()


def _digests(zones: set[str], now: datetime) -> dict[str, str]:
    """The digest of each zone's rules, from the beginning of this year: the same in every process. A name that is no
    zone has none; the plan says what is wrong with it."""
    from accsd.planning.recurrence import zone_digest

    found: dict[str, str] = {}
    for zone in zones:
        try:
            found[zone] = zone_digest(_rules().zone(zone), datetime(now.astimezone(UTC).year, 1, 1, tzinfo=UTC))
        except UserError:
            continue
    return found


def rule_of(schedule: ScheduleToPlan, *, spread: timedelta = timedelta(0)) -> "Rule":
    """The rule that a schedule's row means; UserError says what is wrong with it."""
    from accsd.model.schedule import ScheduleTiming

    missing = [name for name in (*schedule.exclude, *schedule.only_on) if name not in schedule.calendars]
    if missing:
        raise UserError(f'there is no calendar "{missing[0]}"', hint="accsd schedules calendars import makes one")
    timing = ScheduleTiming(
        id=str(schedule.id),
        kind=schedule.kind,
        expr=schedule.expr,
        timezone=schedule.timezone,
        created_at=schedule.created_at,
        anchor=schedule.anchor,
        start_at=schedule.start_at,
        end_at=schedule.end_at,
        spread=schedule.spread,
        exclude=schedule.exclude,
        only_on=schedule.only_on,
        calendars=schedule.calendars,
    )
    return timing.rule(spread)


def plan_of(schedule: ScheduleToPlan, digest: str, *, spread: timedelta = timedelta(0)) -> dict[str, Any]:
    """The plan of a schedule, as accs.plan_schedules takes it. What is wrong with the schedule is its problem."""
    known = {"id": str(schedule.id), "revision": schedule.revision, "after": schedule.after}
    try:
        if schedule.kind in ("event", "condition"):  # nothing is due at a time
            _check_what_it_says(schedule)
            return known
        rule = rule_of(schedule, spread=spread)
        ahead = _Ahead.of(rule, schedule)
        return known | {
            "zone": schedule.timezone,
            "zone_version": rule.zone.version,
            "zone_digest": digest,
            "anchor": None if schedule.kind != "rrule" or rule.anchor is None else rule.anchor.isoformat(),
            "nominals": [each.nominal.isoformat() for each in ahead.found],
            "folds": [each.fold for each in ahead.found],
            "dues": [each.due_at.isoformat() for each in ahead.found],
            "notes": {str(i): note for i, each in enumerate(ahead.found, 1) if (note := _note(each))} or None,
            "options": _options(schedule, ahead.found),
            "gap": ahead.gap,
            "exhausted": _why_exhausted(rule, schedule) if ahead.is_exhausted else None,
            "unnamed": _unnamed(rule, schedule),
        }
    except UserError as error:
        return known | {"problem": str(error) + (f" ({error.hint})" if error.hint else "")}


def _check_what_it_says(schedule: ScheduleToPlan) -> None:
    """UserError says what is wrong with a schedule of kind event or condition."""
    from accsd.expressions.schedules import schedule_problems

    if schedule.kind == "event":
        _check_event(schedule)
        found = schedule_problems("event", options=schedule.options, filter=schedule.filter, gather=schedule.gather)
    else:
        _check_condition(schedule)
        found = schedule_problems("condition", options=schedule.options, condition=schedule.condition)
    for problem in found:
        raise UserError(f"{problem.path}: {problem.what}")


def _check_event(schedule: ScheduleToPlan) -> None:
    from accsd.planning.subscriptions import check_gather, check_topic

    check_topic(schedule.expr)
    if schedule.gather is not None:
        check_gather(schedule.gather)


def _check_condition(schedule: ScheduleToPlan) -> None:
    """SQL judges its samples by itself."""
    from accsd.planning.conditions import parse_condition

    condition = parse_condition(schedule.condition)
    if schedule.exclude or schedule.only_on:
        raise UserError("a condition has no calendar: exclude and only_on are for schedules by time")
    if (
        schedule.least_interval is not None
        and condition.every is not None
        and condition.every < schedule.least_interval
    ):
        raise UserError(f"it is measured more often than its owner may: every {schedule.least_interval} at most")


@dataclass(slots=True)
class _Ahead:
    """What is due after the last settled time: what an outage has left, and some that lie ahead."""

    found: list["Occurrence"]
    is_exhausted: bool
    gap: dict[str, Any] | None = None

    @classmethod
    def of(cls, rule: "Rule", schedule: ScheduleToPlan) -> "_Ahead":
        from accsd.planning.recurrence import next_occurrences

        found, exhausted = next_occurrences(rule, schedule.after, _AHEAD)
        if not found and not exhausted:
            raise UserError("its next time lies more than a century ahead", hint="nobody plans that far")
        often = len(found) > 1 and found[1].due_at - found[0].due_at <= _OFTEN
        wanted = _AHEAD_OFTEN if often else _AHEAD
        if not exhausted and (often or found[-1].due_at <= schedule.now):
            return cls._after_outage(rule, schedule, wanted)
        if schedule.least_interval is not None:
            _check_interval(found, schedule.least_interval)
        return cls(found, exhausted)

    @classmethod
    def _after_outage(cls, rule: "Rule", schedule: ScheduleToPlan, wanted: int) -> "_Ahead":
        from accsd.planning.recurrence import next_occurrences

        kept: deque[Occurrence] = deque(maxlen=_EACH_KEPT)
        first: Occurrence | None = None
        last: Occurrence | None = None
        dropped = 0
        after, exhausted = schedule.after, False
        while not exhausted:
            page, exhausted = next_occurrences(rule, after, _PAGE)
            behind = [each for each in page if each.due_at <= schedule.now]
            for each in behind:
                if len(kept) == _EACH_KEPT:
                    first, last, dropped = first or kept[0], kept[0], dropped + 1
                kept.append(each)
            if len(behind) < len(page):
                break
            if dropped > _MOST_COUNTED:
                after = max(page[-1].due_at, schedule.now - 2 * _EACH_KEPT * (page[-1].due_at - page[-2].due_at))
            elif page:
                after = page[-1].due_at
        more, exhausted = next_occurrences(rule, max(schedule.now, schedule.after), wanted)
        gap = None
        if first is not None and last is not None:
            gap = {"first": first.nominal.isoformat(), "last": last.nominal.isoformat(), "times": dropped}
        return cls([*kept, *more], exhausted, gap)


def _check_interval(found: Sequence["Occurrence"], least: timedelta) -> None:
    for early, late in pairwise(found):
        if timedelta(0) < late.due_at - early.due_at < least:
            raise UserError(f"it fires more often than its owner may: every {least.total_seconds():g} s at most")


def _note(occurrence: "Occurrence") -> dict[str, Any] | None:
    if occurrence.merged_into is not None:
        return {"merged": {"into": occurrence.merged_into.isoformat()}}
    if occurrence.excluded is not None:
        return {"excluded": {"calendar": occurrence.excluded.calendar, "label": occurrence.excluded.label}}
    return None


def _options(schedule: ScheduleToPlan, found: Sequence["Occurrence"]) -> dict[str, Any] | None:
    """Options that are templated over the occurrence, by its place in the plan."""
    if not schedule.options or schedule.kind in ("event", "condition"):
        return None
    from accsd.expressions import Context, has_templates, render
    from accsd.expressions.schedules import OCCURRENCE

    if not has_templates(dict(schedule.options)):
        return None
    return {
        str(i): render(
            dict(schedule.options),
            Context(
                {
                    "schedule": schedule.name,
                    "nominal": each.nominal.isoformat(),
                    "timezone": schedule.timezone,
                    "due_at": each.due_at,
                },
                OCCURRENCE,
            ),
        )
        for i, each in enumerate(found, 1)
    }


def _why_exhausted(rule: "Rule", schedule: ScheduleToPlan) -> str:
    if schedule.kind == "once":
        return "once"
    return "end_at" if rule.end_at is not None else "its rule names no further time"


def _unnamed(rule: "Rule", schedule: ScheduleToPlan) -> list[str]:
    """Snoozed occurrences that the rule does not name (any more)."""
    from accsd.planning.recurrence import occurrence_at

    def is_named(key: str) -> bool:
        nominal, _, fold = key.partition("/")
        named = occurrence_at(rule, datetime.fromisoformat(nominal)).named
        return any(each.fold == int(fold) for each in named)

    return [key for key in schedule.snoozed if not is_named(key)]
