"""Why a model does not fit a path."""

from __future__ import annotations


class MisfitError(Exception):
    """A path cannot compute the model; the text is a clause about it."""
