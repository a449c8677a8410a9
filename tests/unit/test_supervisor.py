"""The only loop: what wakes a role, what a failing one does to the others, how they stop."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import anyio
import pytest

from accsd.errors import DatabaseUnavailable, Unavailable
from accsd.health import Health
from accsd.metrics import Metrics
from accsd.supervisor import Pass, Post, RoleObserver, Supervisor
from tests.support.eventually import eventually

LONG = timedelta(hours=1)


class Seen(RoleObserver):
    """An observer that remembers."""

    def __init__(self) -> None:
        super().__init__(Health("n1"), Metrics())
        self.passes: list[str] = []
        self.aways: list[str] = []
        self.crashes: list[tuple[str, str]] = []
        self.stops: list[str] = []
        self.holding: list[str] = []

    def started(self, role: str, poll: timedelta | None) -> None:
        pass

    def passed(self, role: str, done: Pass, took: timedelta) -> None:
        self.passes.append(role)

    def away(self, role: str, error: Unavailable, pause: timedelta) -> None:
        self.aways.append(role)

    def crashed(self, role: str, error: Exception, pause: timedelta) -> None:
        self.crashes.append((role, str(error)))

    def resumed(self, role: str) -> None:
        self.holding.append(role)

    def stopped(self, role: str) -> None:
        self.stops.append(role)


class Scripted:
    """A role whose passes are given; the last one is repeated."""

    def __init__(self, *passes: Pass | Exception | Callable[[], Awaitable[Pass]]) -> None:
        self.script = list(passes)
        self.made = 0

    async def run_once(self) -> Pass:
        self.made += 1
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, Exception):
            raise step
        return step if isinstance(step, Pass) else await step()


async def test_a_role_passes_until_there_is_no_more_and_then_only_when_it_is_woken():
    seen, role = Seen(), Scripted(Pass(more=True), Pass(more=True), Pass())
    async with Supervisor(seen) as supervisor:
        post = Post("r", lambda: role, poll=lambda: LONG)
        supervisor.keep(post)
        await eventually(lambda: role.made == 3)
        await anyio.wait_all_tasks_blocked()
        assert role.made == 3
        post.wakeup.set()
        post.wakeup.set()
        await eventually(lambda: role.made == 4)
        await anyio.wait_all_tasks_blocked()
        assert role.made == 4, "two notifications before a pass are one"


async def test_a_role_that_is_renewed_ends_its_pass_and_is_made_anew():
    made: list[Scripted] = []
    may_end = anyio.Event()

    async def long() -> Pass:
        await may_end.wait()
        return Pass(more=True)

    def make() -> Scripted:
        made.append(Scripted(long, Pass()) if not made else Scripted(Pass()))
        return made[-1]

    async with Supervisor(seen := Seen()) as supervisor:
        post = Post("r", make, poll=lambda: LONG)
        supervisor.keep(post)
        await eventually(lambda: made and made[0].made == 1)
        post.renew()
        await anyio.wait_all_tasks_blocked()
        assert len(made) == 1, "never two at once"
        may_end.set()
        await eventually(lambda: len(made) == 2 and made[1].made == 1)
        await anyio.wait_all_tasks_blocked()
        assert (len(made), made[0].made, made[1].made) == (2, 1, 1)
        post.renew()  # while it sleeps
        await eventually(lambda: len(made) == 3 and made[2].made == 1)
    assert seen.crashes == []


async def test_a_notification_during_a_pass_makes_one_more():
    post: Post

    async def is_notified_meanwhile() -> Pass:
        post.wakeup.set()
        return Pass()

    seen, role = Seen(), Scripted(is_notified_meanwhile, Pass())
    async with Supervisor(seen) as supervisor:
        post = Post("r", lambda: role, poll=lambda: LONG)
        supervisor.keep(post)
        await eventually(lambda: role.made == 2)


async def test_a_known_due_time_comes_before_the_poll():
    role = Scripted(Pass(next_due=timedelta(milliseconds=20)), Pass())
    async with Supervisor(Seen()) as supervisor:
        supervisor.keep(Post("r", lambda: role, poll=lambda: LONG))
        await eventually(lambda: role.made == 2, within=2)


async def test_the_poll_is_asked_for_anew_each_time():
    polls = iter([LONG, timedelta(milliseconds=10), timedelta(milliseconds=10), LONG, LONG])  # the first: to be told
    role = Scripted(Pass())
    async with Supervisor(Seen()) as supervisor:
        supervisor.keep(Post("r", lambda: role, poll=lambda: next(polls)))
        await eventually(lambda: role.made == 3)


async def test_a_role_that_crashes_is_made_anew_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("accsd.supervisor._CRASH_PAUSES", (timedelta(milliseconds=1), timedelta(milliseconds=2)))
    seen, steady = Seen(), Scripted(Pass())
    made: list[Scripted] = []

    def make() -> Scripted:
        made.append(Scripted(RuntimeError(f"number {len(made)}")) if len(made) < 2 else Scripted(Pass()))
        return made[-1]

    async with Supervisor(seen) as supervisor:
        other = Post("steady", lambda: steady)
        supervisor.keep(other)
        supervisor.keep(Post("shaky", make))
        await eventually(lambda: len(made) == 3 and made[2].made == 1)
        assert seen.crashes == [("shaky", "number 0"), ("shaky", "number 1")]
        before = steady.made
        other.wakeup.set()
        await eventually(lambda: steady.made == before + 1)


async def test_an_outage_keeps_the_role_and_is_tried_again_soon():
    seen, role = Seen(), Scripted(DatabaseUnavailable("away"), DatabaseUnavailable("away"), Pass())
    made: list[Scripted] = []

    def make() -> Scripted:
        made.append(role)
        return role

    async with Supervisor(seen) as supervisor:
        supervisor.keep(Post("r", make, poll=lambda: LONG))
        await eventually(lambda: seen.passes == ["r"], within=2)
    assert (len(made), seen.aways, seen.crashes) == (1, ["r", "r"], [])


async def test_notifications_do_not_turn_an_outage_into_a_busy_loop():
    role = Scripted(DatabaseUnavailable("away"))
    async with Supervisor(Seen()) as supervisor:
        post = Post("r", lambda: role)
        supervisor.keep(post)
        for _ in range(50):
            post.wakeup.set()
            await asyncio.sleep(0.002)
        assert role.made <= 4


async def test_a_post_that_is_left_ends_its_pass_and_makes_no_other():
    inside, go_on = anyio.Event(), anyio.Event()

    async def slow() -> Pass:
        inside.set()
        await go_on.wait()
        return Pass(more=True)

    seen, role = Seen(), Scripted(slow)
    async with Supervisor(seen) as supervisor:
        post = Post("r", lambda: role)
        supervisor.keep(post)
        await inside.wait()
        post.leave()
        go_on.set()
        await post.ended()
        assert (role.made, seen.passes, seen.stops) == (1, ["r"], ["r"])


async def test_a_post_that_has_a_successor_of_its_name_is_not_said_to_have_stopped():
    seen, may_end = Seen(), anyio.Event()

    async def long_pass() -> Pass:
        await may_end.wait()
        return Pass()

    async with Supervisor(seen) as supervisor:
        first, second = Post("r", lambda: Scripted(long_pass)), Post("r", lambda: Scripted(Pass()))
        supervisor.keep(first)
        await anyio.wait_all_tasks_blocked()
        first.leave()
        supervisor.keep(second)
        may_end.set()
        await first.ended()
        assert seen.stops == []
        second.leave()
        await second.ended()
        assert seen.stops == ["r"]


class Serving:
    def __init__(self) -> None:
        self.started = anyio.Event()
        self.was_cancelled = False

    async def serve(self) -> None:
        self.started.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            self.was_cancelled = True
            raise


async def test_a_role_that_serves_is_cancelled_when_it_is_left_alone():
    role = Serving()
    async with Supervisor(Seen()) as supervisor:
        post = Post("s", lambda: role)
        supervisor.keep(post)
        await role.started.wait()
        post.leave()
        await post.ended()
        assert role.was_cancelled


class Fragile:
    """Serves; ends or fails in the way that it is told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def serve(self) -> None:
        if self.error is not None:
            raise self.error


