"""A node that is to be awake, in words: how far waking it has come, or why nobody wakes it."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from accsd.cli.output import duration

Detail = Mapping[str, Any]


def how_called(detail: Detail) -> str:
    """Of what accs.why says of it; follows "node n1 is asleep"."""
    match detail.get("power"):
        case "waking":
            return f"; {_last_call(detail)} is under way since {_time_of_day(detail['tried_at'])}"
        case "booting":
            usual = f", and it usually takes {duration(_usual(detail))}" if "latency_sec" in detail else ""
            return f"; {_last_call(detail)} got through at {_time_of_day(detail['tried_at'])}{usual}"
        case "failed":
            return f", and waking it has failed: {detail.get('because')}"
        case _ if not detail.get("wake_method"):
            return ", and has no wake_method"
        case _:
            return f": {detail['because']}" if detail.get("because") else ""


def _last_call(detail: Detail) -> str:
    nth = {1: "first", 2: "second", 3: "third"}.get(detail["tries"], f"{detail['tries']}th")
    return f"the {nth} call to it, by {detail['method']},"


def _usual(detail: Detail) -> timedelta:
    return timedelta(seconds=float(detail["latency_sec"]))


def _time_of_day(moment: str) -> str:
    return f"{datetime.fromisoformat(moment).astimezone(UTC):%H:%M:%S} UTC"
