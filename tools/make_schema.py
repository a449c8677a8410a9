"""Assembles schema.sql from the files in schema/, in the order given here. `make schema` calls it, and a test holds
the two equal.

The files have no numbers, because a file's name is the noun that names the same thing in accsd/db/ and tests/db/.
"""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
ORDER: Final = (
    "ground",
    "transitions",
    "tables",
    "internals",
    "guard",
    "workflows",
    "events",
    "shared",
    "submit",
    "claim",
    "finish",
    "cancel",
    "retry",
    "drawer",
    "outlook",
    "upkeep",
    "load",
    "history",
    "outbox",
    "quarantine",
    "install",
)


def assembled() -> str:
    """An empty line stands between two files."""
    return "\n".join((ROOT / "schema" / f"{name}.sql").read_text(encoding="utf-8") for name in ORDER)


if __name__ == "__main__":
    (ROOT / "schema.sql").write_text(assembled(), encoding="utf-8")
