"""Whether the tokenizer of the sample apps can stand for a model's own."""

from __future__ import annotations

import json
from pathlib import Path


def app_tokenizer(path: Path) -> str | None:
    """What of a `tokenizer.json` the app's tokenizer does not know; None for nothing."""
    try:
        json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        return f"the file ({error})"
    return None
