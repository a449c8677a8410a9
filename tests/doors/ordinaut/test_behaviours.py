"""What is kept and what departed from: each has its test, and its line in docs/doors/ordinaut.md."""

import re
from pathlib import Path

import pytest

from tests.doors.ordinaut.behaviours import BROKEN, DEPARTED, KEPT

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("behaviours", [KEPT, BROKEN, DEPARTED])
def test_each_behaviour_has_a_test_and_a_line_in_the_page(behaviours: dict[str, tuple[str, str]]):
    page = (ROOT / "docs/doors/ordinaut.md").read_text(encoding="utf-8")
    for behaviour, (file, test) in behaviours.items():
        assert re.search(rf"def {test}\(", (ROOT / file).read_text(encoding="utf-8")), test
        assert f"| {behaviour} |" in page, behaviour
