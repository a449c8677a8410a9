"""Assembles schema.sql from the files in schema/. `make schema` calls it, and a test holds the two equal.

The files stand in the order in which the head of ground.sql lists them: whoever reads schema.sql finds its table of
contents there. They have no numbers, because a file's name is the noun that names the same thing in accsd/db/ and
tests/db/.
"""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_FILES: Final = ROOT / "schema"
_LISTED: Final = re.compile(r"^--   (\w+)\.sql  ", re.MULTILINE)


def order() -> list[str]:
    return _LISTED.findall(_read("ground"))


def assembled() -> str:
    """An empty line stands between two files."""
    return "\n".join(_read(name) for name in order())


def _read(name: str) -> str:
    return (_FILES / f"{name}.sql").read_text(encoding="utf-8")


if __name__ == "__main__":
    (ROOT / "schema.sql").write_text(assembled(), encoding="utf-8")
