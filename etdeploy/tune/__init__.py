"""Searches the settings of a recipe for the best ones on a device."""
