"""Facts about Android phones: the systems on a chip that they report."""

from __future__ import annotations

import re
from collections.abc import Collection

# `ro.board.platform` of phones older than Android 12, which have no `ro.soc.model`.
_PLATFORMS = {
    "lahaina": "SM8350",
    "taro": "SM8450",
    "kalama": "SM8550",
    "pineapple": "SM8650",
    "sun": "SM8750",
    "canoe": "SM8850",
}


def soc_name(
    soc_model: str | None, board_platform: str | None, listed: Collection[str]
) -> str | None:
    """The part number of a phone's SoC, without the suffix of a variant.

    `SM8750P` and `SM8550-AC` are variants of SM8750 and SM8550, which no compiler lists.

    Args:
        soc_model: The property `ro.soc.model`.
        board_platform: The property `ro.board.platform`.
        listed: The part numbers that a backend compiles for.
    """
    if not soc_model or soc_model.lower() == "unknown":
        return _PLATFORMS.get(board_platform or "", board_platform or None)
    if soc_model.upper() in listed:
        return soc_model.upper()
    base = re.match(r"[A-Z]+\d+", soc_model.upper())
    return base.group() if base and base.group() in listed else soc_model
