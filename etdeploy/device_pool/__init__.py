"""Reservations and quarantine of devices, which every run sees."""
