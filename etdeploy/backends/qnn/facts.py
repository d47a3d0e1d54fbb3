"""Facts of QNN: its releases, the SoCs that it compiles for, and what a recipe can set."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from etdeploy.backends.options import Option

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


@dataclass(frozen=True)
class QualcommSoc:
    """A system on a chip, by Qualcomm's part number (`ro.soc.model` without suffixes).

    QNN's simulator computes floats in `float_bits`; None for a SoC that QNN compiles no floats for
    ("The SocModel doesn't support FP16"). Tried with QNN 2.49.40, one model for each SoC.
    """

    name: str
    qnn_id: int
    htp_arch: str
    vtcm_mib: int
    float_bits: int | None = 16

    @property
    def least_sdk(self) -> tuple[int, int]:
        """The first QNN SDK that compiles for it, (major, minor)."""
        return LEAST_SDK[self.htp_arch]


# From ExecuTorch's backends/qualcomm/serialization/qc_schema.py (1.5).
QUALCOMM_SOCS: dict[str, QualcommSoc] = {
    s.name: s
    for s in (
        QualcommSoc("SM8350", 30, "V68", 4, float_bits=32),
        QualcommSoc("SA8295", 39, "V68", 8),
        QualcommSoc("QCM6490", 93, "V68", 2, float_bits=None),
        QualcommSoc("SM8450", 36, "V69", 8),
        QualcommSoc("SM8475", 42, "V69", 8),
        QualcommSoc("SXR2230P", 53, "V69", 8),
        QualcommSoc("SM8550", 43, "V73", 8),
        QualcommSoc("SC8380XP", 60, "V73", 8),
        QualcommSoc("SA8255", 52, "V73", 8),
        QualcommSoc("SSG2115P", 46, "V73", 2, float_bits=None),
        QualcommSoc("SSG2125P", 58, "V73", 2, float_bits=None),
        QualcommSoc("SXR1230P", 45, "V73", 2, float_bits=None),
        QualcommSoc("QCS9100", 77, "V73", 8),
        QualcommSoc("SM8650", 57, "V75", 8),
        QualcommSoc("SM8750", 69, "V79", 8),
        QualcommSoc("SXR2330P", 75, "V79", 8),
        QualcommSoc("SM8850", 87, "V81", 8),
        QualcommSoc("SM8845", 97, "V81", 8),
        QualcommSoc("SA8797", 72, "V81", 16),
        QualcommSoc("SAR2230P", 95, "V81", 4, float_bits=None),
        QualcommSoc("SW6100", 96, "V81", 4, float_bits=None),
    )
}


def soc_of(qnn_id: int) -> QualcommSoc | None:
    """The SoC with this QNN number, which a compiled program contains."""
    return next((s for s in QUALCOMM_SOCS.values() if s.qnn_id == qnn_id), None)


IN_BLOCKS = "16a4w_block"
"""The scheme whose weights have a scale for each block (LPBQ)."""

# Of a language model in 4 bits, what has 8 unless an override says otherwise: the output layer, and
# the values that heads of grouped-query attention share (see `lowering/linears.py`).
FINER = {"8a4w": "int8_static", "16a4w": "16a8w", IN_BLOCKS: "16a8w"}
OUTPUT_LAYER = "lm_head"
_FINER_PARTS = (OUTPUT_LAYER, "*.v_proj", "*.qkv_proj.parts.2")


def finer_scheme(scheme: str, path: str) -> str | None:
    """The scheme of a language model's module that loses too much in the model's; else None."""
    finer = any(fnmatchcase(path, pattern) for pattern in _FINER_PARTS)
    return FINER.get(scheme) if finer else None


# etdeploy's names of ExecuTorch's `QnnExecuTorchHtpPerformanceMode`, with its numbers.
PERFORMANCE_MODES: dict[str, int] = {
    "default": 0,
    "sustained_high_performance": 1,
    "burst": 2,
    "high_performance": 3,
    "power_saver": 4,
    "low_power_saver": 5,
    "high_power_saver": 6,
    "low_balanced": 7,
    "balanced": 8,
}

OPTIONS = (
    Option(
        "performance_mode",
        "burst",
        "How fast the HTP is clocked while it computes; stored in the program, and voted for by "
        "ExecuTorch's runtime on the device.",
        tuple(PERFORMANCE_MODES),
    ),
    Option(
        "per_channel",
        True,
        "Whether each output channel of a quantized linear layer or convolution has its own scale, "
        "instead of one for the whole layer.",
    ),
    Option(
        "dlbc",
        False,
        "Whether the compiler may compress activations between the HTP and memory (deep learning "
        "bandwidth compression).",
    ),
    Option(
        "vtcm_mib",
        0,
        "How much of the HTP's own memory (VTCM) the program uses, at most what the SoC has; 0 for "
        "all of it. Less leaves room for programs that run beside it.",
    ),
    Option(
        "mha2sha",
        "auto",
        "Whether attention with many heads is split into single heads after it was quantized, by "
        "ExecuTorch's pass ConvertMhaToSha: it computes faster on the HTP. `auto`: in language "
        "models, where the compiler takes longer with it.",
        ("auto", "always", "never"),
    ),
    Option(
        "weight_sharing",
        False,
        "Stores weights once that several methods have in common, for the HTP V69 and newer. "
        "Qualcomm's simulator cannot load such a program.",
    ),
    Option(
        "shared_buffer",
        True,
        "Whether a language model's program may read its inputs and write its outputs, keys and "
        "values among them, in memory that the phone's processor and the HTP share, instead of "
        "copies. etdeploy's runner allocates it where there is an HTP.",
    ),
)
