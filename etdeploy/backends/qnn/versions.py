"""Versions of Qualcomm's QNN SDK: the oldest for each purpose, and their format."""

from __future__ import annotations

import re

# What ExecuTorch 1.3 to 1.5 are tested with and download (scripts/qnn_config.sh).
PINNED_VERSION = "2.37.0.250724"
# The adaptor in ExecuTorch's wheel, with which an export compiles, is built with the headers of
# that version, and rejects older ones as unsupported (runtime/backends/QnnBackendCommon.cpp, 1.5).
ADAPTOR_SDK = (2, 37)
# Releases whose libraries reject the adaptor's configuration of the device ("unknown custom config
# socModel", error 14001): they have another layout of it. Seen with the libraries for Linux of
# 2.47.0, 2.48.40, 2.50.40 and 2.51.0; 2.49.40 takes it.
REJECTING = frozenset({(2, 47), (2, 48), (2, 50), (2, 51)})
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

# v2.37.0.250724175447_124859 in a library or a program: the date and time distinguish it from all
# other numbers.
BUILD_ID = re.compile(rb"v(2\.\d{1,3}\.\d{1,2}\.\d{12})")
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.\d+)?")


def version_numbers(version: str) -> tuple[int, int, int]:
    """Major, minor and patch number of a version like v2.37.0.250724175447_124859."""
    found = VERSION.search(version)
    if found is None:
        raise ValueError(f"{version!r} is not a version of the QNN SDK")
    return int(found[1]), int(found[2]), int(found[3])


def is_newer(version: str | None, than: str | None) -> bool:
    """Whether the libraries of a QNN reject the programs of another as too new.

    They do by major and minor number, with error 5000: so did each of 2.47, 2.48, 2.49, 2.50 and
    2.51 with the programs of those after it, and with none of those before. Releases that differ in
    the patch number only have the same interface by their own account (5.49.0 for 2.49.40); they
    could not be tried against each other.
    """
    return bool(version and than) and (
        version_numbers(str(version))[:2] > version_numbers(str(than))[:2]
    )


def is_newer_patch(version: str | None, than: str | None) -> bool:
    """Whether a QNN is of the same minor release as another, with a higher patch number."""
    if not version or not than or is_newer(version, than):
        return False
    return version_numbers(version) > version_numbers(than)


def dotted(numbers: tuple[int, ...]) -> str:
    """2.37 for (2, 37)."""
    return ".".join(map(str, numbers))


def short_version(version: str) -> str:
    """2.37.0 for 2.37.0.250724175447."""
    return dotted(version_numbers(version))
