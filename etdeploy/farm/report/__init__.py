"""A night for people and other tools: what it found, how it goes on, who is told."""
