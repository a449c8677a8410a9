"""How this machine is put to sleep: by systemd, by a script of its own, or by whoever runs it."""

from collections.abc import Mapping
from typing import Final, assert_never

from accsd import proc
from accsd.model import Node
from accsd.power.provider import ProviderAPI
from accsd.power.script import ShellScript
from accsd.settings import Provider, Sleep

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


async def fall_asleep(how: Sleep, node: str, providers: Mapping[str, Provider]) -> str | None:
    """What went wrong; None: the machine was told. When it really sleeps, this process will notice afterwards."""
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


async def _suspend(how: Sleep) -> str | None:
    """systemctl asks once more whether somebody inhibits it or is logged in, where both count."""
    checks = ["--check-inhibitors=yes"] if how.veto_users and how.veto_inhibitors else []
    environ = {"PATH": _PATH, "LANG": "C.UTF-8"}
    try:
        ended = await proc.call(["systemctl", *checks, "suspend"], within=how.within, env=environ)
    except OSError as error:  # TimeoutError is one
        return _because("systemctl suspend", str(error))
    return None if ended.code == 0 else _because("systemctl suspend", ended.said)


def _because(what: str, said: str) -> str:
    """One line: it is shown beside the node's name."""
    return f"it could not be put to sleep: {what}" + (f": {_first_line(said)}" if said else "")


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]
