"""Properties of devices, as farm.yaml has them."""

from __future__ import annotations

import pytest

from etdeploy.farm.spec.conditions import (
    ConditionError,
    holds,
    parse_conditions,
    reported_text,
)
from tests.support.farm_values import GB, phone


def matches(key: str, text: str, **facts: object) -> bool:
    return all(holds(each, phone("A1", **facts)) for each in parse_conditions(key, text))


@pytest.mark.parametrize(
    ("text", "system", "expected"),
    [
        (">=14", "Android 14", True),
        (">=14", "Android 9", False),
        (">=9", "Android 14", True),
        (">= 14", "Android 14", True),
        (">14", "Android 14", False),
        (">14", "Android 14.1", True),
        ("<=14", "Android 14.0.0", True),
        ("<24.10", "Ubuntu 24.9", True),
        (">=13, <16", "Android 15", True),
        (">=13, <16", "Android 16", False),
        ("Android >=13, <16", "Android 14", True),
        ("Android >=13", "iOS 18.1", False),
        ("android", "Android 14", True),
        ("Android 14", "Android 14", True),
        ("Android 1?", "Android 14", True),
        ("14", "Android 14", True),
        ("14", "Android 14.1", True),
        ("14.1", "Android 14", False),
        ("1", "Android 14", False),
        ("Debian*", "Debian GNU/Linux 12 (bookworm)", True),
        (">=12", "Debian GNU/Linux 12 (bookworm)", True),
        (">=1", "Custom", False),
        (">=1", None, False),
    ],
)
def test_versions_compare_as_versions(text: str, system: str | None, expected: bool) -> None:
    assert matches("os", text, os=system) is expected


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("memory", ">=6 GB", True),
        ("memory", ">=8 GB", True),
        ("memory", ">=8 GiB", False),
        ("memory", "<6 GB", False),
        ("cpu_count", "9", True),
        ("cpu_count", ">=8", True),
        ("cpu_count", "<8", False),
        ("soc", "tensor g3", True),
        ("soc", "Tensor*", True),
        ("soc", "Tensor", False),
        ("model", "Pixel ?", True),
        ("kind", "android", True),
        ("host", "she*", True),
        ("host", "other", False),
        ("name", "android:A1", True),
        ("name", "android", True),
        ("name", "android:*", True),
        ("name", "android:B2", False),
        ("pool", "nightly", True),
        ("pool", "other", False),
        ("abi", "arm64-v8a", True),
        ("target", "linux-*", False),
    ],
)
def test_properties_of_a_device(key: str, text: str, expected: bool) -> None:
    assert matches(key, text, pools=("nightly", "all")) is expected


def test_brackets_of_an_address_are_no_pattern() -> None:
    assert matches("name", "android:[::1]:5555", name="android:[::1]:5555")


def test_what_a_device_does_not_report_does_not_hold() -> None:
    assert not matches("soc", "*", soc=None)
    assert reported_text("soc", phone("A1", soc=None)) == "unknown"
    assert reported_text("memory_bytes", phone("A1", memory_bytes=4 * GB)) == "4.0 GB"


@pytest.mark.parametrize(
    ("key", "text", "fact"),
    [
        ("model", ">=5", "comparison '>=5'"),
        ("memory", "8 GB", "a comparison, not '8 GB'"),
        ("memory", ">=lots", "'lots' is not a size"),
        ("cpu_count", "many", "'many' is not a number"),
        ("cpu_count", "big >=8", "a comparison, not 'big >=8'"),
        ("os", ">=Android", "'Android' is not a version"),
        ("os", ">=13,", "empty"),
        ("os", "", "empty"),
        ("soc", " ", "empty"),
    ],
)
def test_a_property_that_says_nothing(key: str, text: str, fact: str) -> None:
    with pytest.raises(ConditionError) as caught:
        parse_conditions(key, text)
    assert str(caught.value).startswith(key)
    assert fact in str(caught.value)
