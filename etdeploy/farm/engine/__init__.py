"""How visits reach devices: on this host alone, or over several."""
