"""Waking a node by packets and by scripts (A18), for real. By HTTP: test_provider_api.py."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from accsd import proc
from accsd.model import Node
from accsd.power import ProviderAPI, ShellScript, WakeFailed, WakeOnLAN, WakeResult, provider_for
from accsd.power.wol import directed_broadcasts
from accsd.settings import WakeSettings
from tests.support.privileged import hosts, needs_network_namespaces

MAC = "52:54:00:12:34:56"
MAGIC = b"\xff" * 6 + bytes.fromhex(MAC.replace(":", "")) * 16
NODE = Node(name="gpu-1")
SECRET = "only-the-daemon-knows-this"
MINUTE = timedelta(minutes=1)


# Which way


def test_a_node_is_woken_by_the_method_that_it_names():
    ways = {
        WakeOnLAN: {"wake_method": "wol", "mac": MAC},
        ProviderAPI: {"wake_method": "provider", "provider_ref": "studio/x"},
        ShellScript: {"wake_method": "script", "script": "/etc/accsd/wake.d/x"},
    }
    for kind, said in ways.items():
        assert isinstance(provider_for(Node.model_validate({"name": "n", **said}), WakeSettings()), kind)


@pytest.mark.parametrize("method", ["wol", "provider", "script", None])
def test_a_node_that_does_not_say_enough_is_refused_with_what_is_missing(method: str | None):
    with pytest.raises(WakeFailed, match=r"has no wake_method|and no (mac|provider_ref|script)"):
        provider_for(Node.model_validate({"name": "n", "wake_method": method}), WakeSettings())


# Networks

_LINKS = """
ip link add eth1 type bridge; ip addr add 10.1.2.3/24 dev eth1; ip link set eth1 up
ip link add eth2 type bridge; ip addr add 10.9.9.9/24 dev eth2
for inside in docker0 docker_gwbridge br-0123456789ab virbr0 vethabc; do
  ip link add $inside type bridge; ip addr add 172.30.0.1/16 dev $inside; ip link set $inside up
done
ip link add br-lab type bridge; ip addr add 10.4.0.1/22 dev br-lab; ip link set br-lab up
ip addr add 169.254.7.7/16 dev br-lab label br-lab:1
"""


def test_the_networks_of_a_machine_are_those_that_a_broadcast_of_it_reaches():
    """Not one that is down, nor those inside the machine; and without a netlink socket, which systemd may forbid."""
    asked = "import socket; del socket.if_nameindex; from accsd.power import networks; print(*networks())"
    with hosts(1) as [host]:
        subprocess.run([*host.prefix, "sh", "-ec", _LINKS], check=True, timeout=20)
        said = subprocess.run([*host.prefix, sys.executable, "-c", asked], check=True, timeout=20, capture_output=True)
    cable = IPv4Network(f"{host.here}/30", strict=False)
    assert set(said.stdout.decode().split()) == {"10.1.2.0/24", "10.4.0.0/22", str(cable)}


def test_packets_go_to_every_network_of_the_machine_whether_or_not_its_broadcast_address_was_set():
    """10.77.0.0/24 has none (`ip addr add` without `brd`); Docker's bridges, which have one, lead to no machine."""
    asked = (
        "from accsd.power.wol import directed_broadcasts as b; print(*b(), 'one', *b('eth1'), 'named', *b('docker0'))"
    )
    links = """
    ip link add eth1 type bridge; ip addr add 10.77.0.1/24 dev eth1; ip link set eth1 up
    ip link add eth2 type bridge; ip addr add 10.5.0.1/24 brd + dev eth2; ip link set eth2 up
    ip link add eth3 type bridge; ip addr add 10.6.0.1/31 dev eth3; ip link set eth3 up
    for inside in docker0 br-0123456789ab vboxnet0; do
      ip link add $inside type bridge; ip addr add 172.17.0.1/16 brd + dev $inside; ip link set $inside up
    done
    """
    with hosts(1) as [host]:
        subprocess.run([*host.prefix, "ip", "addr", "flush", "dev", "eth0"], check=True, timeout=20)
        subprocess.run([*host.prefix, "sh", "-ec", links], check=True, timeout=20)
        said = subprocess.run([*host.prefix, sys.executable, "-c", asked], check=True, timeout=20, capture_output=True)
    assert said.stdout.decode().split() == [
        "10.77.0.255",
        "10.5.0.255",
        "one",
        "10.77.0.255",
        "named",
        "172.17.255.255",
    ]


# Wake-on-LAN


async def test_a_magic_packet_arrives():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sleeper:
        sleeper.bind(("127.0.0.1", 0))
        sleeper.setblocking(False)
        result = await WakeOnLAN(MAC, also=["127.0.0.1"], port=sleeper.getsockname()[1]).wake(NODE)
        packet = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sleeper, 2000), 5)

    assert result
    assert "127.0.0.1" in result.output
    assert packet == MAGIC


@pytest.mark.parametrize("mac", ["", "52:54", "52:54:00:12:34:5g", f"{MAC}/{MAC}", "52x54x00x12x34x56", f"{MAC}\n"])
async def test_an_invalid_mac_is_a_failure_that_says_so(mac: str):
    result = await WakeOnLAN(mac).wake(NODE)

    assert not result
    assert result.error is not None
    assert "MAC" in result.error


async def test_an_interface_that_is_not_there_is_a_failure():
    result = await WakeOnLAN(MAC, "nosuch0").wake(NODE)

    assert not result
    assert "nosuch0" in (result.error or "")
    assert "127.255.255.255" not in directed_broadcasts()


