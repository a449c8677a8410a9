"""How much of the processor a call takes. The garbage of a whole test session is now and then collected within one of
its calls, and takes longer than the call: so the best of three counts."""

import time
from collections.abc import Callable

import pytest

from accsd.errors import InvalidValue


def seconds(call: Callable[[], object]) -> float:
    took: list[float] = []
    for _ in range(3):
        began = time.thread_time()
        call()
        took.append(time.thread_time() - began)
    return min(took)


def refusal_within_50_ms(call: Callable[[], object]) -> InvalidValue:
    """The refusal of what a call makes."""
    refusals: list[InvalidValue] = []

    def refused() -> None:
        with pytest.raises(InvalidValue) as refusal:
            call()
        refusals.append(refusal.value)

    assert seconds(refused) < 0.05
    return refusals[0]
