"""Everything that accsd knows and does, over HTTP."""
