"""Simulators of iPhones, on a Mac."""