async def test_a_role_that_serves_and_ends_by_itself_has_crashed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("accsd.supervisor._CRASH_PAUSES", (timedelta(milliseconds=1), timedelta(milliseconds=2)))
    seen, healthy = Seen(), Serving()
    roles = iter([Fragile(), Fragile(RuntimeError("broken")), healthy])
    async with Supervisor(seen) as supervisor:
        supervisor.keep(Post("s", lambda: next(roles)))
        await eventually(healthy.started.is_set)
    assert seen.crashes == [("s", "s ended by itself"), ("s", "broken")]


async def test_a_role_that_serves_is_said_to_be_well_when_it_holds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("accsd.supervisor._CRASH_PAUSES", (timedelta(milliseconds=1), timedelta(milliseconds=2)))
    monkeypatch.setattr("accsd.supervisor._HOLDS", timedelta(milliseconds=20))
    seen, healthy = Seen(), Serving()
    roles = iter([Fragile(RuntimeError("broken")), healthy])
    async with Supervisor(seen) as supervisor:
        supervisor.keep(Post("s", lambda: next(roles)))
        await healthy.started.wait()
        assert seen.holding == []
        await eventually(lambda: seen.holding == ["s"])


async def test_the_end_of_the_supervisor_cancels_what_is_left():
    role = Serving()
    async with Supervisor(Seen()) as supervisor:
        supervisor.keep(Post("s", lambda: role))
        await role.started.wait()
    assert role.was_cancelled
