"""RFC 5545 rules: what they mean, what they cost, and with which words the others are refused."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from dateutil.rrule import rrulestr
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from accsd.errors import InvalidValue
from accsd.planning.recurrence import Rule, parse_rule
from accsd.planning.recurrence.pattern import Freq, nth_nominal
from accsd.planning.recurrence.rrule import RecurrenceSet
from tests.support.effort import refusal_within_50_ms, seconds
from tests.support.occurrences import plan

CREATED = datetime(2025, 12, 1, 10, 30, tzinfo=UTC)
ANCHOR = datetime.fromisoformat("2025-12-01T00:00:00")


def rrule(expr: str, zone: str = "UTC", **more: Any) -> Rule:
    arguments: dict[str, Any] = {"schedule_id": "s", "created_at": CREATED} | more
    return parse_rule("rrule", expr, zone, **arguments)


def nominals(expr: str, n: int, after: datetime = CREATED, **more: Any) -> list[str]:
    return [f"{each:%Y-%m-%d %H:%M:%S}" for each in plan(rrule(expr, **more), after, n).nominals]


def test_the_last_friday_of_each_month_at_five():
    """The second example of the seed; RR3: BYHOUR=17 means 17:00:00."""
    days = ["2025-12-26", "2026-01-30", "2026-02-27"]
    assert nominals("FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17", 3) == [f"{day} 17:00:00" for day in days]


def test_the_anchor_is_the_local_day_of_creation_at_midnight():
    """RR3: on 1 December at 23:30 UTC it is the 2nd in Chisinau."""
    one = rrule("FREQ=WEEKLY;INTERVAL=2", "Europe/Chisinau", created_at=datetime(2025, 12, 1, 23, 30, tzinfo=UTC))
    assert one.anchor == datetime.fromisoformat("2025-12-02T00:00:00")


def test_an_anchor_gives_what_the_rule_leaves_open():
    """RR3."""
    anchor = datetime.fromisoformat("2025-11-20T08:15:30")
    assert nominals("FREQ=WEEKLY", 1, anchor=anchor) == ["2025-12-04 08:15:30"]
    assert nominals("FREQ=DAILY;BYHOUR=17", 1, anchor=anchor) == ["2025-12-01 17:15:30"]
    assert nominals("FREQ=HOURLY", 1, anchor=anchor) == ["2025-12-01 11:15:30"]
    assert nominals("DTSTART:20251121T091500\nRRULE:FREQ=WEEKLY", 1, anchor=anchor) == ["2025-12-05 09:15:00"]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("DTSTART;TZID=America/New_York:20251202T090000\nRRULE:FREQ=DAILY", "2025-12-02 16:00:00"),
        ("DTSTART:20251202T090000Z\nRRULE:FREQ=DAILY", "2025-12-02 11:00:00"),
        ("DTSTART;TZID=Europe/Chisinau:20251202T090000\nRRULE:FREQ=DAILY", "2025-12-02 09:00:00"),
        ("DTSTART;VALUE=DATE:20251202\nFREQ=DAILY", "2025-12-02 00:00:00"),
        ("RDATE;TZID=America/New_York:20251202T090000", "2025-12-02 16:00:00"),
        ("rrule:freq=daily;byhour=9", "2025-12-02 09:00:00"),
        ("RRULE:FREQ=DAILY;BYHOUR=9;\r\nEXDATE:20251202T090000,\r\n 20251203T090000", "2025-12-04 09:00:00"),
    ],
)
def test_times_of_another_zone_are_converted(text: str, first: str):
    """RR2."""
    assert nominals(text, 1, zone="Europe/Chisinau") == [first]


@pytest.mark.parametrize(
    ("until", "last"),
    [
        ("20251203", "2025-12-03 21:00:00"),  # a date is the end of that local day
        ("20251203T090000", "2025-12-03 09:00:00"),
        ("20251203T070000Z", "2025-12-03 09:00:00"),
        ("20251203T065959Z", "2025-12-02 21:00:00"),
    ],
)
def test_until_is_local_or_converted(until: str, last: str):
    """RR2."""
    rule = rrule(f"FREQ=DAILY;BYHOUR=9,21;UNTIL={until}", "Europe/Chisinau")
    found = plan(rule, CREATED, 20)
    assert found.exhausted
    assert f"{found.nominals[-1]}" == last


def test_an_exdate_takes_away_a_time_or_a_whole_day():
    """RR5."""
    text = "RRULE:FREQ=DAILY;BYHOUR=9,21\nEXDATE:20251202T090000\nEXDATE;VALUE=DATE:20251203"
    assert nominals(text, 3) == ["2025-12-01 21:00:00", "2025-12-02 21:00:00", "2025-12-04 09:00:00"]


def test_what_exdate_takes_away_counts_and_what_rdate_adds_does_not():
    text = "FREQ=DAILY;COUNT=3\nEXDATE:20251202\nRDATE:20251202T120000,20251224T120000"
    assert nominals(text, 9, after=datetime(2025, 11, 30, tzinfo=UTC)) == [
        *("2025-12-01 00:00:00", "2025-12-03 00:00:00", "2025-12-24 12:00:00"),
    ]


def test_days_with_and_without_an_ordinal_are_one_list():
    days = ["2025-12-02", "2025-12-05", "2025-12-12", "2025-12-19", "2025-12-26", "2026-01-02", "2026-01-06"]
    assert nominals("FREQ=MONTHLY;BYDAY=FR,1TU", 7) == [f"{day} 00:00:00" for day in days]


@pytest.mark.parametrize(
    ("expr", "words"),
    [
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL"),
        ("FREQ=DAILY;INTERVAL=-1", "INTERVAL"),
        ("FREQ=DAILY;INTERVAL=1.5", "INTERVAL"),
        ("FREQ=DAILY;COUNT=0", "COUNT"),
        ("FREQ=SECONDLY;COUNT=100001", "COUNT"),
        ("FREQ=DAILY;COUNT=3;UNTIL=20300101", "both COUNT and UNTIL"),
        ("FREQ=WEEKLY;BYDAY=1MO", "ordinal"),
        ("FREQ=DAILY;BYDAY=-1FR", "ordinal"),
        ("FREQ=YEARLY;BYWEEKNO=20;BYDAY=1MO", "ordinal"),
        ("FREQ=MONTHLY;BYDAY=6MO", "at most 5"),
        ("FREQ=MONTHLY;BYDAY=0MO", "at most 5"),
        ("FREQ=YEARLY;BYDAY=54MO", "at most 53"),
        ("FREQ=MONTHLY;BYDAY=XX", "-1FR"),
        ("FREQ=DAILY;BYHOUR=24", "0 to 23"),
        ("FREQ=DAILY;BYMINUTE=60", "0 to 59"),
        ("FREQ=DAILY;BYSECOND=60", "leap second"),
        ("FREQ=MONTHLY;BYMONTHDAY=0", "1 to 31"),
        ("FREQ=MONTHLY;BYMONTHDAY=-32", "1 to 31"),
        ("FREQ=YEARLY;BYMONTH=13", "1 to 12"),
        ("FREQ=YEARLY;BYMONTH=-1", "1 to 12"),
        ("FREQ=YEARLY;BYYEARDAY=367", "1 to 366"),
        ("FREQ=YEARLY;BYWEEKNO=54;BYDAY=MO", "1 to 53"),
        ("FREQ=YEARLY;BYWEEKNO=20", "BYDAY=MO"),
        ("FREQ=MONTHLY;BYWEEKNO=20;BYDAY=MO", "goes with YEARLY"),
        ("FREQ=DAILY;BYYEARDAY=100", "BYYEARDAY cannot stand"),
        ("FREQ=WEEKLY;BYMONTHDAY=1", "BYMONTHDAY cannot stand"),
        ("FREQ=MONTHLY;BYSETPOS=1", "BYSETPOS"),
        ("FREQ=MONTHLY;BYDAY=MO;BYSETPOS=367", "BYSETPOS"),
        ("FREQ=WEEKLY;WKST=XX", "WKST"),
        ("FREQ=FORTNIGHTLY", "FREQ"),
        ("FREQ=", "FREQ"),
        ("BYHOUR=9", "no FREQ"),
        ("FREQ=DAILY;FREQ=WEEKLY", "twice"),
        ("FREQ=DAILY;BYHUOR=9", 'did you mean "BYHOUR"'),
        ("FREQ=YEARLY;BYEASTER=0", "BYEASTER"),
        ("FREQ=DAILY;X-FOO=1", "X-FOO"),
        ("RSCALE=CHINESE;FREQ=YEARLY", "Gregorian"),
        ("FREQ=DAILY\nEXRULE:FREQ=WEEKLY", "EXDATE"),
        ("RRULE:FREQ=DAILY\nRRULE:FREQ=WEEKLY", "two schedules"),
        ("DTSTART:20250101\nDTSTART:20250102\nFREQ=DAILY", "one DTSTART"),
        ("DTSTART:20250101T000000", "needs a rule"),
        ("SUMMARY:hello", "SUMMARY"),
        ("FREQ=DAILY;UNTIL=20200101", "before the rule begins"),
        ("FREQ=DAILY;UNTIL=tomorrow", "UNTIL"),
        ("FREQ=DAILY;UNTIL=20251301", "no calendar"),
        ("FREQ=DAILY;UNTIL=99991231T235959Z", "2999"),
        ("RDATE:20251225", "without a time"),
        ("RDATE;VALUE=PERIOD:20251225T090000/PT1H", "PERIOD"),
        ("RDATE;TZID=Mars/Base:20251225T090000", "Mars/Base"),
        ("RDATE:" + ",".join(["20251225T090000"] * 1_001), "1000"),
        ("", "empty"),
        (";;;;", "unknown part"),
        ("FREQ=DAILY;BYHOUR=" + "9," * 20_000, "characters"),
        ("FREQ=DAILY;BYHOUR=,", "BYHOUR"),
        ("FREQ=DAILY;BYHOUR=٣", "ASCII"),
        ("FREQ=DAILY;COUNT=" + "9" * 5_000, "COUNT"),
        # RR4: what never matches, or hardly ever
        ("FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30", "never fires"),
        ("FREQ=MINUTELY;BYMONTH=2;BYMONTHDAY=30", "never fires"),
        ("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30", "never fires"),
        ("FREQ=MONTHLY;BYMONTH=2;BYMONTHDAY=30", "never fires"),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "never fires"),
        ("FREQ=YEARLY;BYWEEKNO=53;BYMONTH=6;BYDAY=MO", "never fires"),
        ("FREQ=YEARLY;BYYEARDAY=366;BYMONTHDAY=30", "never fires"),
        ("FREQ=YEARLY;BYMONTH=1;BYMONTHDAY=1;BYSETPOS=300", "never fires"),
        ("FREQ=HOURLY;INTERVAL=2;BYHOUR=3", "never fires"),
        ("FREQ=SECONDLY;INTERVAL=60;BYSECOND=7", "never fires"),
        ("FREQ=MINUTELY;BYSECOND=0;BYSETPOS=2", "never fires"),
        ("FREQ=SECONDLY;INTERVAL=86390;BYHOUR=3;BYMINUTE=0;BYSECOND=5", "never fires"),
        ("FREQ=YEARLY;INTERVAL=60;BYMONTH=1;BYMONTHDAY=1", "never fires"),
        ("FREQ=DAILY;COUNT=1\nEXDATE:20251201", "never fires"),
    ],
)
def test_a_hostile_or_wrong_rule_is_refused_with_a_reason_within_50_ms(expr: str, words: str):
    """RR1, RR4."""
    refusal = refusal_within_50_ms(lambda: rrule(expr))
    assert words in f"{refusal.message} {refusal.hint}"
    assert len(refusal.message) < 300


@pytest.mark.parametrize(
    "expr",
    [
        "FREQ=MINUTELY",
        "FREQ=SECONDLY",
        "FREQ=SECONDLY;INTERVAL=7;BYHOUR=9",
        "FREQ=MINUTELY;INTERVAL=13;BYDAY=MO",
        "FREQ=HOURLY;BYMINUTE=0,30;BYSETPOS=-1",
        "FREQ=DAILY;BYHOUR=9",
        "FREQ=WEEKLY;INTERVAL=3;BYDAY=MO,WE",
        "FREQ=MONTHLY;BYDAY=2TU",
    ],
)
def test_a_rule_that_began_decades_ago_costs_no_more_than_a_new_one(expr: str):
    """RR4."""
    anchor = datetime.fromisoformat("1970-01-01T00:00:00")
    assert seconds(lambda: plan(rrule(expr, anchor=anchor), CREATED, 32)) < 0.05
    assert len(plan(rrule(expr, anchor=anchor), CREATED, 32)) == 32


def test_a_rare_time_behind_a_near_one_does_not_spoil_the_plan():
    """RR4: 31 December was the 366th day of a year, and a Saturday, in 2044 and will be in 2072."""
    found = plan(rrule("FREQ=HOURLY;BYYEARDAY=366;BYDAY=SA;BYHOUR=9"), datetime(2040, 1, 1, tzinfo=UTC), 5)
    assert [f"{each}" for each in found.nominals] == ["2044-12-31 09:00:00"]
    assert not found.exhausted


@pytest.mark.parametrize(
    "expr",
    [
        "FREQ=MINUTELY;COUNT=100000",
        "FREQ=MINUTELY;COUNT=1000;BYHOUR=9",
        "FREQ=SECONDLY;INTERVAL=7;COUNT=20000;BYHOUR=9,10;BYSECOND=0,3,9",
        "FREQ=HOURLY;INTERVAL=5;COUNT=2000;BYDAY=MO,FR;BYMINUTE=10,20",
        "FREQ=DAILY;COUNT=1000;BYMONTH=1,2",
        "FREQ=MONTHLY;COUNT=100;BYDAY=-1FR",
    ],
)
def test_a_counted_rule_ends_where_dateutil_ends_it(expr: str):
    anchor = datetime.fromisoformat("2025-12-01T09:20:07")
    source = rrule(expr, anchor=anchor).source
    assert isinstance(source, RecurrenceSet)
    theirs = list(rrulestr(expr, dtstart=anchor))
    assert list(source.nominals(theirs[-20])) == theirs[-20:]
    assert list(source.nominals(anchor))[:50] == theirs[:50]


def listed(numbers: st.SearchStrategy[int], most: int = 3) -> st.SearchStrategy[str]:
    return st.lists(numbers, min_size=1, max_size=most, unique=True).map(lambda each: ",".join(map(str, each)))


def signed(most: int) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(1, most), st.integers(-most, -1))


DAYS = st.sampled_from(["MO", "TU", "WE", "TH", "FR", "SA", "SU"])


@st.composite
def written_rules(draw: st.DrawFn) -> str:
    """Rules within the RFC's limits, with every part that the frequency allows now and then."""
    freq = draw(st.sampled_from(list(Freq)))
    parts = [f"FREQ={freq}", f"INTERVAL={draw(st.integers(1, 4))}"]

    def maybe(name: str, values: st.SearchStrategy[str], among: tuple[Freq, ...] = tuple(Freq)) -> None:
        if freq in among and draw(st.integers(0, 3)) == 0:
            parts.append(f"{name}={draw(values)}")

    maybe("BYMONTH", listed(st.integers(1, 12), 6))
    maybe("BYMONTHDAY", listed(signed(31)), tuple(each for each in Freq if each != Freq.WEEKLY))
    maybe("BYYEARDAY", listed(signed(366), 20), (Freq.YEARLY, Freq.HOURLY, Freq.MINUTELY))
    by_week = freq is Freq.YEARLY and draw(st.booleans()) and draw(st.booleans())
    if by_week:
        parts.append(f"BYWEEKNO={draw(listed(st.one_of(st.integers(1, 53), st.integers(-5, -1))))}")
    # dateutil wants MO,1TU to be both at once; by the RFC either is enough
    is_ordinal = freq in (Freq.MONTHLY, Freq.YEARLY) and not by_week and draw(st.booleans())
    day = st.builds(lambda number, name: f"{number or ''}{name}", signed(5) if is_ordinal else st.just(0), DAYS)
    if by_week or draw(st.booleans()):
        parts.append("BYDAY=" + ",".join(draw(st.lists(day, min_size=1, max_size=4, unique=True))))
    maybe("BYHOUR", listed(st.integers(0, 23)))
    maybe("BYMINUTE", listed(st.integers(0, 59)))
    maybe("BYSECOND", listed(st.integers(0, 59)))
    maybe("WKST", DAYS)
    if any(part.startswith("BY") for part in parts):
        # dateutil's first week begins at the anchor, while its first month and year are whole
        maybe("BYSETPOS", listed(signed(4)), tuple(each for each in Freq if each != Freq.WEEKLY))
    return ";".join(parts)


