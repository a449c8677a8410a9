"""Packages whose names are imported from their modules on first use: a command that lists jobs needs a tenth of
`accsd.db`, and a person waits for it."""

import sys
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from typing import Any


def lazily(package: str, names: Collection[str], homes: Sequence[str]) -> Callable[[str], Any]:
    """The package's `__getattr__`: each of `names` is found in the first of its modules `homes` that has it."""

    def found(name: str) -> Any:
        if name in names:
            for home in homes:
                module = import_module(f"{package}.{home}")
                if hasattr(module, name):
                    value = getattr(module, name)
                    setattr(sys.modules[package], name, value)
                    return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return found
