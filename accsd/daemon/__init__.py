"""The process: its parts, how it starts, reloads, shows itself and stops."""
