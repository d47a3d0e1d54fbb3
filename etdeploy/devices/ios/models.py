"""iPhones by the product type that they report."""

from __future__ import annotations

from dataclasses import dataclass

_GIB = 1 << 30
CPU_COUNT = 6
"""Of every model in this table: two fast cores and four efficient ones, from A12 to A19."""


@dataclass(frozen=True)
class Model:
    """A model: its name in shops, and the size of its memory.

    Apple does not publish memory; these are the sizes of the chips that teardowns found.
    """

    name: str
    memory_bytes: int


def known_model(product_type: str) -> Model | None:
    """The model with a product type, such as `iPhone16,1`; None for one that is not listed."""
    found = _MODELS.get(product_type)
    return Model(found[0], found[1] * _GIB) if found else None


_MODELS: dict[str, tuple[str, int]] = {
    "iPhone11,2": ("iPhone XS", 4),
    "iPhone11,4": ("iPhone XS Max", 4),
    "iPhone11,6": ("iPhone XS Max", 4),
    "iPhone11,8": ("iPhone XR", 3),
    "iPhone12,1": ("iPhone 11", 4),
    "iPhone12,3": ("iPhone 11 Pro", 4),
    "iPhone12,5": ("iPhone 11 Pro Max", 4),
    "iPhone12,8": ("iPhone SE (2nd generation)", 3),
    "iPhone13,1": ("iPhone 12 mini", 4),
    "iPhone13,2": ("iPhone 12", 4),
    "iPhone13,3": ("iPhone 12 Pro", 6),
    "iPhone13,4": ("iPhone 12 Pro Max", 6),
    "iPhone14,2": ("iPhone 13 Pro", 6),
    "iPhone14,3": ("iPhone 13 Pro Max", 6),
    "iPhone14,4": ("iPhone 13 mini", 4),
    "iPhone14,5": ("iPhone 13", 4),
    "iPhone14,6": ("iPhone SE (3rd generation)", 4),
    "iPhone14,7": ("iPhone 14", 6),
    "iPhone14,8": ("iPhone 14 Plus", 6),
    "iPhone15,2": ("iPhone 14 Pro", 6),
    "iPhone15,3": ("iPhone 14 Pro Max", 6),
    "iPhone15,4": ("iPhone 15", 6),
    "iPhone15,5": ("iPhone 15 Plus", 6),
    "iPhone16,1": ("iPhone 15 Pro", 8),
    "iPhone16,2": ("iPhone 15 Pro Max", 8),
    "iPhone17,1": ("iPhone 16 Pro", 8),
    "iPhone17,2": ("iPhone 16 Pro Max", 8),
    "iPhone17,3": ("iPhone 16", 8),
    "iPhone17,4": ("iPhone 16 Plus", 8),
    "iPhone17,5": ("iPhone 16e", 8),
}
