"""Checks of PostgreSQL: is it reachable and safe, does it have our schema, do its clock and its notifications work."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Final

from accsd.cli.checks.finding import Finding, fail, ok, warn
from accsd.db.install import SchemaStatus, read_status
from accsd.db.pool import connect
from accsd.db.views.doctor import ServerFacts, count, hear_oneself, look_at_server
from accsd.errors import DatabaseUnavailable, SchemaMismatch
from accsd.explain.health import troubles
from accsd.explain.words import duration
from accsd.history.clocks import ahead_of
from accsd.settings import Settings

_OLDEST: Final = 150000
_SLOW: Final = timedelta(milliseconds=50)
_CLOCK_MAY_DIFFER: Final = timedelta(seconds=2)
_SIGNATURES_FAIL: Final = timedelta(minutes=5)  # S3 refuses requests that are dated wrong


async def server(settings: Settings) -> AsyncIterator[Finding]:
    found = await look_at_server(settings.database)
    yield _reached(settings, found)
    yield _durable(found)
    yield _in_time(found)
    if settings.retention.removes_anything:
        yield _may_remove(found)
    yield _pooler(settings, found)


def _reached(settings: Settings, found: ServerFacts) -> Finding:
    took = f"{found.round_trip.total_seconds() * 1000:.1f} ms"
    said = f"{settings.database.address} answers in {took}, PostgreSQL {found.version}"
    if found.version_num < _OLDEST:
        return fail("database", said, "upgrade it: accsd needs PostgreSQL 15 or later")
    if found.is_read_only:
        return fail("database", f"{said}, and is read-only", "name the primary in ACC_DB_URL")
    if found.round_trip > _SLOW:
        return warn("database", said, "every claim waits for it: move this machine nearer, or use more slots at once")
    return ok("database", said)


def _durable(found: ServerFacts) -> Finding:
    if not found.unsafe:
        return ok("durability", "what is committed survives a power cut")
    do = "turn them on, unless losing the last moments at a power cut is acceptable"
    return warn("durability", f"{', '.join(found.unsafe)} off in the server", do)


def _in_time(found: ServerFacts) -> Finding:
    away = abs(found.clock_ahead)
    said = f"this clock and the database's differ by {away.total_seconds():.3f} s"
    if away > _SIGNATURES_FAIL:
        return fail("clock", said, "synchronise this machine's clock (systemctl start systemd-timesyncd)")
    if away > _CLOCK_MAY_DIFFER:
        return warn("clock", said, "leases go by the database's, but logs are dated by this one: synchronise it")
    return ok("clock", said)


def _may_remove(found: ServerFacts) -> Finding:
    """The builder's rule, by the clock of the machine that the doctor is on."""
    here = datetime.now(UTC)
    if (said := ahead_of(here - found.clock_ahead, here)) is None:
        return ok("retention", "the database's clock is not ahead: what is old may leave")
    return fail("retention", f"nothing leaves the database: {said}", "set the clocks right; the next pass looks again")


def _pooler(settings: Settings, found: ServerFacts) -> Finding:
    if not found.is_pooled:
        return ok("pooler", "none between here and the server")
    if settings.database.listen_url is not None:
        return ok("pooler", "a transaction pooler, and database.listen_url leads past it")
    do = "set database.listen_url (ACC_DB_LISTEN_URL) to the server itself"
    return warn("pooler", "a transaction pooler, through which no notification comes: all poll", do)


async def schema(settings: Settings) -> AsyncIterator[Finding]:
    connection = await connect(settings.database, application="accsd doctor")
    try:
        status = await read_status(connection)
    finally:
        await connection.close(timeout=5)
    if not status.is_current:
        wrong = SchemaMismatch(found=status.found, expected=status.expected)
        yield fail("schema", wrong.message, wrong.hint or "")
        return
    yield ok("schema", f"version {status.found}, {status.event_partitions} partitions of events")
    yield _prefix(settings, status)


def _prefix(settings: Settings, status: SchemaStatus) -> Finding:
    if status.channel_prefix == settings.notify_channel_prefix:
        return ok("channels", f'both sides say "{status.channel_prefix}"')
    said = (
        f'the schema notifies "{status.channel_prefix}…", this process listens to "{settings.notify_channel_prefix}…"'
    )
    return fail("channels", said, f"set ACC_NOTIFY_CHANNEL_PREFIX={status.channel_prefix}, or run `accsd db install`")


async def listening(settings: Settings) -> AsyncIterator[Finding]:
    try:
        took = await hear_oneself(settings.database, settings.notify_channel_prefix)
    except DatabaseUnavailable as deaf:
        yield warn("LISTEN", deaf.message, deaf.hint or "see whether the server itself is reached")
        return
    yield ok("LISTEN", f"a notification came back in {took.total_seconds() * 1000:.1f} ms")


def not_for_agents(check: str) -> Finding:
    return ok(check, f"this is an agent's login: the {check} is checked on the control host")


async def fleet(settings: Settings) -> AsyncIterator[Finding]:
    counts = await count(settings.database, settings.lease)
    if counts is None:
        yield not_for_agents("fleet")
        return
    lease = duration(settings.lease)
    if counts.nodes == 0:
        yield warn("nodes", "none has registered", "start `accsd --role agent` on a machine that is to work")
    elif counts.awake == 0 and not counts.wakeable:
        yield warn(
            "nodes", f"none of {counts.nodes} was seen within {lease}", "`accsd nodes` says which were last seen when"
        )
    else:
        yield ok(
            "nodes",
            f"{counts.awake} of {counts.nodes} seen within {lease}, {sum(counts.wakeable.values())} can be woken",
        )
    for login, nodes in counts.shared.items():
        said = f"{nodes} nodes share {login}: each could act for the others (`accsd db node-login NAME` parts one)"
        yield ok("logins", said)
    for each in counts.hindered:
        said = f"{each.node} takes no {', '.join(each.services)} now: {each.obstacle.reason}"
        do = each.obstacle.hint or f"`accsd nodes show {each.node}`"
        yield warn("obstacle", said, f"on {each.node}: {do}" if each.obstacle.hint else do)
    if counts.overdue_jobs:
        do = "start one: `accsd --role builder`"
        said = f"{counts.overdue_jobs} jobs are overdue, {counts.daemons} daemons are connected: no builder takes them"
        yield fail("builder", said, do)
    for said in troubles(counts.scheduler, counts.builders):
        yield warn("schedules", said, "`accsd schedules list` says which; /health and the log of the builder say more")
    if counts.scheduler.broken:
        said = f"{counts.scheduler.broken} broken: nothing of them fires"
        yield warn("schedules", said, "`accsd schedules list --state broken` says why; an edit mends one")
    if counts.dead_letters:
        yield warn(
            "dead letters", f"{counts.dead_letters} failed for good", "`accsd dead list`, then retry or dismiss them"
        )
    else:
        yield ok("dead letters", "none")
