"""Finds the commit, or the program, since which a number is worse on a device."""
