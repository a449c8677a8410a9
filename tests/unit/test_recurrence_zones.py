"""Which time zone rules a process uses, what a zone may be called, and when two sets of rules mean the same."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from accsd.errors import ConfigError, InvalidValue
from accsd.planning.recurrence import ZoneRules, is_older, parse_rule, rules_in, zone_digest, zone_rules
from accsd.planning.recurrence.zones import RULES_VARIABLE, newest_rules, transitions
from tests.support.occurrences import plan
from tests.support.zones import folder_of_rules

SINCE = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "name", ["UTC", "Europe/Chisinau", "US/Eastern", "America/Argentina/Buenos_Aires", "Etc/GMT+5"]
)
def test_a_zone_is_a_name_of_the_loaded_rules_links_included(name: str):
    """TZ1."""
    assert zone_rules().zone(name).name == name


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("Europe/Berln", "Europe/Berlin"),
        ("europe/berlin", "Europe/Berlin"),
        ("Berlin", "Europe/Berlin"),
        ("Chisinau", "Europe/Chisinau"),
        ("America/New York", "America/New_York"),
        ("utc", "UTC"),
    ],
)
def test_an_unknown_zone_is_refused_with_the_nearest_names(name: str, near: str):
    """TZ1."""
    with pytest.raises(InvalidValue) as refusal:
        zone_rules().zone(name)
    assert near in (refusal.value.hint or "")


@pytest.mark.parametrize("name", ["+02:00", "UTC+2", "GMT-05:00", "-3", "Z+1"])
def test_an_offset_is_no_zone(name: str):
    """TZ1."""
    with pytest.raises(InvalidValue, match="offset"):
        zone_rules().zone(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "../../etc/passwd", "/etc/localtime", "localtime", "posixrules", "right/UTC", "posix/UTC", "Factory"),
        *("Europe", "tzdata.zi", "Europe/Berlin\x00", "Еurope/Berlin", "x" * 100_000, "UTC/", "a/b/c/d/e"),
    ],
)
def test_what_is_no_zone_is_refused_at_once(name: str):
    with pytest.raises(InvalidValue):
        zone_rules().zone(name)


def test_the_newer_of_package_and_system_is_chosen(tmp_path: Path):
    """TZ2."""
    older = folder_of_rules(tmp_path / "older", "2020a")
    newer = folder_of_rules(tmp_path / "newer", "2999c")
    packaged = newest_rules(system=())
    assert newest_rules(system=[str(older)]) == packaged
    assert newest_rules(system=[str(older), str(newer)]) == ZoneRules(newer, "2999c")
    assert newest_rules(system=[str(tmp_path / "none")]) == packaged


def test_versions_are_compared_as_iana_counts_them():
    in_order = ["2024b", "2025a", "2025b", "2025z", "2025za", "2026a", "2026f"]
    assert all(is_older(one, other) for one, other in pairwise(in_order))
    assert not is_older("2026f", "2026f")


def test_a_process_can_be_told_which_rules_to_use(tmp_path: Path):
    """TZ2: two processes with different rules are how TZ5 is tested."""
    folder = folder_of_rules(tmp_path / "rules", "2027a", **{"Europe/Berlin": "Asia/Tokyo"})
    program = "from accsd.planning.recurrence import zone_rules; print(zone_rules().version, zone_rules().names())"
    said = subprocess.run(
        [sys.executable, "-c", program], env={RULES_VARIABLE: str(folder)}, capture_output=True, text=True, check=True
    )
    assert said.stdout == "2027a ('Europe/Berlin', 'UTC')\n"


def test_a_rule_can_be_read_by_other_rules_than_the_process_has(tmp_path: Path):
    rules = rules_in(folder_of_rules(tmp_path / "rules", "2027a", **{"Europe/Berlin": "Asia/Tokyo"}))
    one = parse_rule("cron", "0 9 * * *", "Europe/Berlin", schedule_id="s", created_at=SINCE, rules=rules)
    assert one.zone.version == "2027a"
    assert plan(one, SINCE, 1).dues == (datetime(2026, 1, 2, 0, tzinfo=UTC),)


def test_a_folder_without_a_version_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="version"):
        rules_in(tmp_path)


def test_the_digest_of_a_zone_tells_whether_rules_mean_the_same(tmp_path: Path):
    """TZ4."""
    same = rules_in(folder_of_rules(tmp_path / "same", "2027a", **{"Europe/Berlin": "Europe/Berlin"}))
    other = rules_in(folder_of_rules(tmp_path / "other", "2027b", **{"Europe/Berlin": "Europe/London"}))
    digest = zone_digest(zone_rules().zone("Europe/Berlin"), SINCE)
    assert digest == zone_digest(zone_rules().zone("Europe/Berlin"), SINCE)
    assert digest == zone_digest(same.zone("Europe/Berlin"), SINCE)
    assert digest != zone_digest(other.zone("Europe/Berlin"), SINCE)
    # the same clock by another name
    assert digest == zone_digest(zone_rules().zone("Europe/Paris"), SINCE)


def test_the_digest_is_the_same_on_every_machine():
    assert zone_digest(zone_rules().zone("UTC"), SINCE) == "2b1608625d9b11fcf6c1b4898355cb21"


def test_the_changes_of_a_zone_are_found_to_the_second():
    berlin = zone_rules().zone("Europe/Berlin")
    found = list(transitions(berlin, datetime(2024, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)))
    assert [each.at for each in found] == [datetime(2024, 3, 31, 1, tzinfo=UTC), datetime(2024, 10, 27, 1, tzinfo=UTC)]
    assert found[0].after - found[0].before == timedelta(hours=1)
