"""Models with trained weights, the inputs that they are for, and how well they do on them.

Each family is a module with factories and calibration inputs, which recipes name, and a `FAMILY`.
"""
