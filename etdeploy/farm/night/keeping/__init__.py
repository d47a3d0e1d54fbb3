"""Keeps what a night did: in the history's database, and in a file while that is down."""
