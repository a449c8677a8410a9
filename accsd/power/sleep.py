"""How this machine is put to sleep: by systemd, by a script of its own, or by the provider that runs it."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final, assert_never

import anyio

from accsd import proc
from accsd.model import Node
from accsd.power.provider import ProviderAPI
from accsd.power.script import ShellScript
from accsd.power.vetoes import LOGIND
from accsd.settings import ProviderSettings, SleepSettings

_LOOK_SEC: Final = 0.5
_ANSWERS_WITHIN: Final = timedelta(seconds=5)


async def fall_asleep(how: SleepSettings, node: str, providers: Mapping[str, ProviderSettings]) -> str | None:
    """Returns what went wrong, or None if the machine was told to sleep. Whether it really slept shows afterwards, by
    the clocks."""
    match how.method:
        case "suspend":
            return await _suspend(how)
        case "script":
            assert how.script is not None, "the settings see to that"
            result = await ShellScript(how.script, within=how.within).wake(Node(name=node))
        case "provider":
            assert how.provider_ref is not None, "the settings see to that"
            result = await ProviderAPI(how.provider_ref, providers).wake(Node(name=node))
        case "none":
            return "it has no way to sleep"
        case _:
            assert_never(how.method)
    return None if result else _because(result.error or "", result.output)


async def _suspend(how: SleepSettings) -> str | None:
    """systemctl checks once more that nobody inhibits the sleep or is logged in, where both count."""
    checks = ["--check-inhibitors=yes"] if how.veto_users and how.veto_inhibitors else []
    try:
        ended = await proc.call(["systemctl", *checks, "suspend"], within=how.within, env=proc.PLAIN_ENVIRON)
    except OSError as error:  # TimeoutError is one
        return _because("systemctl suspend", str(error))
    if ended.code != 0:
        return _because("systemctl suspend", ended.said)
    was_given_up = await _is_given_up(how.within)
    return _because("systemd gave it up", "see journalctl -u systemd-suspend") if was_given_up else None


async def _is_given_up(within: timedelta) -> bool:
    """Whether systemd began the sleep and gave it up. systemctl returns when the sleep begins; it is over, one way or
    the other, when logind no longer prepares for it. A machine that has slept knows that by its clocks. False where
    logind does not say."""
    with anyio.move_on_after(within.total_seconds()):
        while (preparing := await _is_preparing()) is not False:
            if preparing is None:
                return False
            await anyio.sleep(_LOOK_SEC)
        return True
    return False


async def _is_preparing() -> bool | None:
    try:
        asked = ["busctl", "get-property", *LOGIND, "PreparingForSleep"]
        ended = await proc.call(asked, within=_ANSWERS_WITHIN, env=proc.PLAIN_ENVIRON)
    except OSError:
        return None
    return {"b true": True, "b false": False}.get(ended.said.strip()) if ended.code == 0 else None


def _because(what: str, said: str) -> str:
    """One line, because it is shown beside the node's name."""
    return f"it could not be put to sleep: {what}" + (f": {_first_line(said)}" if said else "")


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]
