"""What a recipe can set in `export.options` for QNN."""

from __future__ import annotations

from collections.abc import Mapping

from etdeploy.backends.options import Option, OptionValue
from etdeploy.backends.qnn.socs import QUALCOMM_SOCS, QualcommSoc
from etdeploy.core.errors import Blocker

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
        "Whether each output channel of a quantised linear layer or convolution has a scale of its "
        "own, instead of one for the whole layer.",
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
        "weight_sharing",
        False,
        "Stores weights once that several methods have in common, for the HTP V69 and newer. "
        "Qualcomm's simulator cannot load such a program.",
    ),
)

# QNN 2.49 ignores weight sharing for V68; for V69, V75 and V81 it stores weights once.
_NOT_SHARING = "V68"


def option_blocker(options: Mapping[str, OptionValue], soc: str | None) -> Blocker | None:
    """What prevents an export with these options for a SoC."""
    facts = QUALCOMM_SOCS.get(soc or "")
    return (_vtcm_blocker(options, facts) or _sharing_blocker(options, facts)) if facts else None


def _vtcm_blocker(options: Mapping[str, OptionValue], soc: QualcommSoc) -> Blocker | None:
    wanted = options.get("vtcm_mib", 0)
    if isinstance(wanted, int) and 0 <= wanted <= soc.vtcm_mib:
        return None
    return Blocker(
        what="VTCM",
        why=f"export.options.vtcm_mib is {wanted}, and {soc.name} has {soc.vtcm_mib} MiB of VTCM",
        remedy=f"Name 1 to {soc.vtcm_mib}, or 0 for all: --set export.options.vtcm_mib=0",
    )


def _sharing_blocker(options: Mapping[str, OptionValue], soc: QualcommSoc) -> Blocker | None:
    if not options.get("weight_sharing") or soc.htp_arch != _NOT_SHARING:
        return None
    return Blocker(
        what="weight sharing",
        why=f"export.options.weight_sharing is on, and the HTP of {soc.name} ({soc.htp_arch}) "
        "shares no weights",
        remedy="--set export.options.weight_sharing=false",
    )
