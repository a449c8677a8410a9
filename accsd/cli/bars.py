"""A bar of blocks for stretches of time: `accsd job` draws where a job's time went, `accsd nodes timeline` what
machines did. Each kind has a sign of its own, so that a bar says the same without colours."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from accsd.cli.output import Shown, shown, styled


class Sign(NamedTuple):
    block: str
    colour: str


SPENT: Final[Mapping[str, Sign]] = {
    "delay": Sign("·", "bright_black"),
    "queued": Sign("q", "bright_black"),
    "dependency": Sign("d", "bright_black"),
    "resolve": Sign("r", "magenta"),
    "paused": Sign("=", "yellow"),
    "key": Sign("k", "magenta"),
    "wake": Sign("w", "cyan"),
    "boot": Sign("b", "cyan"),
    "asleep": Sign("z", "blue"),
    "capacity": Sign("░", "yellow"),
    "no_node": Sign("-", "red"),
    "backoff": Sign("~", "yellow"),
    "starting": Sign("▒", "green"),
    "running": Sign("█", "green"),
    "lost": Sign("x", "red"),
}
DID: Final[Mapping[str, Sign]] = {
    "asleep": Sign("z", "blue"),
    "waking": Sign("w", "cyan"),
    "booting": Sign("b", "cyan"),
    "idle": Sign("░", "yellow"),
    "busy": Sign("█", "green"),
    "away": Sign("-", "red"),
    "": Sign(" ", "white"),
}


def bar(pieces: Sequence[tuple[str, float]], signs: Mapping[str, Sign], width: int) -> Shown:
    """The pieces, each with its length, side by side: a block shows what most of its time was."""
    whole = sum(length for _, length in pieces)
    if whole <= 0:
        return shown("")
    blocks: list[str] = []
    for number in range(width):
        begins, ends = whole * number / width, whole * (number + 1) / width
        blocks.append(_most(pieces, begins, ends))
    return shown(*(styled(signs[kind].block, signs[kind].colour) for kind in blocks))


def _most(pieces: Iterable[tuple[str, float]], begins: float, ends: float) -> str:
    best, longest, at = "", -1.0, 0.0
    for kind, length in pieces:
        inside = min(at + length, ends) - max(at, begins)
        if inside > longest:
            best, longest = kind, inside
        at += length
        if at >= ends:
            break
    return best


def legend(entries: Iterable[tuple[str, str]], signs: Mapping[str, Sign]) -> Shown:
    """What each sign means, with a word about it."""
    parts: list[str] = []
    for kind, words in entries:
        sign = signs[kind]
        parts += ["  " if parts else "", styled(sign.block, sign.colour), f" {words}"]
    return shown(*parts)
