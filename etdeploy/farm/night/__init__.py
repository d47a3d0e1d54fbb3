"""Decides what a night does next: which visit, where, again or not, and when it is over."""
