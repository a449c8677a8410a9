"""The tests see nothing of whoever runs them: no state folder, no environment, no signals that a shell ignores."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.cluster import ROOT

# What a test finds, and what a child of it finds.
SAMPLE = """
import os, pathlib, signal, subprocess, sys
from accsd.settings import load_settings, state_folder

def test_the_environment():
    kept = {"PATH", "HOME", "STATE_DIRECTORY", "ACC_TEST_MINE", "PYTEST_CURRENT_TEST", "PYTEST_VERSION"}
    assert set(os.environ) <= kept, sorted(os.environ)
    assert os.environ["ACC_TEST_MINE"] == "1"
    home = pathlib.Path.home()
    assert list(home.iterdir()) == []
    assert home in state_folder(load_settings(), os.environ).parents

def test_a_child_hears_ctrl_c():
    child = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=20) == -signal.SIGINT
    os.kill(os.getpid(), signal.SIGINT)  # which this process still ignores
"""
OF_THE_USER = {
    "ACC_DB_URL": "postgresql://ann@db.example/accsd",
    "ACC_STATE_DIR": "/var/lib/accsd",
    "ACC_TEST_MINE": "1",
    "PGHOST": "db.example",
    "XDG_STATE_HOME": "/home/ann/.local/state",
    "COMPOSE_PROJECT_NAME": "anns",
    "LC_ALL": "C",
}


def test_a_run_with_much_in_its_environment_and_ctrl_c_ignored(tmp_path: Path):
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".pgpass").write_text("*:*:*:*:secret\n")
    pytest = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path)]
    ran = subprocess.run(
        ["bash", "-c", "trap '' INT QUIT HUP; exec \"$@\"", "bash", *pytest],
        env={**OF_THE_USER, "HOME": str(home), "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout
