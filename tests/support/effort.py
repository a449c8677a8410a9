"""How much of the processor a call takes, told in seconds of an idle machine: what else runs makes the processor itself
slower (it shares caches and its clock), so each call is compared with a loop that is measured beside it. The garbage of
a whole test session is now and then collected within one of the calls, and takes longer than the call: so the best of
three counts."""

import time
from collections.abc import Callable
from typing import Final

import pytest

from accsd.errors import InvalidValue

_YARDSTICK: Final = 0.005  # seconds of the loop below on a quiet core of 2026


def seconds(call: Callable[[], object]) -> float:
    return min(_thread_time(call) / _thread_time(_loop) for _ in range(3)) * _YARDSTICK


def _thread_time(call: Callable[[], object]) -> float:
    began = time.thread_time()
    call()
    return time.thread_time() - began


def _loop() -> None:
    kept: dict[int, int] = {}
    for number in range(100_000):
        kept[number & 1023] = number


def refusal_within_50_ms(call: Callable[[], object]) -> InvalidValue:
    """The refusal of what a call makes."""
    refusals: list[InvalidValue] = []

    def refused() -> None:
        with pytest.raises(InvalidValue) as refusal:
            call()
        refusals.append(refusal.value)

    assert seconds(refused) < 0.05
    return refusals[0]
