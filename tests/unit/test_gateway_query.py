"""Filters as people type them, and the cursors of their pages."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accsd.db.views.job_list import JobFilter
from accsd.errors import InvalidValue
from accsd.gateway.paging import CursorMismatch, Cursors, limit_of
from accsd.gateway.query import QueryInvalid, parse, read_filter

NOW = datetime(2026, 11, 18, 15, 30, tzinfo=UTC)


def test_a_query_says_a_filter():
    asked = parse(
        'status:error,cancelled workflow:media option.shot:"010_020" node:gpu-1 took:>1h by:anna since:2d', NOW
    )
    assert asked == JobFilter(
        statuses=("error", "cancelled"),
        workflow="media",
        options={"shot": "010_020"},
        node="gpu-1",
        took_over=timedelta(hours=1),
        by="anna",
        since=NOW - timedelta(days=2),
    )


def test_words_without_a_colon_are_text_and_quotes_make_text_of_anything():
    assert parse('out "of memory" "http://x"', NOW).words == ("out", "of memory", "http://x")
    assert parse("", NOW) == parse('  "" ', NOW) == JobFilter()
    assert parse(r'"a \"b\" \\"', NOW).words == (r'a "b" \\'[:-1],)


@pytest.mark.parametrize(
    ("typed", "options"),
    [
        ("option.a:1", {"a": 1}),
        ('option.a:"1"', {"a": "1"}),
        ("option.a:true option.b:null", {"a": True, "b": None}),
        ("option.a:010", {"a": "010"}),
        ("option.a.b:x option.a.c:y", {"a": {"b": "x", "c": "y"}}),
        ("option.a:x option.a.b:y", {"a": {"b": "y"}}),
        ("option.a:s3://in/1.mov", {"a": "s3://in/1.mov"}),
        ("option.a:[1]", {"a": "[1]"}),
        ('option.a:""', {"a": ""}),
    ],
)
def test_options_are_json_where_they_read_so(typed: str, options: object):
    assert parse(typed, NOW).options == options


@pytest.mark.parametrize(
    ("typed", "moment"),
    [
        ("2d", NOW - timedelta(days=2)),
        ("1h30m", NOW - timedelta(minutes=90)),
        ("today", datetime(2026, 11, 18, tzinfo=UTC)),
        ("yesterday", datetime(2026, 11, 17, tzinfo=UTC)),
        ("2026-11-15", datetime(2026, 11, 15, tzinfo=UTC)),
        ("2026-11-15T10:00+02:00", datetime(2026, 11, 15, 8, tzinfo=UTC)),
        ("2026-11-15T10:00Z", datetime(2026, 11, 15, 10, tzinfo=UTC)),
    ],
)
def test_times_are_lengths_days_or_instants(typed: str, moment: datetime):
    assert parse(f"since:{typed}", NOW).since == moment
    assert read_filter({"until": typed}, NOW).until == moment


@pytest.mark.parametrize(
    ("typed", "position", "length", "said"),
    [
        ("workflow:media stauts:error", 15, 12, 'there is no qualifier "stauts" (did you mean "status"?)'),
        ("status:eror", 7, 4, '"eror" is no state of a job (did you mean "error"?)'),
        ("since:soon", 6, 4, '"soon" is no time'),
        ("since:0001-01-01T00:00+14:00", 6, 22, "is no time"),
        ("took:1h", 5, 2, '"1h" is no comparison'),
        ("took:>1x", 5, 3, "is no comparison"),
        ('text "never closed', 5, 13, "the quote is not closed"),
        ("workflow: media", 0, 9, "workflow: says nothing"),
        ("workflow:a workflow:b", 20, 1, "it is said twice"),
        ("option.:x", 0, 9, 'there is no qualifier "option"'),
        ("option.a..b:x", 12, 1, "the name of the option is not complete"),
        ("workflow.x:y", 0, 12, "there is no qualifier"),
        ("http://x", 0, 8, 'there is no qualifier "http"'),
        ("since:99999999w", 6, 9, "is no time"),
    ],
)
def test_what_is_not_understood_is_said_with_its_position(typed: str, position: int, length: int, said: str):
    with pytest.raises(QueryInvalid) as caught:
        parse(typed, NOW)
    error = caught.value
    assert (error.parameter, error.position, error.length) == ("q", position, length)
    assert said in error.message


def test_parameters_and_query_must_agree():
    assert read_filter({"q": "node:a", "status": "queued,running", "took": "<5m"}, NOW) == JobFilter(
        statuses=("queued", "running"), node="a", took_under=timedelta(minutes=5)
    )
    assert read_filter({"q": "node:a", "node": "a"}, NOW).node == "a"
    with pytest.raises(QueryInvalid, match="node, character 1: it is said twice"):
        read_filter({"q": "node:a", "node": "b"}, NOW)
    with pytest.raises(QueryInvalid) as caught:
        read_filter({"status": "broken"}, NOW)
    assert caught.value.parameter == "status"


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_refused(typed: str):
    try:
        asked = parse(typed, NOW)
    except QueryInvalid as error:
        asked, position = JobFilter(), error.position
    else:
        position = 0
    assert 0 <= position <= len(typed)
    assert JobFilter.from_document(asked.document()) == asked


@given(
    st.builds(
        JobFilter,
        statuses=st.lists(st.sampled_from(["done", "error"]), unique=True).map(tuple),
        workflow=st.none() | st.text(),
        since=st.none() | st.datetimes(timezones=st.just(UTC)),
        options=st.none() | st.dictionaries(st.text(), st.integers() | st.text(), min_size=1),
        took_over=st.none() | st.timedeltas(timedelta(0), timedelta(days=1000)),
        words=st.lists(st.text()).map(tuple),
        up_to=st.none() | st.integers(),
        within=st.none() | st.lists(st.text()).map(tuple),
    )
)
def test_a_filter_is_the_same_after_it_was_written_down(asked: JobFilter):
    assert JobFilter.from_document(asked.document()) == asked


@pytest.mark.parametrize("document", [{"colour": "red"}, {"status": "done"}, {"since": 5}, {"until_order_seq": "x"}])
def test_what_is_no_filter_is_refused(document: dict[str, object]):
    with pytest.raises(InvalidValue):
        JobFilter.from_document(document)


# Cursors


def test_a_cursor_is_opened_by_whoever_has_the_key():
    sealed = Cursors(b"k" * 32).seal([17, "x"], {"q": "a", "order": "newest"})
    assert Cursors(b"k" * 32).open(sealed, {"order": "newest", "q": "a"}) == [17, "x"]
    with pytest.raises(CursorMismatch, match="none of this installation"):
        Cursors(b"l" * 32).open(sealed, {"order": "newest", "q": "a"})
    with pytest.raises(CursorMismatch, match="another filter"):
        Cursors(b"k" * 32).open(sealed, {"order": "oldest", "q": "a"})


@given(st.integers(0, 200), st.integers(0, 63))
def test_a_cursor_that_was_changed_is_refused(place: int, other: int):
    cursors = Cursors(b"k" * 32)
    sealed = cursors.seal([2**60, "01890000-0000-7000-8000-000000000000"], {})
    letter = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"[other]
    place %= len(sealed)
    changed = sealed[:place] + letter + sealed[place + 1 :]
    if changed[: len(sealed) - 1] == sealed[:-1]:
        return  # the last letter has bits that say nothing
    with pytest.raises(CursorMismatch):
        cursors.open(changed, {})


@given(st.text(max_size=40))
def test_any_text_is_no_cursor(text: str):
    with pytest.raises(CursorMismatch):
        Cursors(b"k" * 32).open(text, {})


def test_a_page_has_one_to_five_hundred_items():
    assert [limit_of(None), limit_of("1"), limit_of("500")] == [50, 1, 500]
    for text in ("0", "501", "-1", "x", "", "1e2", "٣"):
        with pytest.raises(InvalidValue, match="is not a number from 1 to 500"):
            limit_of(text)
