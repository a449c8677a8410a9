"""One event of a timeline, in words."""

from collections.abc import Iterator
from typing import cast

from accsd.db.views.events import EventRow
from accsd.model.outcome import meaning_of

Data = dict[str, object]


class StateWord(str):
    """A word that names a state: a terminal or a page may show it in that state's colour."""

    __slots__ = ()


def what_happened(event: EventRow) -> list[str]:
    """Returns a sentence in pieces to be joined; a piece that names a state is a StateWord."""
    data = _data(event)
    said = (event.message or "").replace("\n", " ")
    match event.type:
        case "progress" if isinstance(done := data.get("progress"), int | float):
            return [f"{done:4.0%}  {said}".rstrip()]
        case "status" | "retry":
            return [*_move(said, data), *(f" {detail}" for detail in _details(event, data))]
        case "log":
            return [said if event.level in ("info", "debug") else f"{event.level}: {said}"]
        case "artifact":
            return [f"kept {said.rpartition('/')[2]}"]
        case kind:
            return [f"{kind}: {said}" if said else kind]


def is_for_people(event: EventRow) -> bool:
    """False for events that only programs read, for each part of a log on its way to the store, and for what a step
    passes through that no node takes (RS6)."""
    data = _data(event)
    is_part = event.type == "artifact" and data.get("kind") == "log"
    is_passed = event.source == "resolver" and data.get("to") in ("starting", "running")
    return event.level != "debug" and not is_part and not is_passed


def _data(event: EventRow) -> Data:
    return cast("Data", event.data) if isinstance(event.data, dict) else {}


def _move(said: str, data: Data) -> list[str]:
    """`running → error`, and the message if it says something else."""
    if "to" not in data:
        return [said]
    plain = f"{data.get('from')} → {data['to']}"
    more = said.removeprefix(plain) if said.startswith(plain) else f": {said}" if said else ""
    if not more and (meaning := meaning_of(str(data.get("reason"))).sentence):
        more = f": {meaning}"
    elif isinstance(count := data.get("items"), int):
        more = f": it became {count} task{'' if count == 1 else 's'}"
    return [f"{data.get('from')} → ", StateWord(data["to"]), more]


def _details(event: EventRow, data: Data) -> Iterator[str]:
    if "node" in data:
        yield f"on {data['node']}"
    if data.get("to") == "starting" and (event.attempt_id or 0) > 1:
        yield f"(attempt {event.attempt_id})"
    if "error_code" in data:
        yield f"[{data['error_code']}]"
