"""What others wrote, made harmless for a terminal: it may hold anything, and a terminal obeys."""

import re
from typing import Final

_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def harmless(text: str) -> str:
    """Without escape sequences; every other character that does not print is written as its number."""
    plain = _ESCAPES.sub("", text)
    return "".join(c if c.isprintable() or c == "\t" else f"\\x{ord(c):02x}" for c in plain)
