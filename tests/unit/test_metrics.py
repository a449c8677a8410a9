"""The metrics of one process: what they count, and that nothing outside can make a series."""

import re
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from prometheus_client.parser import text_string_to_metric_families

from accsd import __version__
from accsd.metrics import LISTENER_STATES, RECLAIM_DECISIONS, REFUSALS, REPAIRS, RESULTS, Metrics
from accsd.model.outcome import ErrorCode

SECOND = timedelta(seconds=1)
ROOT = Path(__file__).parents[2]


def samples(metrics: Metrics) -> dict[str, float]:
    """Each series of ours as Prometheus reads it, labels in the order of their names."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        sample.name + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("accsd_")
    }


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(["renderer", "audio"], ["builder", "cleanup"])


def test_claims_are_counted_by_service_and_by_what_came_back(metrics: Metrics) -> None:
    metrics.claimed("renderer", 3)
    metrics.claimed("renderer", 0)
    metrics.claim_failed("audio")
    seen = samples(metrics)
    assert seen["accsd_claims_total outcome=claimed service=renderer"] == 1
    assert seen["accsd_claims_total outcome=empty service=renderer"] == 1
    assert seen["accsd_claims_total outcome=error service=audio"] == 1
    assert seen["accsd_claimed_tasks_total service=renderer"] == 3


def test_an_attempt_is_in_flight_until_it_has_finished(metrics: Metrics) -> None:
    metrics.started("renderer")
    metrics.started("renderer")
    metrics.finished("renderer", ErrorCode.OOM, 2 * SECOND)
    seen = samples(metrics)
    assert seen["accsd_executions_in_flight service=renderer"] == 1
    assert seen["accsd_execution_seconds_sum result=oom service=renderer"] == 2
    assert seen["accsd_execution_seconds_bucket le=1.0 result=oom service=renderer"] == 0
    assert seen["accsd_execution_seconds_bucket le=5.0 result=oom service=renderer"] == 1


def test_ends_of_attempts_are_counted_as_taken_refused_or_unanswered(metrics: Metrics) -> None:
    metrics.finalized("done", SECOND / 100)
    metrics.refused("stale_attempt")
    metrics.refused(None)
    metrics.finalize_failed()
    seen = samples(metrics)
    assert seen["accsd_finalize_total status=done"] == 1
    assert seen["accsd_finalize_refused_total reason=stale_attempt"] == 1
    assert seen["accsd_finalize_refused_total reason=other"] == 1
    assert seen["accsd_finalize_errors_total"] == 1
    assert seen["accsd_finalize_seconds_bucket le=0.01"] == 1


def test_leases_reclaims_verdicts_and_the_rest_have_counters(metrics: Metrics) -> None:
    metrics.heartbeat(True)
    metrics.heartbeat(False)
    metrics.lease_lost("not_kept_in_time")
    metrics.reclaimed("claimed", 4)
    metrics.repaired("waiting_row", 2)
    metrics.verdict("TLE")
    metrics.protocol_error("audio")
    metrics.truncated("stdout")
    metrics.wake_tried("wol", "sent")
    metrics.outbox("delivered", 5)
    metrics.outbox_pending(7)
    metrics.queried("ok", SECOND)
    seen = samples(metrics)
    assert {name: value for name, value in seen.items() if value and "_seconds" not in name} == {
        "accsd_lease_heartbeats_total outcome=ok": 1,
        "accsd_lease_heartbeats_total outcome=error": 1,
        "accsd_leases_lost_total reason=not_kept_in_time": 1,
        "accsd_reclaims_total decision=claimed": 4,
        "accsd_repairs_total kind=waiting_row": 2,
        "accsd_verdicts_total verdict=TLE": 1,
        "accsd_protocol_errors_total service=audio": 1,
        "accsd_truncations_total what=stdout": 1,
        "accsd_wake_tries_total method=wol outcome=sent": 1,
        "accsd_outbox_total outcome=delivered": 5,
        "accsd_outbox_pending": 7,
        "accsd_queries_total outcome=ok": 1,
        next(name for name in seen if name.startswith("accsd_build_info")): 1,
    }


def test_the_age_of_a_roles_last_pass_begins_anew_with_each_pass(metrics: Metrics) -> None:
    older = samples(metrics)["accsd_role_last_pass_age_seconds role=builder"]
    assert 0 < older < samples(metrics)["accsd_role_last_pass_age_seconds role=builder"]
    metrics.passed("builder", worked=False)
    metrics.away("builder")
    metrics.crashed("builder")
    seen = samples(metrics)
    assert seen["accsd_role_last_pass_age_seconds role=builder"] < seen["accsd_role_last_pass_age_seconds role=cleanup"]
    assert [seen[f"accsd_role_passes_total outcome={word} role=builder"] for word in ("idle", "away", "crashed")] == [
        1
    ] * 3
    assert seen["accsd_role_restarts_total role=builder"] == 1


def test_the_listener_is_in_one_state_at_a_time(metrics: Metrics) -> None:
    for state in LISTENER_STATES:
        metrics.listener(state)
        shown = {name: value for name, value in samples(metrics).items() if name.startswith("accsd_listener_state")}
        assert [name for name, value in shown.items() if value] == [f"accsd_listener_state state={state}"]


def test_every_series_exists_with_zero_from_the_start(metrics: Metrics) -> None:
    seen = samples(metrics)
    assert all(seen[f"accsd_finalize_refused_total reason={reason}"] == 0 for reason in REFUSALS)
    assert seen["accsd_executions_in_flight service=audio"] == 0


def test_the_build_is_named(metrics: Metrics) -> None:
    assert any(name.endswith(f" version={__version__}") for name in samples(metrics) if "build_info" in name)


def tell_everything(metrics: Metrics, word: str) -> None:
    """As if a job, a database or a bug had chosen every word."""
    metrics.claimed(word, 1)
    metrics.claim_failed(word)
    metrics.lease_lost(word)
    metrics.finalized(word, SECOND)
    metrics.refused(word)
    metrics.started(word)
    metrics.finished(word, word, SECOND)
    metrics.verdict(word)
    metrics.protocol_error(word)
    metrics.truncated(word)
    metrics.passed(word, worked=True)
    metrics.away(word)
    metrics.crashed(word)
    metrics.reclaimed(word)
    metrics.repaired(word)
    metrics.wake_tried(word, word)
    metrics.listener(word)
    metrics.outbox(word)
    metrics.queried(word, SECOND)


def test_the_number_of_series_does_not_grow_with_jobs(metrics: Metrics) -> None:
    for word in ("once", *("renderer", "builder", "wol", "sent"), *RESULTS, *REFUSALS, *RECLAIM_DECISIONS):
        tell_everything(metrics, word)
        metrics.finished("renderer", word, SECOND)
        metrics.wake_tried("wol", word)
    known = samples(metrics).keys()
    for _ in range(300):
        tell_everything(metrics, str(uuid4()))
        tell_everything(metrics, 'a"}\n' + str(uuid4()))
    assert samples(metrics).keys() == known


def test_two_registries_share_no_series() -> None:
    first, second = Metrics(["renderer"]), Metrics(["renderer"])
    first.claimed("renderer", 1)
    assert samples(second)["accsd_claimed_tasks_total service=renderer"] == 0


def test_a_reload_makes_new_services_known(metrics: Metrics) -> None:
    metrics.know_services(["video"])
    metrics.claimed("video", 1)
    metrics.claimed("audio", 1)
    assert samples(metrics)["accsd_claimed_tasks_total service=video"] == 1
    assert samples(metrics)["accsd_claimed_tasks_total service=audio"] == 1


def test_every_reason_of_the_state_machine_has_its_series() -> None:
    """schema.sql is where they are written; a new one must not be lost in "other"."""
    schema = (ROOT / "schema.sql").read_text()
    explained = re.search(r"CREATE FUNCTION accs\.explain\(.*?\n\$\$;", schema, re.DOTALL)
    reclaimed = re.search(r"CREATE FUNCTION accs\.reclaim_tasks\(.*?END \$\$;", schema, re.DOTALL)
    assert explained
    assert reclaimed
    reasons = set(re.findall(r"(?:THEN|ELSE) '([a-z_]+)'", explained[0])) - {"repeated", "refused"}
    decisions = set(re.findall(r"(?:THEN|ELSE) '([a-z_]+)'", reclaimed[0])) - {"accepted", "refused"}
    assert reasons
    assert reasons <= set(REFUSALS)
    assert decisions
    assert decisions <= set(RECLAIM_DECISIONS)


def test_every_kind_of_damage_and_every_state_of_the_listener_has_its_series() -> None:
    damage = re.search(r"CREATE FUNCTION accs\.repair\(.*?END \$\$;", (ROOT / "schema.sql").read_text(), re.DOTALL)
    assert damage
    kinds = {kind for listed in re.findall(r"f\.what IN \(([^)]*)\)", damage[0]) for kind in re.findall(r"\w+", listed)}
    assert kinds == set(REPAIRS)


def test_every_metric_is_documented(metrics: Metrics) -> None:
    documented = (ROOT / "docs/metrics.md").read_text()
    names = re.findall(r"^# TYPE (accsd_\w+)", metrics.render().decode(), re.MULTILINE)
    assert names
    assert [name for name in names if f"`{name}`" not in documented] == []
