"""Metrics for Prometheus: a closed set of series that does not grow with jobs.

A passive object that the daemon makes and hands to everything that counts; the endpoint shows it. Every label comes
from a closed set: the services of this node, its roles, the words below. Any other value counts as "other", so that
no text from a job or a database can make a series. (prometheus-client costs 45 ms and 4 MB beside what the daemon
imports anyway.)
"""

import platform
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from accsd import __version__
from accsd.model.outcome import ErrorCode
from accsd.model.state import ListenerState, WakeMethod

CONTENT_TYPE: Final = prometheus.CONTENT_TYPE_PLAIN_0_0_4
OTHER: Final = "other"

CLAIM_OUTCOMES: Final = ("claimed", "empty", "error")
HEARTBEAT_OUTCOMES: Final = ("ok", "error")
# Why a verb refuses what an attempt says.
REFUSALS: Final = (
    "stale_attempt",
    "already_finished",
    "not_in_expected_state",
    "lease_lost_or_owner_mismatch",
    "not_found",
    "result_too_large",
    "db_error",
)
LOSSES: Final = (*REFUSALS, "not_kept_in_time")
ENDINGS: Final = ("done", "error", "released", "cancelled")
RECLAIM_DECISIONS: Final = ("claimed", "done_or_stale", "not_found", "lease_still_valid", "db_error")
RESULTS: Final = ("done", "cancelled", "released", "lease_lost", *(code.value for code in ErrorCode))
VERDICTS: Final = ("OK", "TLE", "MLE", "OLE", "RE", "SE")
TRUNCATIONS: Final = ("stdout", "stderr", "line", "log", "result", "event")
# What may become of a due time of a schedule, and why (docs/schedules.md, the ledger).
FIRINGS: Final = {
    "fired": ("on_time", "released", "run_now", "backfill", "event", "condition"),
    "caught_up": ("late", "resumed", "backfill"),
    "skipped": (
        *("overlap", "paused", "excluded", "requested", "cooldown", "workflow_inactive"),
        *("refused", "owner_disabled", "loop", "quota", "filter_error", "broken"),
    ),
    "missed": ("down", "too_old", "over_limit"),
    "merged": ("dst_gap", "catch_up", "overlap_queue", "gathered"),
    "snoozed": ("requested",),
}
OUTBOX_OUTCOMES: Final = ("delivered", "retried", "dead")
PASS_OUTCOMES: Final = ("worked", "idle", "away", "crashed")
LISTENER_STATES: Final = tuple(state.value for state in ListenerState)
REPAIRS: Final = (
    "waiting_row",
    "waiting_missing",
    "remaining",
    "live_row",
    "live_missing",
    "pending_row",
    "run_row",
    "pending_missing",
    "job_counts",
    "job_open",
)
WAKE_METHODS: Final = (*(method.value for method in WakeMethod), "relay")
WAKE_OUTCOMES: Final = ("sent", "failed", "woke", "given_up")
SCHEDULE_TROUBLES: Final = ("overdue", "unplanned", "broken")
QUARANTINE_STATES: Final = ("shut", "trial")
ARCHIVE_OUTCOMES: Final = ("done", "hindered", "clock")
STREAM_ENDS: Final = ("client", "stalled", "refused", "drained")
QUERY_OUTCOMES: Final = ("ok", "retried", "error")

_ROUND_TRIP: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
_LATE: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30, 60, 600, 3600, 86400)
_RUN: Final = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400)


HTTP_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
HTTP_STATUSES: Final = ("2xx", "3xx", "4xx", "5xx")


