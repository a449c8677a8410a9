"""Packages that look their names up when they are asked for."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["accsd.db", "accsd.model"])
def test_every_name_that_a_package_offers_is_there_whatever_was_imported_before(package: str):
    """In a process of its own, and with all of its modules in place, which have the names of some functions."""
    for first in (
        "",
        f"import pkgutil; [__import__(f'{package}.{{m.name}}') for m in pkgutil.iter_modules({package}.__path__)]",
    ):
        program = f"""
import types, {package}
{first}
wrong = [name for name in {package}.__all__ if isinstance(getattr({package}, name), types.ModuleType)]
assert wrong == [], wrong
assert len(set({package}.__all__)) == len({package}.__all__)
try:
    {package}.nothing
except AttributeError as error:
    assert "nothing" in str(error)
"""
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_daemon_has_no_http_library_before_its_first_request():
    """It takes 0.2 s and 9 MB, and a node that calls nobody never needs it."""
    program = """
import sys
import accsd.daemon.daemon, accsd.net, accsd.builder.webhook, accsd.power.provider, accsd.runners.compose.http_client
assert "aiohttp" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
