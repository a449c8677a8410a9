"""What the tests stand on: clusters and cloned databases, waiting without sleeping."""
