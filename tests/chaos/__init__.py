"""Seeded chaos from outside: a fleet of real daemons, faults by signals, proxies and SQL, and a verdict over effects
that no database has counted. `make chaos` runs it; docs/testing.md has its figures."""
