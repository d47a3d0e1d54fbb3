"""Language models of transformers: loaded, run eagerly, and made into methods."""
