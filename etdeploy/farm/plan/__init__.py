"""What a night would do, before it does it."""
