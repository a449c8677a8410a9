"""When a schedule is due: expressions in, occurrences out. Pure, but for the files of the time zone rules.

An occurrence is a time on the wall clock of the schedule's zone. Its instant is derived from it, by one rule for cron
and RRULE, and may move when the rules of the zone change; its identity (nominal time and fold) does not.
"""

from accsd.planning.recurrence.calendars import Calendar, Entry, Exclusion, calendar_from_ics, calendar_from_list
from accsd.planning.recurrence.instant import Touch, instant_of
from accsd.planning.recurrence.lint import LintWarning, lint
from accsd.planning.recurrence.occurrences import Occurrence
from accsd.planning.recurrence.parser import first_anchor, parse_rule
from accsd.planning.recurrence.plan import Neighbourhood, next_occurrences, occurrence_at
from accsd.planning.recurrence.preview import Mark, MarkKind, PreviewRow, preview
from accsd.planning.recurrence.rule import Rule, RuleKind
from accsd.planning.recurrence.text import parse_time
from accsd.planning.recurrence.words import explain, missed_in_words, next_in_words, overlap_in_words
from accsd.planning.recurrence.zones import Zone, ZoneRules, is_older, rules_in, zone_digest, zone_rules

__all__ = [
    "Calendar",
    "Entry",
    "Exclusion",
    "LintWarning",
    "Mark",
    "MarkKind",
    "Neighbourhood",
    "Occurrence",
    "PreviewRow",
    "Rule",
    "RuleKind",
    "Touch",
    "Zone",
    "ZoneRules",
    "calendar_from_ics",
    "calendar_from_list",
    "explain",
    "first_anchor",
    "instant_of",
    "is_older",
    "lint",
    "missed_in_words",
    "next_in_words",
    "next_occurrences",
    "occurrence_at",
    "overlap_in_words",
    "parse_rule",
    "parse_time",
    "preview",
    "rules_in",
    "zone_digest",
    "zone_rules",
]
