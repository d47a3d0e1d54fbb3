"""Programs of language models: what transformers' model is exported as."""
