"""The roles of the daemon, strangers to each other: each looks, does what is due, and says what it did."""
