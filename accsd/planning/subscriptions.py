"""What a schedule of kind event says beside its expressions: the topic that it listens to, and the window in which it
gathers events. Pure."""

from collections.abc import Mapping
from re import compile as pattern
from typing import Any, Final

from accsd.errors import InvalidValue
from accsd.values.units import parse_duration
from accsd.values.validation import did_you_mean

_TOPIC: Final = pattern(r"([A-Za-z0-9_-]+\.){0,9}([A-Za-z0-9_-]+|\*\*?)")
_LONGEST_TOPIC: Final = 200
_GATHERS: Final = ("by", "quiet", "at_most", "size")


def check_topic(topic: str) -> None:
    """InvalidValue where nobody can listen to it."""
    if len(topic) > _LONGEST_TOPIC or _TOPIC.fullmatch(topic) is None:
        raise InvalidValue(
            f'"{topic[:_LONGEST_TOPIC]}" is no topic to listen to',
            hint="write 1 to 10 segments of letters, digits, _ and -, joined by dots; the last may be * or **",
        )


def check_gather(gather: Mapping[str, Any]) -> None:
    """InvalidValue says what is wrong with a window."""
    for name in gather:
        if name not in _GATHERS:
            raise InvalidValue(
                f'gather has no "{name}"{did_you_mean(name, _GATHERS)}', hint="it has by, quiet, at_most and size"
            )
    if not {"quiet", "at_most", "size"} & set(gather):
        raise InvalidValue("gather does not say when it ends", hint="add quiet, at_most or size")
    for name in ("quiet", "at_most"):
        if name in gather:
            try:
                parse_duration(gather[name])
            except InvalidValue as error:
                raise InvalidValue(f"gather.{name}: {error.message}") from None
    size = gather.get("size", 1)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise InvalidValue("gather.size is a whole number above 0")
    if not isinstance(gather.get("by", ""), str):
        raise InvalidValue("gather.by is an expression")
