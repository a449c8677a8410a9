"""The roles of the control host: they move jobs on, wake and judge nodes, deliver events and keep history."""
