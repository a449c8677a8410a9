"""What a condition's document means, and what is wrong with one."""

from datetime import timedelta
from typing import Any

import pytest

from accsd.errors import InvalidValue
from accsd.explain.conditions import meaning
from accsd.planning.conditions import SampleSource, parse_condition

PROBE = {"source": {"sql": "SELECT 1"}, "every": "10s"}


def test_a_document_is_read_with_its_defaults():
    """CO1, CO2, CO5."""
    found = parse_condition({"above": 100, **PROBE, "for": "1h30m", "repeat": None})
    assert found.source == SampleSource("sql", "SELECT 1")
    how = found.judgement
    assert (how.samples, how.clear_samples, how.lasts) == (1, 1, timedelta(minutes=90))
    assert (how.stale, how.on_unknown, how.repeat, how.fire_initially) == (timedelta(seconds=30), "keep", None, False)
    assert parse_condition({"is": True}).judgement.stale is None


def test_true_is_not_one():
    how = parse_condition({"is": True}).judgement
    assert how.raises(True)
    assert not how.raises(1)
    assert how.clears_at(1)


def test_a_path_leads_into_an_answer():
    source = parse_condition(
        {"source": {"http": {"url": "https://h/x", "path": "a.0.b"}}, "every": 60, "above": 1}
    ).source
    assert (source.about, source.path) == ("https://h/x", ("a", "0", "b"))


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (None, "above, below or is"),
        ({"above": True}, "above is a number"),
        ({"is": "yes"}, "a number, true or false"),
        ({"is": 1, "clear_below": 0}, "does not go with is"),
        ({"above": 1, "samples": 0}, "from 1 to 100"),
        ({"above": 1, "samples": 1.5}, "from 1 to 100"),
        ({"above": 1, "for": "soon"}, "for: a duration"),
        ({"above": 1, "on_unknown": "raise"}, "say every, or stale"),
        ({"above": 1, "every": "1m", "stale": "30s"}, "shorter than every"),
        ({"above": 1, "fire_initially": 1}, "true or false"),
        ({"above": 1, "expr": "value"}, "for probes"),
        ({"above": 1, "source": {}}, "one of sql"),
        ({"above": 1, "source": "inside"}, "one of sql"),
        ({"above": 1, "source": {"http": "ftp://h"}}, "no address"),
        ({"above": 1, "source": {"http": "https://[::1"}}, "no address"),
        ({"above": 1, "source": {"http": "https://h:99999"}}, "no address"),
        ({"above": 1, "source": {"http": {"path": "a"}}}, '"url"'),
        ({"above": 1, "source": {"builtin": "waiting"}}, "of a service"),
        ({"above": 1, "source": {"builtin": {"wating": "x"}}}, 'did you mean "waiting"'),
        ({"above": 1, "source": {"sql": ""}}, "1 to 20000"),
        ({"above": 1, "source": {"sql": "SELECT 1"}, "every": 4}, "5 s at most"),
    ],
)
def test_what_is_wrong_is_said(document: dict[str, Any] | None, said: str):
    with pytest.raises(InvalidValue) as refused:
        parse_condition(document)
    assert said in refused.value.message


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"above": 100}, "raised above 100; samples are reported"),
        ({"below": 5, "clear_above": 7, "clear_samples": 2}, "raised below 5, clear above 7 for 2 samples; "),
        ({"is": False, "stale": 60, "on_unknown": "raise"}, "raised at false, raised without a value for 1m"),
        ({**PROBE, "above": 1, "repeat": "1h"}, "again every 1h, unknown without a value for 30s; a statement is run"),
        ({"above": 1, "source": {"silence": "a.b"}, "every": "1m"}, "the silence of a.b is measured every 1m"),
        ({"abov": 1}, 'a condition has no "abov"'),
    ],
)
def test_a_condition_in_words(document: dict[str, Any], words: str):
    """PV2."""
    assert words in meaning(document)
