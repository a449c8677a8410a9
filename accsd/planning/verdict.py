"""Was a deployment good? Judged from samples of the application before and after it, as SeqPulse does. Pure.

A sample is bad in a metric beyond the secured threshold; a metric has failed if a larger share of the samples is bad
than is tolerated. How sure the verdict is depends on the quality of the samples. The pipeline's own result does not
count.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from statistics import fmean
from typing import Final, Literal

from accsd.settings import AnalysisSettings

Metric = Literal["requests_per_sec", "latency_p95", "error_rate", "cpu_usage", "memory_usage"]
METRICS: Final[tuple[Metric, ...]] = ("requests_per_sec", "latency_p95", "error_rate", "cpu_usage", "memory_usage")
CRITICAL: Final = frozenset({"error_rate", "requests_per_sec"})

_NO_SAMPLES, _GOOD, _UNSURE, _CRITICAL, _ONE, _SEVERAL = 0.40, 0.90, 0.55, 0.85, 0.70, 0.68
_LEAST_CONFIDENCE, _MOST_CONFIDENCE = 0.2, 0.95
_MOST_WHERE_POOR: Final = ((0.4, 0.45), (0.6, 0.55))  # below this quality, at most so sure
_MISSING, _NO_PRE, _NO_TIMES, _TOO_EARLY, _FUTURE, _STALE, _GAPS = 0.4, 0.2, 0.25, 0.25, 0.2, 0.25, 0.25
_MANY_GAPS: Final = 4


class Outcome(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ROLLBACK = "rollback_recommended"


class Issue(StrEnum):
    """What is wrong with the samples."""

    MIN_POST_SAMPLES = "min_post_samples"
    MISSING_PRE_SAMPLES = "missing_pre_samples"
    MISSING_POST_TIMESTAMPS = "missing_post_timestamps"
    INCOHERENT_TIMESTAMPS = "incoherent_timestamps"
    STALE_POST_METRICS = "stale_post_metrics"
    SEQUENCE_GAPS = "sequence_gaps"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSample:
    """What an application said of itself. `is_warm_up`: so soon after its start that requests_per_sec, a mean over the
    last minute, says nothing yet."""

    requests_per_sec: float
    latency_p95: float  # milliseconds
    error_rate: float
    cpu_usage: float
    memory_usage: float
    collected_at: datetime | None = None
    is_warm_up: bool = False

    def value(self, metric: Metric) -> float:
        return getattr(self, metric)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One metric: how many of the samples after the deployment are bad."""

    metric: Metric
    threshold: float
    secured: float
    tolerance: float
    bad: int
    samples: int
    before: float | None  # the means
    after: float | None

    @property
    def share(self) -> float:
        return self.bad / self.samples

    @property
    def has_failed(self) -> bool:
        return self.share > self.tolerance

    @property
    def is_suspicious(self) -> bool:
        """Worth a hint: at the tolerance, which is not beyond it, too."""
        return self.bad > 0 and self.share >= self.tolerance

    @property
    def excess(self) -> float:
        """How far beyond the tolerance, in tolerances; rounded, because 0.3 - 0.2 is less than 0.1."""
        return round((self.share - self.tolerance) / self.tolerance, 9) if self.tolerance else float("inf")

    @property
    def is_critical(self) -> bool:
        return self.metric in CRITICAL


@dataclass(frozen=True, slots=True)
class Quality:
    score: float
    issues: tuple[tuple[Issue, str], ...]

    def is_good(self, rules: AnalysisSettings) -> bool:
        return self.score >= rules.good and all(issue is Issue.SEQUENCE_GAPS for issue, _ in self.issues)

    def weakened(self, confidence: float) -> float:
        return confidence * (0.5 + 0.5 * self.score)


@dataclass(frozen=True, slots=True)
class Judgement:
    outcome: Outcome
    confidence: float
    summary: str
    details: tuple[str, ...]
    quality: Quality
    findings: tuple[Finding, ...]  # none where samples are missing


def judge(
    pre: Sequence[MetricSample], post: Sequence[MetricSample], rules: AnalysisSettings, now: datetime
) -> Judgement:
    """The verdict over all samples of a deployment that has ended."""
    quality = quality_of(pre, post, rules, now)
    findings = findings_of(pre, post, rules) if pre and post else ()
    failed = [each for each in findings if each.has_failed]
    outcome, confidence, summary = _verdict(pre, post, failed, is_good=quality.is_good(rules))
    details = (
        *(_failure(each) for each in failed),
        f"the quality of the samples is {quality.score:.2f}",
        *(f"{issue}: {said}" for issue, said in quality.issues),
    )
    return Judgement(outcome, _confidence(confidence, quality), summary, details, quality, findings)


def _verdict(
    pre: Sequence[MetricSample], post: Sequence[MetricSample], failed: Sequence[Finding], *, is_good: bool
) -> tuple[Outcome, float, str]:
    if not pre or not post:
        which = " and ".join(name for name, there in (("before", pre), ("after", post)) if not there)
        return Outcome.WARNING, _NO_SAMPLES, f"There are insufficient metrics: no sample from {which} the deployment."
    if any(each.is_critical for each in failed):
        names = ", ".join(each.metric for each in failed if each.is_critical)
        return Outcome.ROLLBACK, _CRITICAL, f"A rollback is recommended: {names} failed."
    if failed:
        names = ", ".join(each.metric for each in failed)
        return Outcome.WARNING, _ONE if len(failed) == 1 else _SEVERAL, f"Worse than it may be: {names}."
    if is_good:
        return Outcome.OK, _GOOD, "Nothing became worse than it may be."
    return Outcome.WARNING, _UNSURE, "Nothing failed, but the samples are too poor to confirm that all is well."


