"""What a person should look at after a deployment that was judged, as SeqPulse's hints (SDH). Pure.

There is at most one hint for each metric, and one for several metrics together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from accsd.planning.verdict import Finding, Judgement, Metric

COMPOSITE: Final = "composite"
_IMPROVED: Final = 0.8  # of the latency before
_STEPS: Final = ((1.0, 0.20), (0.5, 0.15), (0.3, 0.10), (0.1, 0.05))  # this far beyond the tolerance, so much surer
_TWO_SIGNALS, _THREE_SIGNALS = 0.08, 0.05
_MOST, _UNDOUBTED = 0.95, 0.85


class Severity(StrEnum):
    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


_BASE: Final[Mapping[Severity, float]] = {Severity.INFO: 0.45, Severity.WARNING: 0.55, Severity.CRITICAL: 0.70}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    metric: str
    severity: Severity
    confidence: float
    title: str
    diagnosis: str
    suggested_actions: tuple[str, ...]
    observed_value: float | None = None
    threshold: float | None = None
    secured_threshold: float | None = None
    exceed_ratio: float | None = None  # the share of bad samples
    tolerance: float | None = None
    audit_data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Advice:
    name: str
    actions: tuple[str, ...]


_ADVICE: Final[Mapping[Metric, _Advice]] = {
    "error_rate": _Advice(
        "Errors",
        ("Read the application's errors since the deployment.", "Roll back if they did not occur before."),
    ),
    "requests_per_sec": _Advice(
        "Traffic",
        (
            "Check that all instances are up and get requests.",
            "Look for clients and health checks that are turned away.",
        ),
    ),
    "latency_p95": _Advice(
        "Latency",
        ("Compare slow requests with those before the deployment.", "Look at new queries and outgoing calls."),
    ),
    "cpu_usage": _Advice("CPU", ("Profile what is new.", "Give it more processors, or more instances.")),
    "memory_usage": _Advice("Memory", ("Watch whether it keeps growing.", "Look for caches and leaks that are new.")),
}


def hints_of(judgement: Judgement) -> list[Hint]:
    """What the findings of a judgement lead to, the most serious first."""
    suspicious = [each for each in judgement.findings if each.is_suspicious]
    critical = [each for each in suspicious if each.is_critical]
    alone = [each for each in suspicious if len(critical) < 2 or not each.is_critical]
    found = [_of_metric(each, judgement, signals=len(suspicious)) for each in alone]
    if len(critical) > 1:
        found.append(_of_several(critical, judgement, signals=len(suspicious)))
    if (improved := _improvement(judgement)) is not None and "latency_p95" not in {each.metric for each in found}:
        found.append(improved)
    failed = [each for each in critical if each.has_failed]
    if failed and not any(each.severity is Severity.CRITICAL for each in found):
        found.append(_of_several(failed, judgement, confidence=_UNDOUBTED))
    return sorted(found, key=lambda each: (list(_BASE).index(each.severity), each.confidence), reverse=True)


def _of_metric(finding: Finding, judgement: Judgement, *, signals: int) -> Hint:
    severity = Severity.CRITICAL if finding.excess >= 1 else Severity.WARNING
    advice = _ADVICE[finding.metric]
    side = "below" if finding.metric == "requests_per_sec" else "above"
    return Hint(
        metric=finding.metric,
        severity=severity,
        confidence=_confidence(severity, finding.excess, signals, judgement),
        title=f"{advice.name}: {finding.bad} of {finding.samples} samples are {side} what is safe",
        diagnosis=f"{finding.metric} was {side} {finding.secured:g} in {finding.share:.0%} of the samples after the "
        f"deployment; {finding.tolerance:.0%} may be. Its mean went from {_shown(finding.before)} to "
        f"{_shown(finding.after)}.",
        suggested_actions=advice.actions,
        observed_value=finding.after,
        threshold=finding.threshold,
        secured_threshold=finding.secured,
        exceed_ratio=finding.share,
        tolerance=finding.tolerance,
        audit_data=_audit([finding], judgement, signals=signals),
    )


def _of_several(
    findings: Sequence[Finding], judgement: Judgement, *, signals: int = 1, confidence: float | None = None
) -> Hint:
    """What speaks for a rollback. With a `confidence` of its own only the quality of the samples weakens it."""
    names = " and ".join(each.metric for each in findings)
    worst = max(findings, key=lambda each: each.excess)
    return Hint(
        metric=COMPOSITE,
        severity=Severity.CRITICAL,
        confidence=_confidence(Severity.CRITICAL, worst.excess, signals, judgement)
        if confidence is None
        else round(judgement.quality.weakened(confidence), 2),
        title=f"The deployment made it worse: {names}",
        diagnosis=f"{names} failed after the deployment, which users notice.",
        suggested_actions=("Roll back.", *(action for each in findings for action in _ADVICE[each.metric].actions[:1])),
        exceed_ratio=worst.share,
        tolerance=worst.tolerance,
        audit_data=_audit(findings, judgement, signals=signals),
    )


def _improvement(judgement: Judgement) -> Hint | None:
    finding = next((each for each in judgement.findings if each.metric == "latency_p95"), None)
    if finding is None or finding.before is None or finding.after is None:
        return None
    if not finding.after < _IMPROVED * finding.before:
        return None
    return Hint(
        metric=finding.metric,
        severity=Severity.INFO,
        confidence=_confidence(Severity.INFO, 0.0, 1, judgement),
        title="Latency has improved",
        diagnosis=f"The mean of latency_p95 went from {_shown(finding.before)} to {_shown(finding.after)} ms.",
        suggested_actions=(),
        observed_value=finding.after,
        threshold=finding.threshold,
        secured_threshold=finding.secured,
        exceed_ratio=finding.share,
        tolerance=finding.tolerance,
        audit_data=_audit([finding], judgement, signals=1),
    )


def _confidence(severity: Severity, excess: float, signals: int, judgement: Judgement) -> float:
    found = _BASE[severity] + next((more for least, more in _STEPS if excess >= least), 0.0)
    found += _TWO_SIGNALS if signals >= 2 else 0.0
    found += _THREE_SIGNALS if signals >= 3 else 0.0
    return round(judgement.quality.weakened(min(found, _MOST)), 2)


def _audit(findings: Sequence[Finding], judgement: Judgement, *, signals: int) -> dict[str, Any]:
    """What the hint was made from."""
    return {
        "signals": signals,
        "quality": round(judgement.quality.score, 4),
        "metrics": {
            each.metric: {"bad": each.bad, "samples": each.samples, "before": each.before, "after": each.after}
            for each in findings
        },
    }


def _shown(mean: float | None) -> str:
    return "nothing" if mean is None else f"{mean:.3g}"
