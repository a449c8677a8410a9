"""The verdict on a deployment and its hints, as SeqPulse gives them (GATEWAYS 2.6). Pure."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accsd.planning.hints import Hint, Severity, hints_of
from accsd.planning.verdict import Issue, Judgement, Metric, MetricSample, Outcome, judge
from accsd.settings import AnalysisSettings

RULES = AnalysisSettings()
BEGAN = datetime(2026, 11, 18, 12, tzinfo=UTC)
WELL = MetricSample(requests_per_sec=4.0, latency_p95=120.0, error_rate=0.0, cpu_usage=0.3, memory_usage=0.4)
BAD: dict[Metric, float] = {
    "requests_per_sec": 3.0,
    "latency_p95": 280.0,
    "error_rate": 0.0095,
    "cpu_usage": 0.75,
    "memory_usage": 0.75,
}


def at(minute: float, **values: Any) -> MetricSample:
    return replace(WELL, collected_at=BEGAN + timedelta(minutes=minute), **values)


def posts(count: int = 5, **bad: int) -> list[MetricSample]:
    """So many samples, of which the last ones are bad in these metrics."""
    return [
        at(1 + n, **{metric: BAD[metric] for metric, times in bad.items() if n >= count - times})  # type: ignore[index]
        for n in range(count)
    ]


def judged(
    post: list[MetricSample], *, pre: list[MetricSample] | None = None, now: datetime | None = None, **rules: Any
) -> Judgement:
    end = BEGAN + timedelta(minutes=len(post) + 1) if now is None else now
    return judge([at(0)] if pre is None else pre, post, RULES.model_copy(update=rules), end)


def issues(judgement: Judgement) -> list[str]:
    return [issue.value for issue, _ in judgement.quality.issues]


@pytest.mark.parametrize(
    ("post", "outcome", "confidence"),
    [
        (posts(), "ok", 0.90),
        (posts(error_rate=1), "rollback_recommended", 0.85),
        (posts(memory_usage=1), "warning", 0.70),
        (posts(memory_usage=1, cpu_usage=2), "warning", 0.68),
        (posts(error_rate=1, memory_usage=5), "rollback_recommended", 0.85),
        # a fifth is tolerated of these: the verdict compares with >
        (posts(latency_p95=1, cpu_usage=1, requests_per_sec=1), "ok", 0.90),
        (posts(latency_p95=2), "warning", 0.70),
        (posts(requests_per_sec=2), "rollback_recommended", 0.85),
    ],
)
def test_the_verdict_on_five_samples(post: list[MetricSample], outcome: str, confidence: float):
    """2.6: the table of conditions, and what it means with five samples."""
    found = judged(post)
    assert (found.outcome, found.confidence) == (outcome, confidence)
    assert found.quality.score == 1.0


def test_thresholds_are_secured_by_a_tenth():
    """2.6: 270 ms, 0.009, 0.72, 0.72 are still well; a little more is not."""
    edge = at(1, latency_p95=270.0, error_rate=0.009, cpu_usage=0.72, memory_usage=0.72)
    assert judged([replace(edge, collected_at=each.collected_at) for each in posts()]).outcome is Outcome.OK
    for metric, value in (
        ("latency_p95", 270.1),
        ("error_rate", 0.0091),
        ("cpu_usage", 0.7201),
        ("memory_usage", 0.721),
    ):
        beyond = judged([replace(each, **{metric: value}) for each in posts()])
        assert [each.metric for each in beyond.findings if each.has_failed] == [metric]


def test_requests_count_only_if_there_were_any():
    """2.6: with a mean of less than 0.5 a second before, their number says nothing."""
    few = [at(0, requests_per_sec=0.49)]
    assert judged([replace(each, requests_per_sec=0.0) for each in posts()], pre=few).outcome is Outcome.OK
    enough = [at(0, requests_per_sec=0.5)]
    assert judged([replace(each, requests_per_sec=0.0) for each in posts()], pre=enough).outcome is Outcome.ROLLBACK
    # a sample is bad if it lies more than 20 % below the mean before
    assert judged([replace(each, requests_per_sec=3.2) for each in posts()]).outcome is Outcome.OK
    assert judged([replace(each, requests_per_sec=3.19) for each in posts()]).outcome is Outcome.ROLLBACK


def test_the_sample_of_the_warm_up_says_nothing_of_requests():
    """SP-25: the application has just started anew, and counts over its last minute. One more bad one is tolerated
    then, as without a warm-up."""
    cold = [replace(posts()[0], requests_per_sec=0.0, is_warm_up=True), *posts()[1:]]
    assert judged(cold).outcome is Outcome.OK
    one_more = [*cold[:-1], replace(cold[-1], requests_per_sec=0.0)]
    assert judged(one_more).outcome is Outcome.OK
    unmarked = [replace(each, is_warm_up=False) for each in one_more]
    assert judged(unmarked).outcome is Outcome.ROLLBACK
    assert judged([replace(each, is_warm_up=True, error_rate=1.0) for each in posts()]).outcome is Outcome.ROLLBACK


@pytest.mark.parametrize(("pre", "post"), [([], posts()), ([at(0)], []), ([], [])])
def test_without_samples_there_is_a_warning(pre: list[MetricSample], post: list[MetricSample]):
    """2.6: insufficient metrics; a deployment without verdict never shows as well."""
    found = judged(post, pre=pre)
    assert found.outcome is Outcome.WARNING
    assert "insufficient metrics" in found.summary
    assert found.confidence <= 0.40
    assert hints_of(found) == []


def test_one_missing_sample_makes_an_ok_a_warning():
    """2.6."""
    found = judged(posts(4))
    assert (found.outcome, issues(found)) == (Outcome.WARNING, ["min_post_samples"])
    assert found.quality.score == pytest.approx(0.92)
    assert found.confidence == round(0.55 * 0.96, 2)
    assert judged(posts(3), samples=3).outcome is Outcome.OK, "how many are wanted is a setting"


@pytest.mark.parametrize(
    ("post", "pre", "now", "issue", "score"),
    [
        ([replace(each, collected_at=None) for each in posts()], None, None, Issue.MISSING_POST_TIMESTAMPS, 0.75),
        (posts(), [at(1.6)], None, Issue.INCOHERENT_TIMESTAMPS, 0.75),
        (posts(), None, BEGAN + timedelta(minutes=4, seconds=29), Issue.INCOHERENT_TIMESTAMPS, 0.80),
        (posts(), None, BEGAN + timedelta(minutes=15, seconds=1), Issue.STALE_POST_METRICS, 0.75),
        ([at(minute) for minute in (1, 3, 5, 7, 9)], None, None, Issue.SEQUENCE_GAPS, 0.75),
        ([at(minute) for minute in (1, 2, 3, 4, 6)], None, None, Issue.SEQUENCE_GAPS, 1 - 0.25 / 4),
        (posts(), [], None, Issue.MISSING_PRE_SAMPLES, 0.80),
    ],
)
def test_each_thing_that_is_wrong_with_the_samples_costs_quality(
    post: list[MetricSample], pre: list[MetricSample] | None, now: datetime | None, issue: Issue, score: float
):
    """2.6, data quality."""
    found = judged(post, pre=pre, now=now or BEGAN + timedelta(minutes=9, seconds=30))
    assert issues(found) == [issue.value]
    assert found.quality.score == pytest.approx(score)
    assert any(line.startswith(issue.value) for line in found.details)


def test_gaps_alone_leave_a_good_quality_good():
    """2.6: "good" is a score of 0.9 and no issue but gaps."""
    found = judged([at(minute) for minute in (1, 2, 3, 4, 6)], now=BEGAN + timedelta(minutes=7))
    assert (found.outcome, found.confidence) == (Outcome.OK, round(0.9 * (0.5 + 0.5 * 0.9375), 2))


def test_a_poor_quality_bounds_the_confidence():
    """2.6: at most 0.55 below 0.6, at most 0.45 below 0.4, never below 0.2."""
    stale = judged(posts(2, error_rate=2), now=BEGAN + timedelta(hours=1))
    assert stale.quality.score == pytest.approx(1 - 0.24 - 0.25)
    assert (stale.outcome, stale.confidence) == (Outcome.ROLLBACK, 0.55)
    worse = judged([at(1, error_rate=1.0), at(9, error_rate=1.0)], pre=[at(2)], now=BEGAN + timedelta(hours=1))
    assert worse.quality.score < 0.4
    assert worse.confidence == 0.45
    assert judged([], pre=[]).confidence == 0.28  # 0.40 x (0.5 + 0.5 x 0.4)
    assert all(0.2 <= judged(posts(n)).confidence <= 0.95 for n in range(6))


def test_the_details_name_what_failed_its_share_and_its_limit():
    found = judged(posts(error_rate=1, memory_usage=1))
    assert found.details[:2] == (
        "error_rate: 20% of the samples are above 0.009, and 5% may be",
        "memory_usage: 20% of the samples are above 0.72, and 10% may be",
    )
    assert "1.00" in found.details[2]


# Hints


def hinted(post: list[MetricSample], **given: Any) -> dict[str, Hint]:
    found = hints_of(judged(post, **given))
    assert len({hint.metric for hint in found}) == len(found), "at most one for each metric"
    return {hint.metric: hint for hint in found}


def test_nothing_wrong_gives_no_hint():
    assert hinted(posts()) == {}


def test_a_hint_needs_a_share_at_the_tolerance_and_a_verdict_one_beyond():
    """2.6: share >= tolerance."""
    hints = hinted(posts(latency_p95=1))
    assert hints["latency_p95"].severity is Severity.WARNING
    assert hints["latency_p95"].confidence == 0.55
    assert judged(posts(latency_p95=1)).outcome is Outcome.OK


def test_two_critical_metrics_are_one_hint():
    """2.6: both fail: one composite, critical; 0.70 + 0.20 for d >= 1 + 0.08 for two signals, at most 0.95."""
    hints = hinted(posts(error_rate=1, requests_per_sec=5))
    assert list(hints) == ["composite"]
    assert (hints["composite"].severity, hints["composite"].confidence) == (Severity.CRITICAL, 0.95)
    assert "Roll back." in hints["composite"].suggested_actions


def test_a_critical_metric_alone_is_critical_far_beyond_its_tolerance():
    """2.6: d >= 1 is critical: one in five errors, where one in twenty may be."""
    hints = hinted(posts(error_rate=1))
    assert list(hints) == ["error_rate"]
    assert (hints["error_rate"].severity, hints["error_rate"].confidence) == (Severity.CRITICAL, 0.90)
    assert (hints["error_rate"].exceed_ratio, hints["error_rate"].tolerance) == (0.2, 0.05)
    assert (hints["error_rate"].threshold, hints["error_rate"].secured_threshold) == (0.01, 0.009)
    assert hints["error_rate"].observed_value == pytest.approx(0.0095 / 5)


def test_a_critical_failure_without_a_critical_hint_gets_one():
    """2.6: traffic fell in six of twenty samples: d = 0.5 is a warning; the composite says that it is critical."""
    hints = hinted(posts(20, requests_per_sec=6))
    assert list(hints) == ["composite", "requests_per_sec"]
    assert (hints["composite"].severity, hints["composite"].confidence) == (Severity.CRITICAL, 0.85)
    assert (hints["requests_per_sec"].severity, hints["requests_per_sec"].confidence) == (Severity.WARNING, 0.70)


@pytest.mark.parametrize(("bad", "confidence"), [(20, 0.55), (22, 0.60), (26, 0.65), (30, 0.70), (40, 0.90)])
def test_the_further_beyond_the_tolerance_the_surer(bad: int, confidence: float):
    """2.6: + 0.05, 0.10, 0.15, 0.20 for d of 0.1, 0.3, 0.5, 1; from 1 on it is critical."""
    hint = hinted(posts(100, cpu_usage=bad))["cpu_usage"]
    assert (hint.confidence, hint.severity) == (confidence, Severity.CRITICAL if bad == 40 else Severity.WARNING)


def test_more_signals_make_it_surer():
    """2.6: + 0.08 for two, + 0.05 more for three."""
    assert hinted(posts(cpu_usage=1, latency_p95=1))["cpu_usage"].confidence == 0.63
    assert hinted(posts(cpu_usage=1, latency_p95=1, requests_per_sec=1))["cpu_usage"].confidence == 0.68


def test_a_better_latency_is_told():
    """2.6: after below 0.8 times before."""
    better = hinted([replace(each, latency_p95=95.0) for each in posts()])
    assert (better["latency_p95"].severity, better["latency_p95"].confidence) == (Severity.INFO, 0.45)
    assert hinted([replace(each, latency_p95=96.0) for each in posts()]) == {}


def test_a_poor_quality_weakens_hints():
    """2.6: times 0.5 + 0.5 x score."""
    hint = hinted(posts(4, memory_usage=4))["memory_usage"]
    assert hint.confidence == round(0.90 * 0.96, 2)


figures = st.builds(
    MetricSample,
    requests_per_sec=st.floats(0, 1e6),
    latency_p95=st.floats(0, 1e6),
    error_rate=st.floats(0, 1),
    cpu_usage=st.floats(0, 1),
    memory_usage=st.floats(0, 1),
    collected_at=st.none() | st.floats(-1e4, 1e4).map(lambda sec: BEGAN + timedelta(seconds=sec)),
    is_warm_up=st.booleans(),
)


@given(st.lists(figures, max_size=8), st.lists(figures, max_size=12), st.sampled_from([{}, {"error_tolerance": 0.0}]))
def test_whatever_was_sampled_there_is_a_verdict_and_every_hint_is_in_bounds(
    pre: list[MetricSample], post: list[MetricSample], rules: dict[str, float]
):
    found = judged(post, pre=pre, now=BEGAN, **rules)
    assert 0.2 <= found.confidence <= 0.95
    assert 0 <= found.quality.score <= 1
    assert found.details
    hints = hints_of(found)
    assert all(0 < hint.confidence <= 0.95 for hint in hints)
    assert len({hint.metric for hint in hints}) == len(hints)
    if found.outcome is Outcome.ROLLBACK:
        assert any(hint.severity is Severity.CRITICAL for hint in hints)
