"""The roles of the control host: they move jobs on, wake and judge nodes, tell others and keep history."""
