"""This machine: its folders, its disk, its object store, and the way to sleeping machines."""

import os
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final
from uuid import uuid4

from accsd.cli.checks.finding import Finding, fail, ok, warn
from accsd.cli.objects import default_folder, is_default, objects
from accsd.db.views.doctor import count
from accsd.errors import AccsdError
from accsd.power.wol import directed_broadcasts
from accsd.settings import Settings, environment, state_folder
from accsd.storage import ObjectStore
from accsd.values.units import shown_size

_PROBE: Final = b"accsd doctor\n"
_EVERYBODY: Final = "255.255.255.255"


async def storage(settings: Settings) -> AsyncIterator[Finding]:
    async with objects(settings) as store:
        await store.check()
        await _round_trip(store)
    if is_default(settings):
        said = f"a probe was put, read and deleted in {default_folder(settings)}, which only this machine has"
        yield warn(
            "storage", said, "with several machines set storage.url (ACC_STORAGE_URL) to s3://bucket or a shared folder"
        )
    else:
        where = settings.storage.url or settings.storage.endpoint
        yield ok("storage", f"a probe was put, read and deleted in {where}, bucket {store.bucket}")


async def _round_trip(store: ObjectStore) -> None:
    key = f"doctor/{uuid4().hex}"
    stored = await store.put_bytes(key, _PROBE)
    try:
        await store.get_bytes(key, checksum=stored.checksum)
    finally:
        await store.delete(key)


async def folders(settings: Settings) -> AsyncIterator[Finding]:
    folder = state_folder(settings, environment())
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    yield _writable(folder, nearest)
    yield _room(settings, nearest)


def _writable(folder: Path, nearest: Path) -> Finding:
    if not os.access(nearest, os.W_OK | os.X_OK):
        return fail(
            "state folder", f"{nearest} is not writable for this user", "name another by node.state_dir (ACC_STATE_DIR)"
        )
    made = "is writable" if folder == nearest else "can be made"
    return ok("state folder", f"{folder} {made}")


def _room(settings: Settings, nearest: Path) -> Finding:
    free, mark = shutil.disk_usage(nearest).free, settings.node.min_free_disk
    said = f"{shown_size(free)} free at {nearest}, tasks are refused below {shown_size(mark)}"
    if free < mark:
        return fail("disk", said, "make room there, or lower node.min_free_disk")
    return warn("disk", said, "make room there soon") if free < 2 * mark else ok("disk", said)


async def waking(settings: Settings) -> AsyncIterator[Finding]:
    """Whether packets can leave this machine. It matters only if a node is woken by packets."""
    try:
        counts = await count(settings.database, settings.lease)
    except AccsdError:
        counts = None
    sleepers = 0 if counts is None else counts.wakeable.get("wol", 0)
    known = "" if counts is None else f"; {sleepers or 'no'} node{'s are' if sleepers > 1 else ' is'} woken so"
    near = directed_broadcasts(settings.wake.interface)
    routes = [*near, *map(str, settings.wake.broadcast), *([_EVERYBODY] if _has_route() else [])]
    if near or settings.wake.broadcast:
        yield ok("wake-on-LAN", f"packets go to {', '.join(routes)}{known}")
        return
    where = settings.wake.interface or "any interface"
    said = f"no broadcast address on {where}" + (f", only {_EVERYBODY}" if routes else "")
    do = "set wake.interface or wake.broadcast on the control host"
    if sleepers == 0:
        yield ok("wake-on-LAN", f"{said}{known}")
    else:
        yield warn("wake-on-LAN", said, do) if routes else fail("wake-on-LAN", said, do)


def _has_route() -> bool:
    """Connecting a datagram socket only looks up the route: nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        try:
            probe.connect((_EVERYBODY, 9))
        except OSError:
            return False
    return True
