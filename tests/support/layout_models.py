"""Saves a small model of true architecture with random weights: `python -m ... KIND FOLDER`."""

from __future__ import annotations

import sys

from tests.support.generation_run import tiny

if __name__ == "__main__":
    tiny(sys.argv[1]).save_pretrained(sys.argv[2])
    sys.stdout.write("\nnull\n")
