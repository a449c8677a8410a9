"""What people ask: read-only queries for the commands, the doctor and the pictures. They never lock."""
