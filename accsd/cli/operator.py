"""Who gives a command, for the record: the name of a person at a machine."""

import getpass
import socket


def operator() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user id that no name belongs to
        return socket.gethostname()
