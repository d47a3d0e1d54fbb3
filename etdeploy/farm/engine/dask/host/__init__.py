"""A host: its connection, a Worker for each phone, attempts that outlive the connection."""
