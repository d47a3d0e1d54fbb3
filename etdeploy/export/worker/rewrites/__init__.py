"""Rewrites of graphs that make programs faster on the stock runtime; `order.py` runs them."""
