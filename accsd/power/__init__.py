"""Waking nodes: one protocol, and one provider for each method. `methods_of` says which methods a node has;
`provider_for` makes the provider of one."""

from collections.abc import Collection
from typing import Final, assert_never

from accsd.model import Node, WakeMethod
from accsd.power.base import WakeFailed, WakeProvider, WakeResult
from accsd.power.provider import ProviderAPI
from accsd.power.relay import RELAY, Relay
from accsd.power.script import ShellScript
from accsd.power.wol import WakeOnLAN, networks
from accsd.settings import WakeSettings

__all__ = [
    "RELAY",
    "ProviderAPI",
    "Relay",
    "ShellScript",
    "WakeFailed",
    "WakeOnLAN",
    "WakeProvider",
    "WakeResult",
    "methods_of",
    "networks",
    "provider_for",
    "shares_network",
]

_FIELDS: Final = {WakeMethod.WOL: "mac", WakeMethod.PROVIDER: "provider_ref", WakeMethod.SCRIPT: "script"}


def methods_of(
    node: Node, *, has_relay: bool = False, is_near: bool = True, brought_by: str | None = None
) -> tuple[str, ...]:
    """The methods by which a node can be woken, the best first: the one that woke it the last time, the one that it
    asks for, then whatever else its fields allow. A relay comes after this machine's own packet if this machine is
    near, in a network of the node's; otherwise before it."""
    if node.wake_method is None:
        return ()
    methods: list[str] = []
    for method in (node.wake_method, *(other for other in _FIELDS if other is not node.wake_method)):
        if method is not node.wake_method and not getattr(node, _FIELDS[method]):
            continue
        relayed = [RELAY] if method is WakeMethod.WOL and has_relay and node.mac else []
        methods += [method.value, *relayed] if is_near else [*relayed, method.value]
    methods.sort(key=lambda method: method != brought_by)
    return tuple(methods)


def shares_network(others: Collection[str]) -> bool:
    """Whether this machine is in one of these networks; unknown ones count as near."""
    return not others or not set(others).isdisjoint(networks())


def provider_for(node: Node, settings: WakeSettings, method: WakeMethod | None = None) -> WakeProvider:
    """The provider of a method, by default of the one that the node asks for. Raises WakeFailed where the node lacks
    the field that the method needs."""
    method = method or node.wake_method
    match method:
        case WakeMethod.WOL:
            also = [str(address) for address in settings.broadcast]
            return WakeOnLAN(_given(node, method), settings.interface, also=also, port=settings.port)
        case WakeMethod.PROVIDER:
            return ProviderAPI(_given(node, method), settings.providers)
        case WakeMethod.SCRIPT:
            return ShellScript(_given(node, method), folder=settings.script_dir, within=settings.script_timeout)
        case None:
            raise WakeFailed(f"node {node.name} has no wake_method")
        case _:
            assert_never(method)


def _given(node: Node, method: WakeMethod) -> str:
    value: str | None = getattr(node, _FIELDS[method])
    if not value:
        raise WakeFailed(f"node {node.name} has wake_method {method} and no {_FIELDS[method]}")
    return value
