"""ACC_TEST_STRICT=1: on the build server a skipped test is a failed one."""

import subprocess
import sys
from pathlib import Path

from tests.support.cluster import ROOT

SKIPPING = """
import pytest

def test_skipped():
    pytest.skip("no such engine")

@pytest.mark.xfail(reason="known")
def test_expected_to_fail():
    assert False
"""


def run_pytest(folder: Path, strict: str) -> tuple[int, str]:
    (folder / "test_sample.py").write_text(SKIPPING)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", str(folder)],
        env={"ACC_TEST_STRICT": strict, "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_skip_fails_and_states_its_reason(tmp_path: Path) -> None:
    code, output = run_pytest(tmp_path, strict="1")
    assert code == 1
    assert "no such engine" in output
    assert "1 failed, 1 xfailed" in output


def test_a_skip_is_a_skip_otherwise(tmp_path: Path) -> None:
    code, output = run_pytest(tmp_path, strict="0")
    assert code == 0
    assert "1 skipped, 1 xfailed" in output
