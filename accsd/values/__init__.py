"""Plain values and what they must look like: names, labels, units, JSON, times."""
