"""The backend that messages name as the way out: it runs everywhere."""

from __future__ import annotations

# Also that of a recipe that names none.
DEFAULT = "xnnpack"
# Bundled recipes are named like their backend.
DEFAULT_RECIPE = DEFAULT
OTHER_BACKEND = f"Lower to another backend: --set export.backend={DEFAULT}"
OTHER_PROGRAM = "Export the model for another backend: the program is finished, and keeps its own."
