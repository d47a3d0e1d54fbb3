"""Texts that a language model reads when it is exported, unless the recipe names others.

They were written for etdeploy and are dedicated to the public domain. No model was trained on them,
and the two have nothing in common but the language.
"""

from __future__ import annotations

from pathlib import Path

CALIBRATION_TEXT = Path(__file__).with_name("calibration.txt")
EVALUATION_TEXT = Path(__file__).with_name("evaluation.txt")
BUNDLED_TEXTS = frozenset({str(CALIBRATION_TEXT), str(EVALUATION_TEXT)})
# Of the first; most of them suffice for the mean of a layer's squared inputs.
CALIBRATION_TOKENS = 2048
