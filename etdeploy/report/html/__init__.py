"""A report as one page that needs nothing else: no network, no server, no other file."""
