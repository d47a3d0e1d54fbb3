"""Versions of Qualcomm's QNN SDK: the oldest for each purpose, and their format."""

from __future__ import annotations

import re

# What ExecuTorch 1.3 to 1.5 are tested with and download (scripts/qnn_config.sh).
PINNED_VERSION = "2.37.0.250724"
# The adaptor in ExecuTorch's wheel, with which an export compiles, is built with the headers of
# that version, and rejects older ones as unsupported (runtime/backends/QnnBackendCommon.cpp, 1.5).
ADAPTOR_SDK = (2, 37)
# The first SDK (major, minor) that compiles for a generation of the HTP, and has its libraries:
# what ExecuTorch's wiki says of the phones that have it.
LEAST_SDK: dict[str, tuple[int, int]] = {
    "V68": (2, 14),
    "V69": (2, 14),
    "V73": (2, 23),
    "V75": (2, 23),
    "V79": (2, 37),
    "V81": (2, 42),
}

VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.\d+)?")


def version_numbers(version: str) -> tuple[int, int, int]:
    """Major, minor and patch number of a version like v2.37.0.250724175447_124859.

    Raises:
        ValueError: It is not a version.
    """
    found = VERSION.search(version)
    if found is None:
        raise ValueError(f"{version!r} is not a version of the QNN SDK")
    return int(found[1]), int(found[2]), int(found[3])


def dotted(numbers: tuple[int, ...]) -> str:
    """2.37 for (2, 37)."""
    return ".".join(map(str, numbers))


def short_version(version: str) -> str:
    """2.37.0 for 2.37.0.250724175447."""
    return dotted(version_numbers(version))