class Metrics:
    """Counters of one process, in a registry of their own. Every method returns at once and none raises."""

    def __init__(self, services: Iterable[str] = (), roles: Iterable[str] = ()) -> None:
        prometheus.disable_created_metrics()  # one more series for each, which is never read
        self._registry: CollectorRegistry = CollectorRegistry()
        self._services: set[str] = set()
        self._last_pass: dict[str, float] = {}
        self._archived_at: float | None = None  # None: this process archives no history
        self._of_attempts()
        self._of_roles()
        self._of_streams()
        self._of_gateway()
        prometheus.ProcessCollector(registry=self._registry)
        self.know_roles(roles)
        self.know_services(services)

    def _of_attempts(self) -> None:
        self._claims = self._counter("claims", "Claims sent, by what came back.", "service", "outcome")
        self._claimed = self._counter("claimed_tasks", "Tasks that claims brought.", "service")
        self._beats = self._counter(
            "lease_heartbeats", "Heartbeats of the node and its leases.", outcome=HEARTBEAT_OUTCOMES
        )
        self._lost = self._counter("leases_lost", "Leases that ended before their attempt did.", reason=LOSSES)
        self._finalized = self._counter("finalize", "Ends of attempts that the database took.", status=ENDINGS)
        self._refused = self._counter("finalize_refused", "Ends of attempts that it refused.", reason=REFUSALS)
        self._errors = self._counter("finalize_errors", "Ends of attempts that it did not answer to.")
        self._finalize_time = self._histogram("finalize_seconds", "From sending an end to its answer.", _ROUND_TRIP)
        self._reclaims = self._counter("reclaims", "Expired leases looked at, by decision.", decision=RECLAIM_DECISIONS)
        self._run_time = self._histogram("execution_seconds", "From start to end.", _RUN, "service", "result")
        self._running = self._gauge("executions_in_flight", "Attempts under way on this node.", "service")
        self._verdicts = self._counter("verdicts", "Verdicts of judges.", verdict=VERDICTS)
        self._violations = self._counter("protocol_errors", "Answers that protocol v1 excludes.", "service")
        self._truncated = self._counter("truncations", "Output that was cut at its limit.", what=TRUNCATIONS)

    def _of_gateway(self) -> None:
        self._requests = self._counter("http_requests", "Requests that the gateway answered.", "method", "status")
        self._request_time = self._histogram("http_request_seconds", "From a request to the end of its answer.", _RUN)
        self._hooks_refused = self._counter("hooks_refused", "Webhooks that proved nothing about their sender.", "hook")

    def _of_roles(self) -> None:
        self._passes = self._counter("role_passes", "Passes of a role, by outcome.", "role", "outcome")
        self._restarts = self._counter("role_restarts", "Times that a crashed role was made anew.", "role")
        self._age = self._gauge("role_last_pass_age_seconds", "Since a role's last pass that did not fail.", "role")
        self._listener = self._gauge("listener_state", "1 for the state that LISTEN is in.", state=LISTENER_STATES)
        self._reconnects = self._counter("listener_reconnects", "Times that LISTEN was set up again.")
        self._repairs = self._counter("repairs", "What cleanup had to put right: each one is a bug.", kind=REPAIRS)
        self._wakes = self._counter("wake_tries", "Tries to wake a node.", "method", "outcome")
        self._firings = self._counter("firings", "Due times of schedules, by what became of them.", "outcome", "reason")
        for outcome, reasons in FIRINGS.items():
            for reason in reasons:
                self._firings.labels(outcome, reason)
        self._lateness = self._histogram("firing_late_seconds", "From a due time to its firing.", _LATE)
        self._schedules = self._gauge(
            "schedules", "Schedules that are not as they should be, in the whole installation.", state=SCHEDULE_TROUBLES
        )
        self._outbox = self._counter("outbox", "Outgoing events, by outcome.", outcome=OUTBOX_OUTCOMES)
        self._pending = self._gauge("outbox_pending", "Outgoing events that wait.")
        self._quarantines = self._gauge(
            "quarantines", "Services that a node is kept from, or takes on trial.", state=QUARANTINE_STATES
        )
        self._archive_passes = self._counter(
            "archive_passes", "Passes of the retention, by outcome.", outcome=ARCHIVE_OUTCOMES
        )
        self._archived = self._counter("archived_partitions", "Months of events that have left the database.")
        self._archived_bytes = self._counter("archived_bytes", "The size of their objects.")
        self._archive_age = self._gauge(
            "archive_last_success_age_seconds", "Since the retention's last pass that met no obstacle."
        )
        self._archive_age.set_function(self._since_archived)
        self._queries = self._counter("queries", "Calls to the database.", outcome=QUERY_OUTCOMES)
        self._query_time = self._histogram("query_seconds", "How long they took, with repetitions.", _ROUND_TRIP)
        build = self._gauge("build_info", "Always 1; the labels say what runs.", "version", "python")
        build.labels(__version__, platform.python_version()).set(1)

    def _of_streams(self) -> None:
        self._clients = self._gauge("stream_clients", "Clients that follow a stream of the gateway.")
        self._messages = self._counter("stream_messages", "Messages handed to them.")
        self._lagged = self._counter("stream_lagged", "Times that a client did not keep up and had to start over.")
        self._closed = self._counter("stream_closed", "Streams that have ended, by who ended them.", why=STREAM_ENDS)
        self._hub_lag = self._gauge("hub_lag_seconds", "From the writing of the oldest event just read until now.")
        self._hub_summary = self._gauge("hub_summary", "1 while so much happens that only summaries are told.")

    def know_services(self, names: Iterable[str]) -> None:
        """Names the services of this node, again after a reload. Their series exist from now on, at zero."""
        self._services.update(names)
        for service in self._services:
            for outcome in CLAIM_OUTCOMES:
                self._claims.labels(service, outcome)
            for metric in (self._claimed, self._running, self._violations):
                metric.labels(service)

    def know_roles(self, names: Iterable[str]) -> None:
        """Names the roles that this process runs. The age of a role that never makes a pass grows, too."""
        for role in names:
            self._last_pass[role] = time.monotonic()
            self._age.labels(role).set_function(lambda role=role: time.monotonic() - self._last_pass[role])
            self._restarts.labels(role)
            for outcome in PASS_OUTCOMES:
                self._passes.labels(role, outcome)

    # an agent's attempts

    def claimed(self, service: str, tasks: int) -> None:
        """A claim was answered, with this many tasks."""
        self._claims.labels(self._service(service), "claimed" if tasks else "empty").inc()
        self._claimed.labels(self._service(service)).inc(tasks)

    def claim_failed(self, service: str) -> None:
        self._claims.labels(self._service(service), "error").inc()

    def heartbeat(self, ok: bool) -> None:
        self._beats.labels("ok" if ok else "error").inc()

    def lease_lost(self, reason: str) -> None:
        self._lost.labels(_one_of(LOSSES, reason)).inc()

    def finalized(self, status: str, took: timedelta) -> None:
        """The database accepted the end of an attempt, now or before."""
        self._finalized.labels(_one_of(ENDINGS, status)).inc()
        self._finalize_time.observe(took.total_seconds())

    def refused(self, reason: str | None) -> None:
        self._refused.labels(_one_of(REFUSALS, reason)).inc()

    def finalize_failed(self) -> None:
        self._errors.inc()

    def started(self, service: str) -> None:
        """An attempt runs here, started or adopted; `finished` must follow, however it ends."""
        self._running.labels(self._service(service)).inc()

    def finished(self, service: str, result: str, took: timedelta) -> None:
        """`result` is done, cancelled, released, lease_lost or an ErrorCode."""
        self._running.labels(self._service(service)).dec()
        self._run_time.labels(self._service(service), _one_of(RESULTS, result)).observe(took.total_seconds())

    def verdict(self, verdict: str) -> None:
        self._verdicts.labels(_one_of(VERDICTS, verdict)).inc()

    def protocol_error(self, service: str) -> None:
        self._violations.labels(self._service(service)).inc()

    def truncated(self, what: str) -> None:
        self._truncated.labels(_one_of(TRUNCATIONS, what)).inc()

    # roles and what they do

    def passed(self, role: str, *, worked: bool) -> None:
        self._passes.labels(self._role(role), "worked" if worked else "idle").inc()
        if role in self._last_pass:
            self._last_pass[role] = time.monotonic()

    def away(self, role: str) -> None:
        """A pass could not be made because the world was away."""
        self._passes.labels(self._role(role), "away").inc()

    def crashed(self, role: str) -> None:
        """A role failed and will be made anew."""
        self._passes.labels(self._role(role), "crashed").inc()
        self._restarts.labels(self._role(role)).inc()

    def reclaimed(self, decision: str, count: int = 1) -> None:
        self._reclaims.labels(_one_of(RECLAIM_DECISIONS, decision)).inc(count)

    def repaired(self, what: str, count: int = 1) -> None:
        self._repairs.labels(_one_of(REPAIRS, what)).inc(count)

    def settled(self, outcome: str, reason: str, late: timedelta, times: int) -> None:
        """A due time of a schedule, or `times` of them, has its row in the ledger."""
        reasons = FIRINGS.get(outcome, ())
        self._firings.labels(outcome if reasons else OTHER, _one_of(reasons, reason)).inc(times)
        if outcome in ("fired", "caught_up"):
            self._lateness.observe(late.total_seconds())

    def schedules(self, count: Mapping[str, int]) -> None:
        """How many schedules of the whole installation are overdue, unplanned or broken."""
        for state in SCHEDULE_TROUBLES:
            self._schedules.labels(state).set(count.get(state, 0))

    def wake_tried(self, method: str, outcome: str) -> None:
        self._wakes.labels(_one_of(WAKE_METHODS, method), _one_of(WAKE_OUTCOMES, outcome)).inc()

    def listener(self, state: str) -> None:
        for known in LISTENER_STATES:
            self._listener.labels(known).set(known == state)

    def listener_reconnected(self) -> None:
        self._reconnects.inc()

    def outbox(self, outcome: str, count: int = 1) -> None:
        self._outbox.labels(_one_of(OUTBOX_OUTCOMES, outcome)).inc(count)

    def outbox_pending(self, count: int) -> None:
        self._pending.set(count)

    def quarantines(self, count: Mapping[str, int]) -> None:
        """How many quarantines the whole fleet has, by state."""
        for state in QUARANTINE_STATES:
            self._quarantines.labels(state).set(count.get(state, 0))

    def archives(self) -> None:
        """This process archives history: the age of the last archive grows even if none is ever made."""
        self._archived_at = self._archived_at or time.monotonic()

    def archive_passed(self, outcome: str) -> None:
        self._archive_passes.labels(_one_of(ARCHIVE_OUTCOMES, outcome)).inc()
        if outcome == "done":
            self._archived_at = time.monotonic()

    def archived(self, size_bytes: int) -> None:
        self._archived.inc()
        self._archived_bytes.inc(size_bytes)

    def queried(self, outcome: str, took: timedelta) -> None:
        self._queries.labels(_one_of(QUERY_OUTCOMES, outcome)).inc()
        self._query_time.observe(took.total_seconds())

    # the gateway's streams

    def stream_clients(self, count: int) -> None:
        self._clients.set(count)

    def stream_messages(self, count: int) -> None:
        self._messages.inc(count)

    def stream_lagged(self) -> None:
        self._lagged.inc()

    def stream_closed(self, why: str) -> None:
        self._closed.labels(_one_of(STREAM_ENDS, why)).inc()

    def hub_lag(self, seconds: float) -> None:
        self._hub_lag.set(seconds)

    def hub_mode(self, is_summary: bool) -> None:
        self._hub_summary.set(is_summary)

    def http_answered(self, method: str, status: int, took: float) -> None:
        """A request was answered; status 0: the client left before."""
        self._requests.labels(_one_of(HTTP_METHODS, method), _one_of(HTTP_STATUSES, f"{status // 100}xx")).inc()
        self._request_time.observe(took)

    def hook_refused(self, name: str) -> None:
        """`name` is one of the settings, so that nobody outside makes new series."""
        self._hooks_refused.labels(name).inc()

    def render(self) -> bytes:
        """The metrics in the text format of CONTENT_TYPE."""
        return prometheus.generate_latest(self._registry)

    def _since_archived(self) -> float:
        return 0.0 if self._archived_at is None else time.monotonic() - self._archived_at

    def _service(self, name: str) -> str:
        return name if name in self._services else OTHER

    def _role(self, name: str) -> str:
        return name if name in self._last_pass else OTHER

    def _counter(self, name: str, text: str, *labels: str, **closed: Iterable[str]) -> Counter:
        made = Counter(f"accsd_{name}", text, (*labels, *closed), registry=self._registry)
        _at_zero(made, closed)
        return made

    def _gauge(self, name: str, text: str, *labels: str, **closed: Iterable[str]) -> Gauge:
        made = Gauge(f"accsd_{name}", text, (*labels, *closed), registry=self._registry)
        _at_zero(made, closed)
        return made

    def _histogram(self, name: str, text: str, buckets: Iterable[float], *labels: str) -> Histogram:
        return Histogram(f"accsd_{name}", text, labels, registry=self._registry, buckets=tuple(buckets))


def _at_zero(metric: Counter | Gauge, closed: dict[str, Iterable[str]]) -> None:
    """Creates the series of a metric's only label: a rate over a series that appears with its first event misses that
    event. ("other" is not expected.)"""
    for values in closed.values():
        for value in values:
            metric.labels(value)


def _one_of(known: tuple[str, ...], value: str | None) -> str:
    return value if value in known else OTHER
