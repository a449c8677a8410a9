"""Roles as rows of a table: how each is made, what wakes it, from which settings it is made, and when it leaves.

A kind of process has one table and one context that holds the facts which its roles share; each role is made from the
context. So a new role is a new row, and start, reload and drain follow the table.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any, Generic, TypeVar

from accsd.db.listen import Listener
from accsd.settings import Settings
from accsd.supervisor import PassingRole, Post, ServingRole, Supervisor

Context = TypeVar("Context")
AnyRole = PassingRole | ServingRole


class Leaves(Enum):
    """When a role ends while the daemon drains."""

    FIRST = "first: nothing new begins"
    CLAIMS = "first, and its last pass is waited for: a claim may bring tasks"
    ATTEMPTS = "when the last attempt has ended"
    LAST = "with the process"


@dataclass(frozen=True, slots=True)
class Role(Generic[Context]):
    """One row. A row with `each` has a role for each of those names, which begin with `name`."""

    name: str
    does: str  # one sentence, for the documentation
    make: Callable[[Context], AnyRole] | None = None
    hears: str | None = None  # the channel that wakes it
    heeds: Callable[[Context, str], bool] = lambda _, __: True  # which payloads of that channel
    polls: bool = False  # makes a pass from time to time without being woken
    made_from: str | None = None  # the section of the settings: when it has changed, the role is made anew
    wanted: Callable[[Context], bool] = lambda _: True
    leaves: Leaves = Leaves.FIRST
    each: Callable[[Context], Collection[str]] | None = None
    make_each: Callable[[Context, str], AnyRole] | None = None

    def members(self, context: Context) -> dict[str, Callable[[], AnyRole]]:
        """The roles that are wanted now, by name, and how to make them."""
        if not self.wanted(context):
            return {}
        if self.each is None:
            assert self.make is not None, self.name
            return {self.name: partial(self.make, context)}
        assert self.make_each is not None, self.name
        return {f"{self.name}{name}": partial(self.make_each, context, name) for name in self.each(context)}


class Roles(Generic[Context]):
    """The roles of one table that run in this process. `poll` says how often those that poll make a pass."""

    def __init__(
        self,
        rows: Sequence[Role[Context]],
        context: Context,
        supervisor: Supervisor,
        listener: Listener,
        settings: Settings,
    ) -> None:
        self._rows = rows
        self._context = context
        self._supervisor = supervisor
        self._listener = listener
        self._settings = settings
        self._posts: dict[str, tuple[Role[Context], Post]] = {}
        self._dismissed: list[tuple[Role[Context], Post]] = []  # may still be in their last pass
        self._is_leaving: bool = False

    def start(self) -> None:
        for row in self._rows:
            if row.hears is not None:
                self._listener.subscribe(row.hears, lambda payload, row=row: self._hear(row, payload))
        self.choose()

    def choose(self) -> bool:
        """Starts roles that the context wants and that do not run yet; ends those that are not wanted any more.
        False: this process leaves, and nothing was changed."""
        if self._is_leaving:
            return False
        wanted = {name: (row, make) for row in self._rows for name, make in row.members(self._context).items()}
        for name in self._posts.keys() - wanted.keys():
            self._dismiss(name)
        for name, (row, make) in wanted.items():
            if name not in self._posts:
                post = Post(name, make, poll=self._poll if row.polls else None)
                self._posts[name] = row, post
                self._supervisor.keep(post)
        return True

    def reload(self, before: Settings, after: Settings) -> None:
        """Makes roles anew whose settings have changed, after the pass that they are in."""
        self._settings = after
        for row, post in self._posts.values():
            if row.made_from is not None and _section(before, row.made_from) != _section(after, row.made_from):
                post.renew()
        self.choose()

    def wake(self, name: str) -> None:
        """Wakes a role, or all roles of a row with `each`. A role that does not run now looks when it begins."""
        for other, (row, post) in self._posts.items():
            if name in (other, row.name):
                post.wakeup.set()

    def leave(self, when: Leaves) -> list[Post]:
        """Ends the roles that leave at this time; nothing is started afterwards."""
        self._is_leaving = True
        posts = [post for row, post in (*self._posts.values(), *self._dismissed) if row.leaves is when]
        for post in posts:
            post.leave()
        return posts

    def _poll(self) -> timedelta:
        return self._listener.poll(self._settings)

    def _dismiss(self, name: str) -> None:
        row, post = self._posts.pop(name)
        post.leave()
        self._dismissed = [(row, post), *(other for other in self._dismissed if not other[1].has_ended)]

    def _hear(self, row: Role[Context], payload: str) -> None:
        if row.heeds(self._context, payload):
            self.wake(row.name)


def _section(settings: Settings, name: str) -> Any:
    return getattr(settings, name)