def _failure(finding: Finding) -> str:
    side = "below" if finding.metric == "requests_per_sec" else "above"
    return (
        f"{finding.metric}: {finding.share:.0%} of the samples are {side} {finding.secured:g},"
        f" and {finding.tolerance:.0%} may be"
    )


def _confidence(base: float, quality: Quality) -> float:
    found = quality.weakened(base)
    for below, most in _MOST_WHERE_POOR:
        if quality.score < below:
            found = min(found, most)
    return round(min(max(found, _LEAST_CONFIDENCE), _MOST_CONFIDENCE), 2)


# The metrics


def findings_of(
    pre: Sequence[MetricSample], post: Sequence[MetricSample], rules: AnalysisSettings
) -> tuple[Finding, ...]:
    """Every metric that counts."""
    limits: tuple[tuple[Metric, float, float], ...] = (
        ("latency_p95", rules.latency_p95, rules.latency_tolerance),
        ("error_rate", rules.error_rate, rules.error_tolerance),
        ("cpu_usage", rules.cpu_usage, rules.cpu_tolerance),
        ("memory_usage", rules.memory_usage, rules.memory_tolerance),
    )
    plain = tuple(_beyond(metric, limit, tolerance, pre, post, rules) for metric, limit, tolerance in limits)
    requests = _requests(pre, post, rules)
    return plain if requests is None else (requests, *plain)


def _beyond(
    metric: Metric,
    threshold: float,
    tolerance: float,
    pre: Sequence[MetricSample],
    post: Sequence[MetricSample],
    rules: AnalysisSettings,
) -> Finding:
    secured = round(threshold * rules.secured, 12)
    return Finding(
        metric=metric,
        threshold=threshold,
        secured=secured,
        tolerance=tolerance,
        bad=sum(each.value(metric) > secured for each in post),
        samples=len(post),
        before=_mean(metric, pre),
        after=_mean(metric, post),
    )


def _requests(pre: Sequence[MetricSample], post: Sequence[MetricSample], rules: AnalysisSettings) -> Finding | None:
    """None: there were too few requests before for their number to mean something. A sample of the warm-up is none of
    the bad ones; the share is still one of all samples, or a single bad one would weigh more for it."""
    before = _mean("requests_per_sec", pre)
    if before is None or before < rules.requests_least:
        return None
    least = round(before * (1 - rules.requests_drop), 12)
    warm = [each for each in post if not each.is_warm_up]
    return Finding(
        metric="requests_per_sec",
        threshold=least,
        secured=least,
        tolerance=rules.requests_tolerance,
        bad=sum(each.requests_per_sec < least for each in warm),
        samples=len(post),
        before=before,
        after=_mean("requests_per_sec", warm),
    )


def _mean(metric: Metric, samples: Sequence[MetricSample]) -> float | None:
    return fmean(each.value(metric) for each in samples) if samples else None


# The quality of the samples


def quality_of(
    pre: Sequence[MetricSample], post: Sequence[MetricSample], rules: AnalysisSettings, now: datetime
) -> Quality:
    """1.0, and less for each thing that is wrong."""
    score, issues = 1.0, list[tuple[Issue, str]]()

    def blame(issue: Issue, cost: float, said: str) -> None:
        nonlocal score
        score -= cost
        issues.append((issue, said))

    if (missing := rules.samples - len(post)) > 0:
        said = f"{len(post)} of {rules.samples} samples after the deployment"
        blame(Issue.MIN_POST_SAMPLES, _MISSING * missing / rules.samples, said)
    if not pre:
        blame(Issue.MISSING_PRE_SAMPLES, _NO_PRE, "no sample before the deployment")
    if any(each.collected_at is None for each in post):
        blame(Issue.MISSING_POST_TIMESTAMPS, _NO_TIMES, "samples without a time")
    times = sorted(each.collected_at for each in post if each.collected_at is not None)
    if times:
        _look_at_times([each.collected_at for each in pre if each.collected_at is not None], times, rules, now, blame)
    return Quality(max(0.0, score), tuple(issues))


def _look_at_times(
    before: Sequence[datetime],
    times: Sequence[datetime],
    rules: AnalysisSettings,
    now: datetime,
    blame: Callable[[Issue, float, str], None],
) -> None:
    if before and times[0] < min(before) - rules.clock_skew:
        blame(Issue.INCOHERENT_TIMESTAMPS, _TOO_EARLY, "samples after the deployment that are older than those before")
    if times[-1] > now + rules.clock_skew:
        blame(Issue.INCOHERENT_TIMESTAMPS, _FUTURE, "samples from the future")
    if times[-1] < now - rules.stale:
        blame(Issue.STALE_POST_METRICS, _STALE, f"the last sample is {_shown(now - times[-1])} old")
    if gaps := sum(later - earlier > rules.gap for earlier, later in pairwise(times)):
        cost = _GAPS * min(1.0, gaps / _MANY_GAPS)
        blame(Issue.SEQUENCE_GAPS, cost, f"{gaps} gaps between the samples of more than {_shown(rules.gap)}")


def _shown(length: timedelta) -> str:
    return f"{length.total_seconds():.0f} s"