HEAR_TWO = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("", 9)); s.settimeout(10); print("ready", flush=True)
print(*sorted(s.recvfrom(2000)[0].hex() for _ in range(2)), flush=True)
"""
SEND = f"""
import asyncio
from accsd.model import Node
from accsd.power import WakeOnLAN
print(asyncio.run(WakeOnLAN("{MAC}", "eth0").wake(Node(name="gpu-1"))).output)
"""


@pytest.fixture
def two_hosts() -> Iterator[tuple[str, str]]:
    """Two network namespaces on one bridge, which stands in a third, where no firewall of this machine is."""
    needs_network_namespaces()
    switch, *hosts = names = [f"accsd-{os.getpid()}-{part}" for part in ("switch", "builder", "sleeper")]
    try:
        for name in names:
            assert proc.run(["ip", "netns", "add", name], timeout=MINUTE) == (0, ""), name
        for command in wiring(switch, hosts):
            assert proc.run(["ip", *command.split()], timeout=MINUTE) == (0, ""), command
        yield hosts[0], hosts[1]
    finally:
        for name in names:
            proc.run(["ip", "netns", "del", name], timeout=MINUTE)


def wiring(switch: str, hosts: list[str]) -> Iterator[str]:
    yield f"-n {switch} link add br0 type bridge"
    yield f"-n {switch} link set br0 up"
    for number, host in enumerate(hosts, 1):
        yield f"link add eth0 netns {host} type veth peer name port{number} netns {switch}"
        yield f"-n {switch} link set port{number} master br0 up"
        yield f"-n {host} addr add 10.77.0.{number}/24 brd 10.77.0.255 dev eth0"
        yield f"-n {host} link set eth0 up"
        yield f"-n {host} route add default dev eth0"


async def test_packets_reach_a_sleeping_machine_by_both_broadcasts(two_hosts: tuple[str, str]):
    builder, sleeper = two_hosts
    async with proc.streaming(["ip", "netns", "exec", sleeper, sys.executable, "-c", HEAR_TWO]) as hearing:
        assert await asyncio.wait_for(hearing.stdout.readline(), 20) == b"ready\n"
        sent = await proc.call(["ip", "netns", "exec", builder, sys.executable, "-c", SEND], within=MINUTE)
        heard = await asyncio.wait_for(hearing.stdout.readline(), 20)

    assert sent.stdout.decode() == "sent to 10.77.0.255, 255.255.255.255\n", sent.said
    assert heard.decode().split() == [MAGIC.hex()] * 2


# The script

Script = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "wake.d"
    made.mkdir(mode=0o755)
    return made


@pytest.fixture
def script(folder: Path) -> Script:
    def write(body: str, name: str = "wake", mode: int = 0o755) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(mode)
        return path

    return write


async def run(path: Path | str, folder: Path | None, node: Node = NODE, within: float = 20) -> WakeResult:
    return await ShellScript(path, folder=folder, within=timedelta(seconds=within)).wake(node)


async def test_a_script_gets_the_nodes_name_and_nothing_of_our_environment(script: Script, folder: Path):
    os.environ["ACC_TEST_SECRET"] = SECRET
    try:
        result = await run(script('echo "$1 $# $ACC_NODE_NAME"; env'), folder)
    finally:
        del os.environ["ACC_TEST_SECRET"]

    assert result
    assert result.output.startswith("gpu-1 1 gpu-1\n")
    assert SECRET not in result.output


async def test_the_exit_code_decides_and_the_last_words_are_kept(script: Script, folder: Path):
    result = await run(script("echo 'no such plug' >&2; exit 3"), folder)

    assert (result.ok, result.error, result.output) == (False, "wake ended with exit code 3", "no such plug")


async def test_a_script_that_hangs_is_stopped_with_its_children(script: Script, folder: Path, tmp_path: Path):
    pid = tmp_path / "pid"
    result = await run(script(f"sleep 1000 & echo $! > {pid}; wait"), folder, within=0.5)

    assert "did not end within" in (result.error or "")
    assert not proc.is_running(int(pid.read_text()))


async def test_a_script_that_others_can_write_is_not_run(script: Script, folder: Path, tmp_path: Path):
    mark = tmp_path / "ran"
    path = script(f"touch {mark}")
    for what, mode in ((path, 0o775), (path, 0o757), (folder, 0o775), (folder, 0o777)):
        os.chmod(what, mode)
        assert "can be written by others" in ((await run(path, folder)).error or "")
        os.chmod(what, 0o755)
    os.chmod(path, 0o644)
    assert "not an executable file" in ((await run(path, folder)).error or "")
    os.chmod(path, 0o755)
    assert not mark.exists()
    assert await run(path, folder)
    assert mark.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
async def test_a_script_of_another_user_is_not_run(script: Script, folder: Path):
    path = script("true")
    os.chown(path, 65534, 65534)

    assert "belongs neither to root nor" in ((await run(path, folder)).error or "")


async def test_only_what_lies_in_the_folder_is_run_whatever_links_say(script: Script, folder: Path, tmp_path: Path):
    good = script("true")
    (folder / "out").symlink_to("/bin/true")
    (folder / "in").symlink_to(good)
    (folder / "loop").symlink_to(folder / "loop")

    assert await run(folder / "in", folder)
    for path in (
        "/bin/true",
        folder / "out",
        folder / "../wake.d/../x",
        folder,
        folder / "none",
        folder / "loop",
        "wake",
        "/a\0b",
    ):
        result = await run(path, folder)
        assert not result, path
        assert result.error
    assert not await run(good, tmp_path / "elsewhere")


async def test_a_name_that_could_be_an_option_is_not_handed_to_a_script(script: Script, folder: Path):
    for name in ("--help", "a b", "$(x)", "a\nb"):
        assert not await run(script("true"), folder, Node(name=name))
