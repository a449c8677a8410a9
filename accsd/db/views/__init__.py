"""Read-only queries for people: for the commands, the doctor and the pictures. They never lock."""
