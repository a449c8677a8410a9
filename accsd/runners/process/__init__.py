"""Commands on this machine, each under a shim that survives the daemon."""
