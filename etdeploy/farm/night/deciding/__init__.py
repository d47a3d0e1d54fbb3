"""What a night decides, as pure functions: no clock, no device, no store."""
