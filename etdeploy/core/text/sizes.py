"""Sizes as users write them."""

from __future__ import annotations

import os
import re
from decimal import Decimal

from etdeploy.core.errors import UsageError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)
# Decimal and binary units of IEC 80000-13; also their first letters, as dd and du take them.
_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power, _letter: 1000**_power}


def size_limit(variable: str, default_bytes: int) -> int | None:
    """The limit in bytes that an environment variable sets.

    Args:
        variable: Its name; the value is a size as `parse_size` reads it, or `none`.
        default_bytes: The limit if the variable is not set.

    Returns:
        None for no limit (`0` or `none`).

    Raises:
        UsageError: The variable is not a size.
    """
    chosen = os.environ.get(variable, "").strip()
    if chosen.lower() == "none":
        return None
    return (parse_size(chosen, variable) if chosen else default_bytes) or None


def parse_size(text: str, variable: str | None = None) -> int:
    """The number of bytes in a size like `20 GB`, `512MiB`, `1.5g` or `1000`.

    Args:
        text: A number with or without a unit: B, kB, MB, GB, TB (powers of 1000, their first
            letter is enough), KiB, MiB, GiB, TiB (powers of 1024); upper or lower case.
        variable: The variable that it comes from, for the message.

    Raises:
        UsageError: It is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(
            f"{text!r} is not a size",
            place=variable,
            remedy="Write a number with a unit, like 20 GB, 500 MB, 4 GiB, or a number of bytes.",
        )
    return int(Decimal(match[1]) * factor)
