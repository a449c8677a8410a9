"""Trying again: the length of the pauses, and which absences end them."""

from datetime import timedelta

import pytest

from accsd import retry
from accsd.errors import DatabaseUnavailable, StorageUnavailable
from accsd.retry import Backoff, until_answered, while_away
from accsd.storage import ChecksumMismatch

SECOND = timedelta(seconds=1)
QUICK = (timedelta(milliseconds=1), timedelta(milliseconds=2))


class Sometimes:
    """Fails as often as it is told to, then answers."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return "answer"


def test_each_pause_is_twice_as_long_as_the_one_before_up_to_the_longest():
    pauses = Backoff(SECOND, 5 * SECOND, spread=(1, 1))
    assert [pauses.next() / SECOND for _ in range(5)] == [1, 2, 4, 5, 5]
    pauses.reset()
    assert pauses.next() == SECOND


def test_a_pause_does_not_overflow_after_very_many_failures():
    pauses = Backoff(SECOND, 5 * SECOND, spread=(1, 1))
    pauses.failures = 10_000
    assert pauses.next() == 5 * SECOND


def test_pauses_are_spread_between_two_factors():
    found = [Backoff(SECOND, SECOND, spread=(0.5, 1)).next() / SECOND for _ in range(200)]
    assert min(found) >= 0.5
    assert max(found) <= 1
    assert max(found) - min(found) > 0.2


async def test_a_call_is_repeated_until_the_database_answers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(retry, "DATABASE_PAUSES", QUICK)
    call = Sometimes(DatabaseUnavailable("away"), DatabaseUnavailable("still away"))
    assert await until_answered(call) == "answer"
    assert call.calls == 3


async def test_another_failure_than_an_absence_is_raised_at_once():
    call = Sometimes(ValueError("wrong"))
    with pytest.raises(ValueError, match="wrong"):
        await until_answered(call)
    assert call.calls == 1


async def test_a_call_is_repeated_while_the_store_is_away():
    call = Sometimes(*[StorageUnavailable("away")] * 3)
    assert await transfer(call, patience=10 * SECOND) == "answer"


async def test_an_absence_that_outlasts_the_patience_is_raised():
    call = Sometimes(*[StorageUnavailable("away")] * 1000)
    with pytest.raises(StorageUnavailable):
        await transfer(call, patience=timedelta(milliseconds=20))
    assert 1 < call.calls < 100


async def test_a_kind_of_absence_that_is_excepted_is_raised_at_once():
    call = Sometimes(ChecksumMismatch("damaged"))
    with pytest.raises(ChecksumMismatch):
        await transfer(call, patience=10 * SECOND)
    assert call.calls == 1


async def transfer(call: Sometimes, *, patience: timedelta) -> str:
    return await while_away(
        call,
        away=StorageUnavailable,
        except_for=(ChecksumMismatch,),
        pauses=Backoff(*QUICK),
        patience=patience,
    )
