"""A run, several runs and a comparison, as text for a terminal."""
