"""The process: what it is made of, how it starts, reloads, shows itself and stops."""
