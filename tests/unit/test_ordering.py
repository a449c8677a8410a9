"""The global order (A9, SPEC "One system")."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from accsd.planning.ordering import next_ordered_task, order_key

SOME_ID = UUID(int=5)
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class ATask:
    id: UUID = SOME_ID
    created_at: datetime = NOON


@dataclass(frozen=True)
class AJob:
    order_seq: int = 5
    priority: int = 0


def test_priority_comes_first_and_the_larger_one_wins():
    assert order_key(ATask(), AJob(priority=1, order_seq=9)) < order_key(ATask(), AJob(order_seq=1))


def test_among_equal_priorities_the_jobs_sequence_decides_before_the_tasks_age():
    older = ATask(created_at=NOON - timedelta(days=1))

    assert order_key(ATask(), AJob(order_seq=1)) < order_key(older, AJob(order_seq=2))


def test_within_a_job_the_age_and_then_the_id_decide():
    assert order_key(ATask(created_at=NOON - timedelta(seconds=1)), AJob()) < order_key(ATask(UUID(int=1)), AJob())
    assert order_key(ATask(UUID(int=1)), AJob()) < order_key(ATask(UUID(int=2)), AJob())


def test_the_next_task_is_the_first_in_that_order_or_none():
    urgent = ATask(UUID(int=9))

    assert next_ordered_task([(ATask(), AJob()), (urgent, AJob(priority=3)), (ATask(), AJob(order_seq=1))]) is urgent
    assert next_ordered_task([]) is None
