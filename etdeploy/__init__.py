"""Puts a PyTorch model on a device with ExecuTorch and times it there."""

__version__ = "0.1.0"
