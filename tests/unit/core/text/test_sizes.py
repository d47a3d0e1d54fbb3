"""Sizes are read as people write them, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.core.layout import parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1000", 1000),
        ("20 GB", 20_000_000_000),
        ("20gb", 20_000_000_000),
        (" 1.5 kB ", 1500),
        ("0.1 GB", 100_000_000),
        ("512MiB", 512 * 1024**2),
        ("4 GiB", 4 * 1024**3),
        ("2T", 2_000_000_000_000),
        ("7 b", 7),
    ],
)
def test_a_size_in_bytes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "GB", "-1", "1e9", "20 GBit", "1,5 GB", "1.GB", "inf", "20 GB x", "١ GB"]
)
def test_what_is_not_a_size_is_refused_with_the_name_of_the_variable(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text, "ETDEPLOY_CACHE_MAX")
    assert str(caught.value).startswith(f"ETDEPLOY_CACHE_MAX: {text!r} is not a size\n")
    assert "20 GB" in str(caught.value)
