"""`python -m accsd.embedded ORDER`: detach, then guard. Started by attach.py only."""

import json
import os
import sys

from accsd.embedded import guardian
from accsd.embedded.attach import GuardianTask
from accsd.embedded.folder import EmbeddedError


def main() -> None:
    order = GuardianTask(**json.loads(sys.argv[1]))
    if os.fork():
        os._exit(0)  # the starter waits for this one
    os.chdir("/")
    try:
        guardian.guard(order)
    except (EmbeddedError, OSError) as error:
        sys.exit(f"guardian: {error}")


main()