def first_times(expr: str, anchor: datetime) -> list[datetime]:
    """The first twelve times of a rule; none where the search for them would take too long."""
    try:
        source = rrule(expr, anchor=anchor).source
        assert isinstance(source, RecurrenceSet)
        return list(islice(source.nominals(anchor), 12))
    except InvalidValue:
        return []


WHERE_DATEUTIL_IS_QUICK = dict.fromkeys(Freq, timedelta(days=1500)) | {
    Freq.HOURLY: timedelta(days=100),
    Freq.MINUTELY: timedelta(days=3),
    Freq.SECONDLY: timedelta(hours=1),
}


@given(written_rules(), st.datetimes(datetime.fromisoformat("2020-01-01"), datetime.fromisoformat("2026-01-01")))
@settings(max_examples=400, deadline=None)
def test_a_rule_means_what_dateutil_says(expr: str, anchor: datetime):
    """Another reading of the RFC. dateutil may search for ever, so it is asked only where ours has found something."""
    anchor = anchor.replace(microsecond=0)
    found = first_times(expr, anchor)
    last = anchor + WHERE_DATEUTIL_IS_QUICK[Freq(expr.split(";")[0].removeprefix("FREQ="))]
    ours = [each for each in found if each < last]
    assume(ours)
    assert ours == list(islice(rrulestr(expr, dtstart=anchor), len(ours)))


@given(written_rules(), st.integers(0, 11))
@settings(max_examples=200, deadline=None)
def test_a_search_from_later_on_finds_the_same_times(expr: str, skipped: int):
    found = first_times(expr, ANCHOR)
    assume(skipped < len(found))
    source = rrule(expr, anchor=ANCHOR).source
    assert isinstance(source, RecurrenceSet)
    assert list(islice(source.nominals(found[skipped]), len(found) - skipped)) == found[skipped:]


@given(written_rules(), st.integers(0, 11), st.datetimes(ANCHOR, ANCHOR + timedelta(days=500)))
@settings(max_examples=200, deadline=None)
def test_counting_to_an_occurrence_finds_the_same_time(expr: str, skipped: int, anchor: datetime):
    """COUNT is turned into the last time that it allows, without a walk through all of them."""
    anchor = anchor.replace(microsecond=0)
    found = first_times(expr, anchor)
    assume(skipped < len(found))
    assume(found[skipped] < anchor + timedelta(days=100 * 365))  # it counts no further than two centuries
    source = rrule(expr, anchor=anchor).source
    assert isinstance(source, RecurrenceSet)
    assert source.pattern is not None
    assert nth_nominal(source.pattern, skipped + 1) == found[skipped]
