"""What others rely on, as files: a change of it is seen in a review and never made by the way.

`ACC_TEST_WRITE_GOLDENS=1 pytest -k golden` writes the files anew.
"""

import os
from collections.abc import Iterable
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "goldens"


def compare(name: str, lines: Iterable[str]) -> None:
    file = _FOLDER / f"{name}.txt"
    now = sorted({" ".join(line.split()) for line in lines})
    if os.environ.get("ACC_TEST_WRITE_GOLDENS") == "1":
        file.write_text("".join(f"{line}\n" for line in now), encoding="utf-8")
    before = file.read_text(encoding="utf-8").splitlines()
    gone, new = sorted(set(before) - set(now)), sorted(set(now) - set(before))
    assert not gone, f"{file.name} has what is no longer there: {gone}"
    assert not new, f"{file.name} does not have {new}"
