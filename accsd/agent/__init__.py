"""The roles of a node: it registers, finds its services, claims their tasks, and sleeps when there are none."""
