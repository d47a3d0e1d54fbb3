"""Models of transformers that give their outputs in one call."""
