"""This machine as one that sleeps: whether its network card wakes it, and whether it can be put to sleep."""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

from accsd.cli.checks.finding import Finding, fail, ok, warn
from accsd.power import WakeFailed
from accsd.power.card import Card, Magic, cards
from accsd.power.script import trusted_script
from accsd.power.vetoes import veto
from accsd.power.wol import directed_broadcasts, networks
from accsd.settings import Settings

_KERNEL_SLEEPS: Final = Path("/sys/power/state")


async def sleeper(settings: Settings) -> AsyncIterator[Finding]:
    for finding in [*_network(settings), *_sleep(settings)]:
        yield finding
    if settings.sleep.method != "none":
        objection = await veto(settings.sleep, settings.node.name)
        yield ok("vetoes", f"it would stay awake now: {objection}" if objection else "nobody objects to its sleep now")


# The way in: a magic packet


def _network(settings: Settings) -> Iterator[Finding]:
    if settings.node.wake_method != "wol" and settings.node.mac is None:
        yield ok("network card", "it does not matter: this node is not woken by packets")
        return
    found = cards()
    mac = (settings.node.mac or "").replace("-", ":").lower()
    card = next((card for card in found if card.mac == mac), None)
    if card is None:
        have = ", ".join(f"{card.name} has {card.mac}" for card in found) or "this machine has no card"
        said = f"no card has {settings.node.mac}" if mac else "node.mac is not set"
        yield fail("network card", f"{said}; {have}", "set node.mac to that of the card with the cable")
        return
    yield ok("network card", f"{card.name} has {card.mac}")
    yield _wakes(card)
    yield _broadcasts(card)


def _wakes(card: Card) -> Finding:
    magic = card.magic()
    said = f"{card.name}: {magic}"
    match magic:
        case Magic.ON if card.may_wake() is False:
            allow = f"echo enabled > /sys/class/net/{card.name}/device/power/wakeup"
            return fail("wake flag", f"{said}, but the kernel does not let it", allow)
        case Magic.ON:
            return ok("wake flag", said)
        case Magic.OFF:
            return fail("wake flag", said, f"ethtool -s {card.name} wol g (and in the firmware, to make it last)")
        case Magic.UNSUPPORTED:
            return warn("wake flag", said, "name the MAC of another card, or another node.wake_method")
        case Magic.FORBIDDEN:
            return warn("wake flag", said, "run `accsd doctor --node` as root")


def _broadcasts(card: Card) -> Finding:
    if here := directed_broadcasts(card.name):
        return ok("broadcast", f"{', '.join(here)} through {card.name}; it registers as in {', '.join(networks())}")
    do = "give it an IPv4 address, or wake it by another method than a neighbour's packets"
    return warn("broadcast", f"{card.name} is down or has no broadcast address: no neighbour is known to it", do)


# The way out: falling asleep


def _sleep(settings: Settings) -> Iterator[Finding]:
    how = settings.sleep
    match how.method:
        case "none":
            yield ok("sleep", "this node does not sleep by itself (sleep.method)")
            return
        case "suspend":
            yield _suspends()
        case "script":
            assert how.script is not None, "the settings see to that"
            yield _runs(how.script)
        case "provider":
            yield _is_provided(settings)
    if settings.node.wake_method is None:
        yield fail("sleep", "it would sleep, and nobody could wake it", "set node.wake_method")


def _suspends() -> Finding:
    if shutil.which("systemctl") is None:
        return fail("sleep", "there is no systemctl here", 'set sleep.method = "script"')
    try:
        states = _KERNEL_SLEEPS.read_text().split()
    except OSError as error:
        return warn("sleep", f"{_KERNEL_SLEEPS} can't be read: {error.strerror}", "run `accsd doctor --node` as root")
    if not {"mem", "freeze", "standby"} & set(states):
        do = 'a virtual machine often can\'t: set sleep.method = "script" or "provider"'
        return fail("sleep", f"this kernel can't suspend ({_KERNEL_SLEEPS}: {' '.join(states) or 'empty'})", do)
    return ok("sleep", f"systemctl suspend; the kernel knows {', '.join(states)}")


def _runs(script: Path) -> Finding:
    try:
        return ok("sleep", f"by {trusted_script(script, None)}")
    except WakeFailed as refusal:
        return fail("sleep", refusal.message, "correct it, or sleep.script")


def _is_provided(settings: Settings) -> Finding:
    name = (settings.sleep.provider_ref or "").partition("/")[0]
    if name in settings.wake.providers:
        return ok("sleep", f"by provider {name}")
    return fail("sleep", f'sleep.provider_ref names "{name}", which is not in [wake.providers]', "add it there")
