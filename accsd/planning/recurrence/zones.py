"""Time zones by the newest rules at hand, and which rules those are.

Python reads the system's files first, however old, and two processes that read different files disagree about when
09:00 is. So this room never asks `ZoneInfo(name)`: it chooses one set of rules for the process, knows its version, and
can tell by a digest whether another set means the same for a zone.
"""

import difflib
import hashlib
import os
import re
import zoneinfo
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

import tzdata

from accsd.errors import ConfigError, InvalidValue
from accsd.planning.recurrence.text import bounded, quoted

# Names a folder of compiled rules to use instead of the package's or the system's.
RULES_VARIABLE: Final = "ACC_ZONE_RULES"

# Names of zones that have no summer time, and what people mean who write them.
USUAL_ZONES: Final = {"EST": "America/New_York", "MST": "America/Denver", "HST": "Pacific/Honolulu"}

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,2}")
_VERSION = re.compile(r"(\d{4})([a-z]*)")
_VERSION_FILES: Final = ("tzdata.zi", "+VERSION", "version")
_OFFSET = re.compile(r"(?:UTC|GMT|Z)?\s*[+-]\d{1,2}(?::?\d\d)?", re.IGNORECASE)
# The same zones once more, with leap seconds or without; what the machine's own clock shows; a placeholder.
_NO_ZONES: Final = frozenset({"posix", "right", "localtime", "posixrules", "Factory"})
# No two changes of a zone's offset are nearer to each other than this.
_STEP: Final = timedelta(hours=12)
_SECOND: Final = timedelta(seconds=1)
_TEN_YEARS: Final = timedelta(days=3653)


@dataclass(frozen=True, slots=True)
class Zone:
    """A zone by the rules of one version."""

    name: str
    version: str
    info: zoneinfo.ZoneInfo

    def local(self, instant: datetime) -> datetime:
        return instant.astimezone(self.info)

    def offset(self, instant: datetime) -> timedelta:
        return instant.astimezone(self.info).utcoffset() or timedelta(0)


@dataclass(frozen=True, slots=True)
class Transition:
    """The instant at which a zone's offset from UTC changes."""

    at: datetime
    before: timedelta
    after: timedelta


@dataclass(frozen=True, slots=True)
class ZoneRules:
    """A folder of compiled rules, and their version as IANA writes it: 2026f."""

    folder: Path
    version: str

    def zone(self, name: str) -> Zone:
        known = self._known(name)
        return Zone(known, self.version, _load(self.folder, known))

    def names(self) -> tuple[str, ...]:
        return _names(self.folder)

    def _known(self, name: str) -> str:
        text = bounded(name, 64, "the name of a time zone")
        if _NAME.fullmatch(text) and text.split("/")[0] not in _NO_ZONES and _is_compiled(self.folder / text):
            return text
        if _OFFSET.fullmatch(text):
            raise InvalidValue(
                f"{quoted(text)} is an offset, not a time zone: it knows no summer time",
                hint="write UTC, or the name of a place, such as Europe/Chisinau",
            )
        near = ", ".join(nearest_names(text, self.names()))
        raise InvalidValue(
            f"{quoted(text)} is not a time zone of the rules {self.version}",
            hint=f"did you mean {near}?" if near else "write the name of a place, such as Europe/Chisinau, or UTC",
        )


def nearest_names(text: str, names: Iterable[str]) -> list[str]:
    """Up to three names that may have been meant, the nearest first: as a whole, or by the place alone."""
    by_spelling: dict[str, list[str]] = {}
    for name in names:
        for spelling in {name.lower(), name.rsplit("/", 1)[-1].lower()}:
            by_spelling.setdefault(spelling, []).append(name)
    word = text.lower().replace(" ", "_")
    close = difflib.get_close_matches(word, by_spelling, n=3, cutoff=0.7)
    if "/" in word:
        close += difflib.get_close_matches(word.rsplit("/", 1)[-1], by_spelling, n=3, cutoff=0.8)
    return list(dict.fromkeys(name for spelling in close for name in by_spelling[spelling]))[:3]


