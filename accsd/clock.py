"""The clock of this machine that goes on while the machine sleeps: leases, orders and removals are measured by it.

The shim reads CLOCK_BOOTTIME by itself, because it imports next to nothing.
"""

import time


def boot_time() -> float:
    """Seconds since this machine booted, including those in which it was suspended: the same as CLOCK_BOOTTIME. It is
    computed from `time_asleep`, so that a test that replaces that function lets the machine sleep."""
    return time.monotonic() + time_asleep()


def time_asleep() -> float:
    """How long this machine was suspended since it booted: the difference of the clock with and the clock without
    sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
