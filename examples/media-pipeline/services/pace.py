"""How fast the pipeline goes: `options.pace` is 1 for people who watch, 0 for machines."""

import time


def pause(task, seconds):
    """Waits so long at pace 1; a cancelled task stops in the middle of it."""
    with task.cancellable():
        time.sleep(seconds * float(task.options.get("pace", 1)))
