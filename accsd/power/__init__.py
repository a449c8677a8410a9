"""Waking nodes (A18): one protocol, three kinds. `provider_for` chooses by what a node says of itself."""

from typing import assert_never

from accsd.model import Node, WakeMethod
from accsd.power.base import WakeFailed, WakeProvider, WakeResult
from accsd.power.provider import ProviderAPI
from accsd.power.script import ShellScript
from accsd.power.wol import WakeOnLAN
from accsd.settings import Wake

__all__ = ["ProviderAPI", "ShellScript", "WakeFailed", "WakeOnLAN", "WakeProvider", "WakeResult", "provider_for"]


def provider_for(node: Node, settings: Wake) -> WakeProvider:
    """Raises WakeFailed where the node does not say enough."""
    match node.wake_method:
        case WakeMethod.WOL:
            also = [str(address) for address in settings.broadcast]
            return WakeOnLAN(_given(node, "mac"), settings.interface, also=also, port=settings.port)
        case WakeMethod.PROVIDER:
            return ProviderAPI(_given(node, "provider_ref"), settings.providers)
        case WakeMethod.SCRIPT:
            return ShellScript(_given(node, "script"), folder=settings.script_dir, within=settings.script_timeout)
        case None:
            raise WakeFailed(f"node {node.name} has no wake_method")
        case _:
            assert_never(node.wake_method)


def _given(node: Node, field: str) -> str:
    value: str | None = getattr(node, field)
    if not value:
        raise WakeFailed(f"node {node.name} has wake_method {node.wake_method} and no {field}")
    return value
