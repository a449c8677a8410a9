"""The parts of the pull mode that need no database: names and locks, threads, how much is claimed ahead."""

import asyncio
import contextvars
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from accsd.clock import boot_time
from accsd.db import ClaimedTask
from accsd.errors import ConfigError
from accsd.sdk.pull.attempt import Handler, PullAttempt
from accsd.sdk.pull.claimer import Pace
from accsd.sdk.pull.instance import locked_instance
from accsd.sdk.pull.threads import Threads
from accsd.work.context import AttemptContext

WORD: contextvars.ContextVar[str] = contextvars.ContextVar("word")


def test_the_first_free_number_is_the_name(tmp_path: Path):
    with locked_instance(tmp_path, "m1", "thumbs") as first:
        with locked_instance(tmp_path, "m1", "thumbs") as second:
            assert (first.name, second.name) == ("m1.thumbs", "m1.thumbs.2")
            assert first.objects == second.objects == tmp_path / "objects"
        with locked_instance(tmp_path, "m1", "thumbs") as third:
            assert third.name == "m1.thumbs.2"


def test_what_a_dead_process_left_in_its_folder_is_gone(tmp_path: Path):
    with locked_instance(tmp_path, "m1", "thumbs") as first:
        (first.attempts / "x.1" / "work").mkdir(parents=True)
    with locked_instance(tmp_path, "m1", "thumbs") as second:
        assert second == first
        assert not second.attempts.exists()


def test_a_folder_that_cannot_be_used_is_told_with_a_hint(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as told, locked_instance(tmp_path / "file", "m1", "thumbs"):
        pass
    assert "ACC_STATE_DIR" in (told.value.hint or "")


async def test_plain_functions_run_at_once_in_the_callers_context():
    WORD.set("mine")
    threads, both = Threads(2), threading.Barrier(2, timeout=5)

    def meet(argument: object) -> tuple[object, str]:
        both.wait()
        return argument, WORD.get()

    assert await asyncio.gather(threads.call(meet, 1), threads.call(meet, 2)) == [(1, "mine"), (2, "mine")]
    threads.close()


async def test_what_a_plain_function_raises_is_raised_where_it_is_waited_for():
    def fail(argument: object) -> None:
        raise argument if isinstance(argument, BaseException) else TypeError

    threads = Threads(1)
    with pytest.raises(KeyError):
        await threads.call(fail, KeyError("x"))
    with pytest.raises(RuntimeError, match="StopIteration"):
        await threads.call(fail, StopIteration("x"))
    threads.close()


class Sleepy(Threads):
    """Its threads are woken so late that every lease is over by then."""

    attempt: PullAttempt | None = None

    def call(self, function: Callable[[Any], Any], argument: object) -> asyncio.Future[Any]:
        assert self.attempt is not None
        self.attempt.good_until = boot_time()
        return super().call(function, argument)


@pytest.mark.parametrize(("is_async", "sleeps"), [(True, "before"), (False, "before"), (False, "in the thread")])
async def test_a_function_is_not_called_when_its_lease_is_over(is_async: bool, sleeps: str):
    called: list[object] = []

    async def function(given: object) -> None:
        called.append(given)

    task = ClaimedTask(UUID(int=1), UUID(int=2), "a", "render", 1, 0, 3, "running", {}, {}, {}, None, None)
    handler = Handler(
        "render", function if is_async else called.append, is_async, lambda params: params, None, timedelta()
    )
    threads = Sleepy(1)
    left = 0 if sleeps == "before" else 60
    attempt = PullAttempt(task, handler, cast("AttemptContext", None), threads, good_until=boot_time() + left)
    threads.attempt = attempt
    assert await attempt.outcome() is None
    assert attempt.is_unanswered, "it is told as one that could not be kept, should it still be ours"
    assert not called
    threads.close()


def test_a_thread_that_does_not_come_back_does_not_keep_the_process():
    program = (
        "import asyncio, time\nfrom accsd.sdk.pull.threads import Threads\n"
        "async def main():\n    Threads(1).call(time.sleep, 60)\nasyncio.run(main())"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program], cwd=root, timeout=20, check=True)


@pytest.mark.parametrize(
    ("concurrency", "seconds", "ahead"),
    [(10, 1.0, 0), (10, 0.06, 0), (10, 0.04, 50), (10, 0.0001, 500), (1000, 0.0001, 4000), (1, 0.02, 10)],
)
def test_only_what_is_gone_soon_lies_ahead(concurrency: int, seconds: float, ahead: int):
    pace = Pace(concurrency)
    for _ in range(100):
        pace.count(seconds)
    pace.take()
    assert pace.ahead == pytest.approx(ahead, abs=1)
    pace.stall()
    pace.take()
    assert pace.ahead == 0


def test_a_service_in_a_process_does_not_load_the_database():
    root = Path(__file__).parents[2]
    program = "import sys, accsd.sdk; sys.exit(any(name in sys.modules for name in ('asyncpg', 'uvloop')))"
    subprocess.run([sys.executable, "-c", program], cwd=root, timeout=20, check=True)
