"""farm.yaml: what is measured, where, when, and who is told."""
