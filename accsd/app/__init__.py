"""The composition root: builds everything, decides nothing."""
