"""What apps draw can be seen, by day and by night: WCAG 2.2, 1.4.3 and 1.4.11."""

from __future__ import annotations

import json
import re

import pytest

from etdeploy.core.files.basic import resource_folder

TEMPLATES = resource_folder("templates")
# Of a list's cells on iOS, by day and by night.
CELLS = ((1.0, 1.0, 1.0), (0x1C / 255, 0x1C / 255, 0x1E / 255))
Colour = tuple[float, ...]


def luminance(colour: Colour) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Colour, other: Colour) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def android(values: str) -> dict[str, Colour]:
    text = (TEMPLATES / f"android/app/src/main/res/{values}/colors.xml").read_text()
    found = re.findall(r'name="(\w+)">#(\w{6})<', text)
    return {name: tuple(byte / 255 for byte in bytes.fromhex(value)) for name, value in found}


@pytest.mark.parametrize("values", ["values", "values-night"])
def test_androids_histogram_and_texts(values: str) -> None:
    colours = android(values)
    assert contrast(colours["bar"], colours["card"]) >= 3
    assert contrast(colours["text"], colours["bar"]) >= 3  # the line of the median
    for text in ("text", "text_quiet", "accent", "good", "bad"):
        assert contrast(colours[text], colours["card"]) >= 4.5
    assert contrast(colours["on_accent"], colours["accent"]) >= 4.5


def test_the_histogram_on_ios() -> None:
    folder = TEMPLATES / "ios/__name__/Assets.xcassets/AccentColor.colorset"
    day, night = json.loads((folder / "Contents.json").read_text())["colors"]
    for asset, cell in zip((day, night), CELLS, strict=True):
        parts = asset["color"]["components"]
        accent = tuple(float(parts[name]) for name in ("red", "green", "blue"))
        assert contrast(accent, cell) >= 3
    chart = (TEMPLATES / "ios/__name__/ContentView.inference.swift").read_text()
    assert ".foregroundStyle(Color.accentColor)" in chart
