"""How an attempt is started, watched, adopted and stopped. Runners know no database."""
