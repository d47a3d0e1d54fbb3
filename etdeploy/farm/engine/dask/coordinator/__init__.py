"""The coordinator: its scheduler, the hosts that are connected, orders under way, files."""
