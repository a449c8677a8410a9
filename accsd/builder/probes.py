"""Measures conditions: takes the probes that are due, runs them side by side, and tells SQL what each has found, which
judges it (accs.record_probe).

Several daemons may run probes at once, and none leads: a probe is moved on before it is given out. Killed while a probe
runs, a daemon has lost one sample. A probe that fails, or takes too long, has found nothing: that is unknown, and never
false.
"""

import asyncio
import sys
from datetime import timedelta
from typing import Any, Final, cast
from urllib.parse import SplitResult, unquote, urlsplit

import orjson

from accsd import failpoints
from accsd.db import Database
from accsd.db.conditions import DueProbe, SampleAnswer, ask_database, measure, record_probe, take_probes
from accsd.db.firings import scheduler_outlook
from accsd.errors import AccsdError, DatabaseUnavailable, InvalidValue
from accsd.expressions import Context, evaluate
from accsd.expressions.schedules import SAMPLE
from accsd.log import get_logger
from accsd.metrics import Metrics
from accsd.net import CallFailed, Request, fetch_whole
from accsd.planning.conditions import Condition, parse_condition
from accsd.settings import DatabaseSettings, ProbeSettings, ProbeTarget
from accsd.supervisor import Pass

_LONGEST_PROBE: Final = timedelta(seconds=10)
_LARGEST_ANSWER: Final = 64 * 1024
_LOCKED_PAUSE: Final = timedelta(milliseconds=50)
_SHOWN: Final = 300
_log = get_logger(role="probes")


class Probes:
    def __init__(
        self,
        db: Database,
        settings: ProbeSettings,
        *,
        database: DatabaseSettings,
        node: str,
        silent: timedelta,
        metrics: Metrics,
    ) -> None:
        self._db = db
        self._settings = settings
        self._database = database
        self._node = node
        self._silent = silent  # a node that was not seen for so long is away
        self._metrics = metrics

    async def run_once(self) -> Pass:
        ahead = await scheduler_outlook(self._db)
        if ahead.hold is not None:
            return Pass(obstacle=f"all schedules are held: {ahead.hold}")
        if ahead.next_probe is None or ahead.next_probe > timedelta(0):
            return Pass(next_due=ahead.next_probe)
        taken = await take_probes(self._db, limit=self._settings.at_once)
        if not taken:  # a colleague has them, or their schedules are paused
            return Pass(next_due=_LOCKED_PAUSE)
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(self._run(probe)) for probe in taken]
        answers = [task.result() for task in running]
        for answer in answers:
            if isinstance(answer, DatabaseUnavailable):
                raise answer  # not out of the group, which would wrap it
        fired = sum(isinstance(answer, SampleAnswer) and answer.outcome == "fired" for answer in answers)
        return Pass(did=f"ran {len(taken)} probes" + (f", {fired} fired" if fired else ""), more=True)

    async def _run(self, probe: DueProbe) -> SampleAnswer | DatabaseUnavailable:
        value, problem = await self._found(probe)
        failpoints.hit("probe.ran")
        try:
            answer = await record_probe(self._db, probe, value, problem, by=self._node)
        except DatabaseUnavailable as error:
            return error
        if problem is not None:
            _log.warning("probe_failed", schedule=probe.schedule, problem=problem)
        if answer.outcome is not None:
            self._metrics.settled(answer.outcome, answer.because or "", timedelta(0), 1)
        return answer

    async def _found(self, probe: DueProbe) -> tuple[float | bool | None, str | None]:
        """The value, or why there is none."""
        within = min(probe.every, _LONGEST_PROBE)
        try:
            async with asyncio.timeout(within.total_seconds()):
                condition = parse_condition(probe.condition)
                answer = await self._ask(probe, condition, within)
                return await asyncio.to_thread(_value_of, answer, condition), None
        except TimeoutError:
            return None, f"no answer within {within.total_seconds():g} s"
        except AccsdError as error:
            return None, error.message
        except (OSError, ValueError, ArithmeticError) as error:  # the last two: a value that Python can't hold
            return None, str(error) or type(error).__name__

    async def _ask(self, probe: DueProbe, condition: Condition, within: timedelta) -> Any:
        source = condition.source
        match source.kind:
            case "sql":
                return await ask_database(self._database, cast("str", source.about))
            case "http":
                document = await self._fetch(cast("str", source.about), within)
                return _at(document, source.path)
            case _:
                what = source.measure or source.kind
                return await measure(self._db, what, source.about, silent=self._silent, since=probe.begun_at)

    async def _fetch(self, url: str, within: timedelta) -> Any:
        target = target_of(url, self._settings)
        request = Request("GET", url, allow_private=target.allow_private, ca_file=target.ca_file)
        status, body = await fetch_whole(request, within=within, most=_LARGEST_ANSWER)
        if 300 <= status < 400:
            raise CallFailed(f"answered with a redirect ({status}), which is not followed")
        if not 200 <= status < 300:
            raise CallFailed(f"answered {status}")
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise CallFailed(f"the answer is not JSON: {error}") from None


def target_of(url: str, settings: ProbeSettings) -> ProbeTarget:
    """The target that allows an address: the same scheme, host and port, and a path below the target's."""
    asked = urlsplit(url)
    for target in settings.targets.values():
        if _is_below(asked, urlsplit(target.url)):
            return target
    raise InvalidValue(f"{asked.scheme}://{asked.hostname} is not allowed here: no [probes.targets] has this address")


def _is_below(asked: SplitResult, allowed: SplitResult) -> bool:
    if (asked.scheme, asked.hostname, _port(asked)) != (allowed.scheme, allowed.hostname, _port(allowed)):
        return False
    path = unquote(asked.path)
    if "@" in asked.netloc or "\\" in path or "%" in path or {".", ".."} & set(path.split("/")):
        return False
    folder = allowed.path.rstrip("/")
    return path.rstrip("/") == folder or path.startswith(f"{folder}/")


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None


def _at(document: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        try:
            document = document[int(part) if isinstance(document, list) else part]
        except (LookupError, TypeError, ValueError):
            raise InvalidValue(f'the answer has no "{".".join(path)}"') from None
    return document


def _value_of(answer: Any, condition: Condition) -> float | bool:
    """What a probe's answer means: a number, true or false."""
    value = answer if condition.expr is None else evaluate(condition.expr, Context({"value": answer}, SAMPLE))
    if isinstance(value, bool):
        if condition.judgement.equals is None:
            raise InvalidValue(f"the answer is {str(value).lower()}, and the condition is of numbers")
        return value
    if isinstance(value, int | float) and abs(value) <= sys.float_info.max:
        return value if -(2**63) <= value < 2**63 else float(value)
    shown = "nothing" if value is None else f"{type(value).__name__} {value!s:.{_SHOWN}}"
    raise InvalidValue(f"the answer is {shown}, not a number, true or false")
