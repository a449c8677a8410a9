"""History that outlives the database: months of events in the object store, and the retention of finished jobs."""
