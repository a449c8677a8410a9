"""A rehearsal: the planning code of the daemon on virtual time, with machines that are only numbers.

It answers what a fleet would cost and how long its jobs would wait, before anybody buys or switches off a machine. A
run is a function of fleet, trace, policy and seed: the same four give the same report, byte for byte.
"""
