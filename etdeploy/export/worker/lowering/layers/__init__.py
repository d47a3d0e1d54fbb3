"""Weights of layers, quantised in place before the model is traced."""
