"""The clock of this machine that goes on while the machine sleeps: leases, orders and removals are measured by it.

The shim reads CLOCK_BOOTTIME by itself, because it imports next to nothing.
"""

import time


def boot_time() -> float:
    """Seconds since this machine booted, those in which it was suspended too: what CLOCK_BOOTTIME says. It is made of
    `time_asleep`, so that a test that replaces that one lets the machine sleep."""
    return time.monotonic() + time_asleep()


def time_asleep() -> float:
    """How long this machine was suspended since it booted: what one clock counts and the other does not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
