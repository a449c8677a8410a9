"""Waking through the provider that runs the machine: one HTTP request with a secret, to a provider of the
settings."""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from accsd.log import redact, register_secret
from accsd.model import Node, WakeMethod
from accsd.net import Request, Response, send
from accsd.power.base import WakeFailed, WakeResult, outcome
from accsd.settings import ProviderSettings

# It becomes a part of a URL: one segment, and not one that leads elsewhere.
_REF: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
_SHOWN: Final = 1000
_LONGEST_TOKEN: Final = 4096


class ProviderAPI:
    """`provider_ref` is NAME/REF: the provider, as the settings call it, and the machine, as the provider calls it."""

    def __init__(self, provider_ref: str, providers: Mapping[str, ProviderSettings]) -> None:
        self._name, _, self._ref = provider_ref.partition("/")
        self._providers = providers

    async def wake(self, node: Node) -> WakeResult:
        return await outcome(WakeMethod.PROVIDER, self._wake(node))

    async def _wake(self, node: Node) -> str:
        provider = self._providers.get(self._name)
        if provider is None:
            raise WakeFailed(f"node {node.name} names a provider that is not in [wake.providers]")
        if not _REF.fullmatch(self._ref):
            raise WakeFailed(
                f"the provider_ref of node {node.name} is not NAME/REF, with letters, digits, . _ : - in REF"
            )
        token = await asyncio.to_thread(_token, provider)
        response = await send(_request(provider, self._ref, token), within=provider.timeout)
        return _judged(self._name, Response(response.status, _without(token, response.excerpt)))


def _request(provider: ProviderSettings, ref: str, token: str | None) -> Request:
    headers: dict[str, str] = {}
    if token is not None:
        headers["Authorization"] = provider.authorization.replace("{token}", token)
    if provider.body:
        headers["Content-Type"] = "application/json"
    return Request(
        method=provider.method,
        url=provider.url.replace("{ref}", ref),
        headers=headers,
        body=provider.body.replace("{ref}", ref).encode(),
        allow_private=provider.allow_private,
        ca_file=provider.ca_file,
    )


def _judged(name: str, response: Response) -> str:
    if 300 <= response.status < 400:
        raise WakeFailed(f"{name} answered with a redirect ({response.status}), which is not followed")
    if not 200 <= response.status < 300:
        raise WakeFailed(f"{name} answered {response.status}", output=response.excerpt)
    return f"{response.status} {response.excerpt}"


def _token(provider: ProviderSettings) -> str | None:
    """The token is read anew at each call, so that it can be changed; from then on it is struck out of every log
    line."""
    if provider.token_file is None:
        return None if provider.token is None else provider.token.get_secret_value()
    token = _read(provider.token_file)
    register_secret(token)
    return token


def _read(path: Path) -> str:
    try:
        with path.open(encoding="ascii") as file:
            token = file.read(_LONGEST_TOKEN).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise WakeFailed(f"the token in {path} can't be read: {getattr(error, 'strerror', 'not plain text')}") from None
    if not token:
        raise WakeFailed(f"the token file {path} is empty")
    return token


def _without(token: str | None, text: str) -> str:
    """Some providers repeat the request in their answer. The answer is cut after the token was struck out, so that no
    half of a token stays at the cut."""
    return redact(text.replace(token, "***") if token else text)[:_SHOWN]
