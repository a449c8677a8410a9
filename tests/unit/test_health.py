"""What /health says about this process, by what it was told."""

from datetime import UTC, datetime, timedelta

import orjson
import pytest

from accsd.health import Health, ListenerState, Status
from accsd.log import register_secret

START = datetime(2030, 1, 1, tzinfo=UTC)


class Clock:
    """Both of its faces move together."""

    def __init__(self) -> None:
        self.passed = timedelta()

    def now(self) -> datetime:
        return START + self.passed

    def monotonic(self) -> float:
        return self.passed.total_seconds()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    """Of a builder that works."""
    made = Health("control", clock.now, clock.monotonic)
    made.role_started("builder", pass_every=timedelta(seconds=10))
    made.database_answered(timedelta(milliseconds=3))
    made.listener(ListenerState.LISTENING)
    made.ready = True
    return made


def test_a_daemon_whose_parts_all_work_is_ok(health: Health) -> None:
    health.role_passed("builder", "3 jobs started")
    report = health.report()
    assert (report.status, report.reasons, report.http_status) == (Status.OK, [], 200)
    assert report.roles["builder"].last_pass == "3 jobs started"
    assert report.database.lag_seconds == 0.003


def test_an_idle_pass_keeps_the_sentence_of_the_last_one_that_did_something(health: Health, clock: Clock) -> None:
    health.role_passed("builder", "3 jobs started")
    clock.passed += timedelta(seconds=5)
    health.role_passed("builder")
    shown = health.report().roles["builder"]
    assert (shown.last_pass, shown.last_pass_at, shown.passes) == ("3 jobs started", clock.now(), 2)


def test_before_it_is_ready_nothing_is_sent_to_it(health: Health) -> None:
    health.ready = False
    report = health.report()
    assert (report.status, report.ready, report.http_status) == (Status.DEGRADED, False, 503)


def test_a_draining_daemon_is_stopping(health: Health) -> None:
    health.drain()
    health.role_left("builder")
    report = health.report()
    assert (report.status, report.ready, report.draining, report.http_status) == (Status.STOPPING, False, True, 503)
    assert report.reasons == ["draining: no new work is taken"]


def test_a_crashed_role_degrades_until_its_next_pass(health: Health) -> None:
    health.role_failed("builder", "KeyError: 'steps'")
    report = health.report()
    assert (report.status, report.http_status) == (Status.DEGRADED, 200)
    assert report.reasons == ["builder is restarting: KeyError: 'steps'"]
    assert report.roles["builder"].restarts == 1
    health.role_passed("builder")
    assert health.report().status is Status.OK
    assert health.report().roles["builder"].last_error == "KeyError: 'steps'"


def test_an_outage_is_no_restart(health: Health) -> None:
    health.role_failed("builder", "the database can't be reached", restarting=False)
    assert health.report().roles["builder"].restarts == 0


def test_a_role_that_was_told_to_end_is_no_complaint(health: Health) -> None:
    health.role_failed("builder", "KeyError: 'steps'")
    health.role_left("builder")
    assert (health.report().reasons, health.report().roles) == ([], {})


def test_a_role_without_passes_is_well_when_it_runs_again(health: Health) -> None:
    health.role_failed("builder", "KeyError: 'steps'")
    health.role_resumed("builder")
    assert (health.report().reasons, health.report().roles["builder"].restarts) == ([], 1)


def test_a_role_that_hangs_is_noticed_by_its_silence(health: Health, clock: Clock) -> None:
    health.role_passed("builder")
    clock.passed += timedelta(seconds=30)
    assert health.report().status is Status.OK
    clock.passed += timedelta(seconds=1)
    assert health.report().reasons == ["builder has made no pass for 0:00:31"]


def test_a_role_without_passes_may_be_silent(health: Health, clock: Clock) -> None:
    health.role_started("agent")
    health.role_passed("builder")
    clock.passed += timedelta(seconds=20)
    assert health.report().status is Status.OK


def test_a_deaf_listener_degrades_and_says_since_when(health: Health, clock: Clock) -> None:
    clock.passed += timedelta(seconds=7)
    health.listener(ListenerState.DEAF, "no answer to a probe for 5 s")
    clock.passed += timedelta(seconds=7)
    health.listener(ListenerState.DEAF, "no answer to a probe for 12 s")
    report = health.report()
    assert report.reasons == ["notifications do not arrive (no answer to a probe for 12 s); work is polled"]
    assert report.listener.since == START + timedelta(seconds=7)


def test_a_daemon_that_only_polls_is_not_degraded_by_it(health: Health) -> None:
    health.listener(ListenerState.POLLING, "behind a pooler")
    assert health.report().status is Status.OK


def test_a_database_that_is_away_degrades_and_says_since_when(health: Health, clock: Clock) -> None:
    clock.passed += timedelta(seconds=3)
    for _ in range(2):
        health.database_away("connection refused")
        clock.passed += timedelta(seconds=3)
    report = health.report()
    assert report.reasons == ["the database is away: connection refused"]
    assert report.database.since == START + timedelta(seconds=3)
    health.database_answered(timedelta(seconds=1))
    assert health.report().status is Status.OK


def test_the_answer_is_json_without_secrets(health: Health) -> None:
    register_secret("hunter2-of-health")
    health.role_failed("builder", "x" * 490 + " hunter2-of-health \ud800")
    text = health.report().to_json()
    assert b"hunter2" not in text
    assert orjson.loads(text)["roles"]["builder"]["state"] == "restarting"
    assert orjson.loads(text)["started_at"] == "2030-01-01T00:00:00+00:00"


def test_a_role_that_is_kept_from_its_work_degrades_until_it_is_not(health: Health) -> None:
    health.role_passed("builder", obstacle="the Docker engine does not answer")
    assert health.report().reasons == ["builder takes no work: the Docker engine does not answer"]
    health.role_passed("builder")
    assert health.report().status is Status.OK
