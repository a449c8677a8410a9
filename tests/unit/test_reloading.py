"""What a daemon takes over from settings that were read again, and what it says needs a restart."""

from typing import Any

from accsd.daemon.reload import left_behind, taken_over
from accsd.settings import Settings


def settings(**given: Any) -> Settings:
    return Settings.model_validate({"node": {"name": "n1"}} | given)


def test_what_the_daemon_was_built_on_stays_and_is_named():
    before = settings()
    after = settings(
        node={"name": "n1", "state_dir": "/elsewhere", "labels": {"gpu": True}},
        fallback={"adoption": False},
        heartbeat_ttl_sec=7,
        database={"pool_size": 3},
        poll_sec=1,
        wake={"boot": "1m"},
    )
    assert sorted(left_behind(before, after)) == [
        *("database.pool_size", "fallback.adoption", "heartbeat_ttl_sec", "node.state_dir"),
    ]
    kept = taken_over(before, after)
    assert (kept.lease, kept.fallback, kept.database, kept.node.state_dir) == (
        *(before.lease, before.fallback, before.database, None),
    )
    assert (kept.poll_sec, kept.wake, kept.node.labels) == (1, after.wake, {"gpu": True})


def test_nothing_needs_a_restart_where_nothing_of_that_kind_has_changed():
    assert left_behind(settings(), settings(outbox={"keep": "1d"}, retention={"jobs": "9d"}, drain_sec=1)) == []
