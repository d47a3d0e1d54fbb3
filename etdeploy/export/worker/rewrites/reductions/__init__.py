"""Rewrites of means, sums and what is made of them."""
