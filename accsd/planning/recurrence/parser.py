"""The one way to make a rule from what somebody wrote. It refuses with a reason whatever is wrong, ambiguous, never
fires or costs too much, and takes milliseconds to do so."""

from collections.abc import Sequence
from datetime import datetime, time, timedelta
from typing import Final

from accsd.errors import InvalidValue
from accsd.planning.recurrence.calendars import Calendar
from accsd.planning.recurrence.cron import Cron, parse_cron
from accsd.planning.recurrence.plan import shortest_gap
from accsd.planning.recurrence.points import EPOCH, EVERY, parse_interval, parse_once
from accsd.planning.recurrence.rrule import RecurrenceSet, parse_rrule
from accsd.planning.recurrence.rule import OnTheClock, OnTheLine, Rule, RuleKind
from accsd.planning.recurrence.text import check_aware, quoted, shown_span, within_years
from accsd.planning.recurrence.zones import Zone, ZoneRules, zone_rules

_LOOKING_AHEAD: Final = timedelta(days=50 * 366)


def parse_rule(
    kind: str,
    expr: str,
    zone: str,
    *,
    schedule_id: str,
    created_at: datetime,
    anchor: datetime | None = None,
    start_at: datetime | None = None,
    end_at: datetime | None = None,
    spread: timedelta = timedelta(0),
    exclude: Sequence[Calendar] = (),
    only_on: Sequence[Calendar] = (),
    rules: ZoneRules | None = None,
) -> Rule:
    """The same arguments make the same rule at any time: `created_at` is the schedule's, not the present. The anchor of
    an rrule is local to the zone; without one, and without a DTSTART, it is the day of creation, at 00:00:00."""
    rules = rules or zone_rules()
    place = rules.zone(zone)
    created = check_aware(created_at, "created_at")
    begin = None if start_at is None else check_aware(start_at, "start_at")
    end = None if end_at is None else check_aware(end_at, "end_at")
    known = _kind(kind, expr)
    source = _source(known, expr, schedule_id, _anchor(known, anchor, created, begin, place), place, rules)
    rule = Rule(
        kind=known,
        expr=expr.strip(),
        expanded=_expanded(expr, source),
        zone=place,
        schedule_id=schedule_id,
        source=source,
        anchor=getattr(source, "anchor", None),
        start_at=begin,
        end_at=end,
        spread=spread,
        exclude=tuple(exclude),
        only_on=tuple(only_on),
    )
    _check_fires(rule, created)
    _check_bounds(rule)
    _check_spread(rule, created)
    return rule


def first_anchor(created_at: datetime, zone: Zone) -> datetime:
    """Where an rrule counts from that says nothing of it: the local day of its creation, at 00:00:00."""
    return datetime.combine(zone.local(created_at).date(), time())


def _kind(kind: str, expr: str) -> RuleKind:
    if kind not in set(RuleKind):
        raise InvalidValue(f"{quoted(kind)} is no kind of schedule with times", hint=f"there are {', '.join(RuleKind)}")
    if kind == RuleKind.CRON and expr.strip().lower().startswith(EVERY):
        return RuleKind.INTERVAL
    return RuleKind(kind)


def _anchor(
    kind: RuleKind, anchor: datetime | None, created: datetime, start_at: datetime | None, zone: Zone
) -> datetime:
    if kind is RuleKind.INTERVAL:
        return start_at or EPOCH
    if anchor is None:
        return first_anchor(created, zone)
    if anchor.tzinfo is not None:
        raise InvalidValue("an anchor is local to the schedule's time zone", hint="write it as 2025-12-25T09:00:00")
    return within_years(anchor)


def _source(
    kind: RuleKind, expr: str, schedule_id: str, anchor: datetime, zone: Zone, rules: ZoneRules
) -> OnTheClock | OnTheLine:
    if kind is RuleKind.CRON:
        return parse_cron(expr, schedule_id)
    if kind is RuleKind.RRULE:
        return parse_rrule(expr, anchor, zone, rules)
    return parse_once(expr) if kind is RuleKind.ONCE else parse_interval(expr, anchor)


def _expanded(expr: str, source: OnTheClock | OnTheLine) -> str:
    if isinstance(source, Cron):
        return source.expanded
    written = expr.strip()
    return written[len(EVERY) :].strip() if written.lower().startswith(EVERY) else written


def _check_fires(rule: Rule, created: datetime) -> None:
    """A rule has an occurrence within 50 years of its beginning."""
    source = rule.source
    if not isinstance(source, Cron | RecurrenceSet):
        return
    begin = source.anchor if isinstance(source, RecurrenceSet) else rule.zone.local(created).replace(tzinfo=None)
    first = next(source.nominals(begin), None)
    if first is None or first - begin > _LOOKING_AHEAD:
        raise InvalidValue(f"the {rule.kind} {quoted(rule.expr)} never fires: it names no time within 50 years")


def _check_bounds(rule: Rule) -> None:
    if rule.start_at is not None and rule.end_at is not None and rule.end_at <= rule.start_at:
        raise InvalidValue("end_at is not after start_at", hint="a schedule runs at start_at, and no longer at end_at")


def _check_spread(rule: Rule, created: datetime) -> None:
    if rule.spread < timedelta(0):
        raise InvalidValue("a spread is not negative")
    gap = shortest_gap(rule, created) if rule.spread else None
    if gap is not None and rule.spread >= gap:
        raise InvalidValue(
            f"a spread of {shown_span(rule.spread)} is not smaller than {shown_span(gap)}, the shortest time between "
            "two of the next 100 occurrences"
        )
