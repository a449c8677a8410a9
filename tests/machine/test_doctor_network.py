"""`accsd doctor --node` on a machine of its own: what its network card says, read from a real kernel."""

import json
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accsd.power.card import Magic, cards, magic_in
from tests.support.cli import ACCSD
from tests.support.privileged import Host, hosts


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with hosts(1) as made:
        yield made[0]


def examined(host: Host, folder: Path, node: str, *prefix: str) -> dict[str, dict[str, Any]]:
    """What the doctor finds there, where no database is; by check."""
    config = folder / "accsd.toml"
    config.write_text(f'[node]\nname = "n1"\nstate_dir = "{folder}/state"\n{node}\n')
    command = [*host.prefix, *prefix, *ACCSD, "--config", str(config), "doctor", "--node", "-o", "json"]
    ended = subprocess.run(
        command,
        env={**os.environ, "ACC_DB_URL": "postgresql://nobody@127.0.0.1:1/none"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stderr == ""
    return {finding["check"]: finding for finding in json.loads(ended.stdout)}


def mac_of(host: Host) -> str:
    return json.loads(ip(host, "-j", "link", "show", "eth0"))[0]["address"]


def ip(host: Host, *words: str) -> bytes:
    return subprocess.run(["ip", "-n", host.namespace, *words], capture_output=True, check=True, timeout=20).stdout


def test_a_mac_that_no_card_has_is_a_failure_that_names_those_there_are(host: Host, tmp_path: Path):
    found = examined(host, tmp_path, 'wake_method = "wol"\nmac = "52:54:00:00:00:01"')["network card"]
    assert (found["verdict"], f"eth0 has {mac_of(host)}" in found["text"]) == ("FAIL", True)


def test_a_card_that_cannot_wake_is_a_warning_and_its_network_is_named(host: Host, tmp_path: Path):
    mac = mac_of(host).upper().replace(":", "-")
    network = host.here.rpartition(".")[0]
    ip(host, "addr", "flush", "dev", "eth0")
    ip(host, "addr", "add", f"{network}.2/30", "brd", "+", "dev", "eth0")
    found = examined(host, tmp_path, f'wake_method = "wol"\nmac = "{mac}"')
    assert found["network card"]["verdict"] == "OK"
    assert (found["wake flag"]["verdict"], "eth0: it can't wake" in found["wake flag"]["text"]) == ("WARN", True)
    assert (found["broadcast"]["verdict"], f"{network}.3 through eth0" in found["broadcast"]["text"]) == ("OK", True)
    assert f"{network}.0/30" in found["broadcast"]["text"]


def test_a_user_who_may_not_ask_the_card_is_told_so(host: Host, tmp_path: Path):
    powerless = ("setpriv", "--bounding-set=-net_admin")
    found = examined(host, tmp_path, f'wake_method = "wol"\nmac = "{mac_of(host)}"', *powerless)["wake flag"]
    assert (found["verdict"], "does not tell this user" in found["text"]) == ("WARN", True)
    assert found["do"] == "run `accsd doctor --node` as root"


def test_a_card_that_is_down_is_known_to_no_neighbour(host: Host, tmp_path: Path):
    host.plug(connected=False)
    try:
        found = examined(host, tmp_path, f'wake_method = "wol"\nmac = "{mac_of(host)}"')["broadcast"]
    finally:
        host.plug(connected=True)
    assert (found["verdict"], "eth0 is down" in found["text"]) == ("WARN", True)


@pytest.mark.parametrize(
    ("supported", "switched_on", "magic"),
    [(0x2F, 0x20, Magic.ON), (0x2F, 0x01, Magic.OFF), (0x20, 0, Magic.OFF), (0x01, 0x01, Magic.UNSUPPORTED)],
)
def test_what_the_kernel_answers_is_read_as_ethtool_does(supported: int, switched_on: int, magic: Magic):
    """The kernel's struct ethtool_wolinfo; no card of a virtual machine has it switched on."""
    assert magic_in(struct.pack("=III6s2x", 5, supported, switched_on, b"")) is magic


def test_this_machine_has_cards_and_the_loopback_is_none_of_them():
    assert "lo" not in [card.name for card in cards()]
