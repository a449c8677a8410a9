"""The systemd units as files: systemd understands every line, and they are as closed as SECURITY asks."""

import re
import shutil
from configparser import RawConfigParser
from datetime import timedelta
from pathlib import Path

import pytest

from accsd import proc
from accsd.settings import Settings
from accsd.values.units import parse_duration
from tests.support.cluster import ROOT

UNITS = {"accsd-builder.service": 1.2, "accsd-gateway.service": 1.2, "accsd-agent.service": 1.5}
WITHIN = timedelta(seconds=30)


@pytest.fixture(scope="module")
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("no systemd-analyze (apt-get install systemd)")
    return found


def setting(unit: str, name: str) -> str:
    """The last value of a setting in [Service]."""
    parser = RawConfigParser(strict=False, delimiters="=", comment_prefixes="#")
    parser.read_string((ROOT / "systemd" / unit).read_text())
    return parser["Service"][name]


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_understands_every_line(analyze: str, unit: str, tmp_path: Path) -> None:
    text = (ROOT / "systemd" / unit).read_text()
    assert "ExecStart=/opt/accsd/bin/accsd " in text
    # accsd is not installed where the tests run, and verify looks for the program
    (tmp_path / unit).write_text(text.replace("/opt/accsd/bin/accsd", "/bin/true"))
    assert proc.run([analyze, "verify", tmp_path / unit], timeout=WITHIN) == (0, "")


@pytest.mark.parametrize(("unit", "limit"), UNITS.items())
def test_the_exposure_is_within_its_limit(analyze: str, unit: str, limit: float) -> None:
    argv = [analyze, "security", "--offline=true", "--no-pager", ROOT / "systemd" / unit]
    code, text = proc.run(argv, timeout=WITHIN)
    level = re.search(rf"Overall exposure level for {re.escape(unit)}: (\d+\.\d+)", text)
    assert code == 0
    assert level
    assert float(level[1]) <= limit, text


@pytest.mark.parametrize("unit", UNITS)
def test_a_stop_leaves_time_for_the_drain(unit: str) -> None:
    longest = parse_duration(setting(unit, "TimeoutStopSec"))
    assert isinstance(longest, timedelta)
    assert longest > timedelta(seconds=Settings().drain_sec)


@pytest.mark.parametrize("unit", UNITS)
def test_secrets_are_credentials_and_never_in_the_unit(unit: str) -> None:
    assert setting(unit, "LoadCredential").startswith("ACC:/etc/accsd/credentials/")
    assert "postgresql://" not in (ROOT / "systemd" / unit).read_text()
