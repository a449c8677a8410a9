"""Projects: which environments and which address one has, and with which secret its application is asked."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from accsd.errors import InvalidValue
from accsd.gateway.problems import HttpProblem
from accsd.settings import SeqpulseProject
from accsd.values.signatures import secrets_in

_ADDRESS: Final = re.compile(r"https?://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+)(:\d{1,5})?([/?#][!-~]*)?")
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class WatchedProject:
    name: str
    settings: SeqpulseProject

    @property
    def is_signed(self) -> bool:
        return self.settings.is_signed

    def secret(self) -> str | None:
        """Read anew each time, so that a new one counts at once. Raises ConfigError."""
        if self.settings.hmac_secret_file is not None:
            return secrets_in(self.settings.hmac_secret_file)[0]
        return None if self.settings.hmac_secret is None else self.settings.hmac_secret.get_secret_value()

    def require_env(self, env: str) -> None:
        if env not in self.settings.envs:
            raise HttpProblem(
                "env_not_allowed",
                f'project {self.name} has no environment "{env}"; it has {", ".join(self.settings.envs)}',
                hint=f"gateway.seqpulse.projects.{self.name}.envs lists them",
            )

    def require_open(self) -> None:
        if self.settings.blocked:
            raise HttpProblem("PROJECT_ENDPOINT_BLOCKED", f"project {self.name} is blocked")

    def resolved(self, given: str | None) -> str | None:
        """The address to ask (SP-14): the project's own, which the given one has to be; or the given one where the
        project says so. None: nobody has named one."""
        fixed = self.settings.fixed_endpoint
        if fixed is None:
            return None if given is None else self._taken(given)
        if given is not None and compared(given) != compared(fixed):
            raise HttpProblem(
                "ENDPOINT_MISMATCH",
                f"the metrics endpoint {given[:200]} is not that of project {self.name}",
                hint=f"gateway.seqpulse.projects.{self.name}.endpoint names the one that is asked",
            )
        return fixed

    def to_ask(self, stored: str | None) -> str | None:
        """The address for a deployment that began with `stored`: the project's own counts if it has one by now."""
        return self.settings.fixed_endpoint or stored

    def _taken(self, given: str) -> str:
        if compared(given) is None:
            raise InvalidValue(f'"{given[:200]}" is no address of metrics: write https://host/path')
        if given.startswith("http:") and not self.settings.allow_private:
            raise InvalidValue(
                f"{given[:200]} is without TLS, which is for private networks only",
                hint=f"gateway.seqpulse.projects.{self.name}.allow_private = true",
            )
        return given


def compared(url: str) -> tuple[str, str, int, str] | None:
    """What makes two addresses the same: scheme, host, port, and path without one slash at its end (SP-14)."""
    if not _ADDRESS.fullmatch(url):
        return None
    parts = urlsplit(url)
    try:
        port = parts.port or _PORTS[parts.scheme]
    except ValueError:
        return None
    return parts.scheme, parts.hostname or "", port, canonical_path(url)


def canonical_path(url: str) -> str:
    """The path as it is signed (SP-22): as written, with its percent signs; without query and one slash at its end."""
    path = urlsplit(url).path
    path = path if path.startswith("/") else f"/{path}"
    return path[:-1] if len(path) > 1 and path.endswith("/") else path
