"""Objects: where they are kept and what they are called."""

from accsd.storage.keys import build_key

__all__ = ["build_key"]
