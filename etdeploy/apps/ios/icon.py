"""The app's icon: bars of a histogram, drawn here because the templates have no binary files."""

from __future__ import annotations

import struct
import zlib

SIZE = 1024
ICON_PATH = "Assets.xcassets/AppIcon.appiconset/AppIcon.png"
_BACKGROUND, _BAR, _FIRST = (0x0F, 0x3A, 0x78), (0x8F, 0xC2, 0xFF), (0xFF, 0xB7, 0x4D)
# Left edge and height of each bar, in 64ths of the icon.
_BARS = ((11, 14), (20, 36), (29, 26), (38, 17), (47, 9))
_WIDTH, _GROUND = 6, 50


def icon_png() -> bytes:
    """A PNG of 1024 x 1024 pixels without transparency, as the App Store wants it."""
    rows = b"".join(b"\0" + _row(y * 64 // SIZE) for y in range(SIZE))
    header = struct.pack(">IIBBBBB", SIZE, SIZE, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _row(y: int) -> bytes:
    return b"".join(bytes(_colour(x, y)) * (SIZE // 64) for x in range(64))


def _colour(x: int, y: int) -> tuple[int, int, int]:
    for left, height in _BARS:
        if left <= x < left + _WIDTH and _GROUND - height <= y < _GROUND:
            return _FIRST if left == _BARS[0][0] else _BAR
    return _BACKGROUND


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
