"""The tests apart from whoever runs them: this process, and so every child of it, sees nothing of the user's.

Called once for each pytest process. Children inherit the environment, so that no test has to think of it.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

# Where programs and temporary files are, which Docker engine is meant, what the tests and pytest are told.
_KEPT = (
    "PATH",
    "LD_LIBRARY_PATH",
    "TMPDIR",
    "DOCKER_HOST",
    "DOCKER_CONFIG",
    "DOCKER_CERT_PATH",
    "DOCKER_TLS_VERIFY",
    "CI",
)
_KEPT_PREFIXES = ("ACC_TEST_", "PYTEST_")


def live_apart() -> Callable[[], None]:
    """From here on: an empty home, a state folder of our own, no variable of the user's. Answers how to remove them."""
    home = Path(tempfile.mkdtemp(prefix="accsd-test-home-"))
    home.chmod(0o711)  # some children are somebody else
    docker_config = Path.home() / ".docker"  # compose may be a plugin in it
    if docker_config.is_dir():
        os.environ.setdefault("DOCKER_CONFIG", str(docker_config))
    for name in list(os.environ):
        if name not in _KEPT and not name.startswith(_KEPT_PREFIXES):
            del os.environ[name]
    # As root the state folder is one for the whole machine, whatever HOME is; systemd's variable goes before it.
    os.environ |= {"HOME": str(home), "STATE_DIRECTORY": str(home / "state")}
    _let_children_hear()
    return lambda: shutil.rmtree(home, ignore_errors=True)


def _let_children_hear() -> None:
    """A shell without job control starts `make test &` with signals ignored, and children inherit that. A handler,
    if only one that does nothing, they do not inherit."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
