"""The worker process of the export step: the only code that imports torch."""
