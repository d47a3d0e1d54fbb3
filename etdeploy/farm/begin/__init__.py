"""Writes the files that a farm begins with."""