@cache
def zone_rules() -> ZoneRules:
    """The rules of this process: chosen when they are first needed, and the same for everything in it."""
    named = os.environ.get(RULES_VARIABLE)
    return rules_in(Path(named)) if named else newest_rules()


def rules_in(folder: Path) -> ZoneRules:
    """The rules of a folder that a person named."""
    version = _version_of(folder)
    if version is None:
        raise ConfigError(
            f"{folder} holds no time zone rules with a version",
            hint=f"a folder of compiled rules has the file {_VERSION_FILES[0]} or {_VERSION_FILES[1]}",
        )
    return ZoneRules(folder, version)


def newest_rules(system: Iterable[str] = zoneinfo.TZPATH) -> ZoneRules:
    """The newer of the package's rules and the system's; the package's where they are equal or the system does not
    say how old its own are."""
    packaged = ZoneRules(Path(tzdata.__file__).parent / "zoneinfo", tzdata.IANA_VERSION)
    installed = [ZoneRules(Path(path), version) for path in system if (version := _version_of(Path(path)))]
    return max([packaged, *installed], key=lambda rules: _age(rules.version))


def is_older(version: str, than: str) -> bool:
    """Whether one version of the rules was published before another."""
    return _age(version) < _age(than)


def transitions(zone: Zone, start: datetime, end: datetime) -> Iterator[Transition]:
    """The changes of a zone's offset in start < instant ≤ end."""
    instant, before = start, zone.offset(start)
    while instant < end:
        later = min(instant + _STEP, end)
        after = zone.offset(later)
        if after != before:
            yield Transition(first_with(zone, after, instant, later), before, after)
        instant, before = later, after


def first_with(zone: Zone, offset: timedelta, low: datetime, high: datetime) -> datetime:
    """The first instant with this offset, which the zone has at `high` and not at `low`. Offsets change at whole
    seconds only."""
    low = low.replace(microsecond=0)
    first, last = 0, -((low - high) // _SECOND)
    while last - first > 1:
        middle = (first + last) // 2
        if zone.offset(low + middle * _SECOND) == offset:
            last = middle
        else:
            first = middle
    return low + last * _SECOND


def zone_digest(zone: Zone, since: datetime) -> str:
    """What the rules say of a zone for ten years from an instant: two sets of rules mean the same if their digests
    from the same instant are equal. The names of offsets (CET, CEST) do not matter."""
    start = since.astimezone(UTC).replace(microsecond=0)
    lines = [f"{start.isoformat()} {zone.offset(start) // _SECOND}"]
    lines += [f"{each.at.isoformat()} {each.after // _SECOND}" for each in transitions(zone, start, start + _TEN_YEARS)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def _age(version: str) -> tuple[int, int, str]:
    """A sort key: 2025b < 2025z < 2025za < 2026a."""
    match = _VERSION.match(version)
    return (int(match[1]), len(match[2]), match[2]) if match else (0, 0, "")


def _version_of(folder: Path) -> str | None:
    for name in _VERSION_FILES:
        try:
            with (folder / name).open(encoding="utf-8", errors="replace") as file:
                match = _VERSION.search(file.readline(200))
        except OSError:
            continue
        if match:
            return match[0]
    return None


@lru_cache(maxsize=1024)
def _load(folder: Path, name: str) -> zoneinfo.ZoneInfo:
    with (folder / name).open("rb") as file:
        return zoneinfo.ZoneInfo.from_file(file, key=name)


@lru_cache(maxsize=8)
def _names(folder: Path) -> tuple[str, ...]:
    paths = (path for path in folder.rglob("*") if _is_compiled(path))
    names = (path.relative_to(folder).as_posix() for path in paths)
    return tuple(sorted(name for name in names if name.split("/")[0] not in _NO_ZONES))


def _is_compiled(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"TZif"
    except OSError:
        return False
