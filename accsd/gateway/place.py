"""Where a gateway may listen on this machine, for those who start one beside other things."""

import socket
from contextlib import suppress
from importlib.util import find_spec
from typing import Final

_USUAL_PORT: Final = 8460


def is_installed() -> bool:
    return find_spec("fastapi") is not None and find_spec("uvicorn") is not None


def free_address(*, usual: bool = True) -> str | None:
    """An address of this machine that nobody else can reach: with the usual port if it is free, or with any."""
    for port in (_USUAL_PORT, 0) if usual else (0,):
        with socket.socket() as tried, suppress(OSError):
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(("127.0.0.1", port))
            return f"127.0.0.1:{tried.getsockname()[1]}"
    return None
