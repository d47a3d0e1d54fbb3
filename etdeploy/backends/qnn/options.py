"""What a recipe can set in `export.options` for QNN."""

from __future__ import annotations

from etdeploy.backends.options import Option

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
        "weight_sharing",
        False,
        "Stores weights once that several methods have in common, for the HTP V69 and newer. "
        "Qualcomm's simulator cannot load such a program.",
    ),
)
