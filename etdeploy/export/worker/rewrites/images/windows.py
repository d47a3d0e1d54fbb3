"""The windows of convolutions, pools and patches."""

from __future__ import annotations

from typing import Any

# Of XNNPACK's depthwise kernels.
MOST_TAPS = 25


def pair(value: Any) -> list[int]:
    """The height's and the width's, of a number for both or of a list; none for an empty list."""
    found = list(value) if isinstance(value, list | tuple) else [value]
    return found * 2 if len(found) == 1 else found
