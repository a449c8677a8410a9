"""PostgreSQL without an installation: a private server from the binaries of a wheel, for demo and tests.

    with embedded.running(Path("~/.local/share/accsd").expanduser()) as server:
        connect(server.url)

Several processes may do that with one folder at a time: they share one server, and it stops when the last of them has
gone, however that one ended. Three lock files in the folder make that true; the kernel releases a lock when its holder
dies, so nothing depends on a process cleaning up:

    users.lock     every user holds it shared. The guardian waits for it exclusively; when it has the lock, no user
                   is left, and none can come until the server has been stopped.
    starting.lock  held while a user looks for the server or starts it: starters come one after the other.
    guardian.lock  taken by a starter and handed to the guardian that it spawns, which holds it to its end.
                   If it is free, there is no guardian, and server.json is out of date.

The guardian (`python -m accsd.embedded`, detached) owns the server; the kernel stops the server if the guardian dies.
Nothing here imports a third-party package: a guardian starts in 50 ms, with any Python.
"""

from accsd.embedded.attach import destroy, find, running, wait_until_stopped
from accsd.embedded.folder import EmbeddedError, Server

__all__ = ["EmbeddedError", "Server", "destroy", "find", "running", "wait_until_stopped"]
