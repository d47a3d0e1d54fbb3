"""Rewrites of what is done to images."""
