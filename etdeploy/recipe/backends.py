"""What each backend is called, can do and needs: facts only, no backend code."""

from __future__ import annotations

from dataclasses import dataclass

# Ways to quantise, by the names that a recipe uses.
QUANTIZATIONS: dict[str, str] = {
    "none": "no quantisation; usually 32-bit floats",
    "fp16": "weights and activations in 16-bit floats",
    "int8_static": "8-bit weights and activations, ranges from calibration inputs (PT2E)",
    "int8_dynamic": "8-bit weights, activations quantised on the fly (PT2E)",
    "8da4w": "4-bit grouped weights, 8-bit dynamic activations in linear layers (torchao)",
    "16a4w": "4-bit weights, 16-bit activations, ranges from calibration inputs (PT2E)",
}


@dataclass(frozen=True)
class Backend:
    """A backend of ExecuTorch.

    Attributes:
        name: As a recipe names it.
        delegate_id: The id that a program's delegates carry; None when nothing is delegated.
        quantizations: The schemes that it can run.
        needs: What must be installed to export for it or to run it, besides the ExecuTorch wheel.
        get: How to get that, for messages.
    """

    name: str
    delegate_id: str | None
    quantizations: tuple[str, ...]
    needs: str | None = None
    get: str | None = None


BACKENDS: dict[str, Backend] = {
    b.name: b
    for b in (
        Backend("portable", None, ("none",)),
        Backend("xnnpack", "XnnpackBackend", ("none", "int8_static", "int8_dynamic", "8da4w")),
        Backend(
            "qnn",
            "QnnBackend",
            ("none", "fp16", "int8_static", "16a4w"),
            needs="Qualcomm's SDK (QNN; [which version](qnn.md)), on Linux x86_64",
        ),
        Backend(
            "vulkan",
            "VulkanBackend",
            ("none", "fp16"),
            needs="ExecuTorch's Vulkan libraries, which are not in any wheel, and glslc",
            get="The provider `source` builds them (`auto` uses it); glslc is in the Vulkan SDK\n"
            "and in Debian's package glslc.",
        ),
        Backend(
            "coreml",
            "CoreMLBackend",
            ("none", "fp16"),
            needs="a Mac or an iPhone to run on",
            get="Run etdeploy on a Mac (device host), where the wheel has the Core ML backend.",
        ),
    )
}
