"""accsd runs multi-step workflows on machines that may be asleep; PostgreSQL is the only thing it needs."""

__version__ = "0.1.0"
