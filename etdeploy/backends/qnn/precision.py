"""In what the HTP computes floats, and what to know of it before a run."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.backends.qnn.socs import QUALCOMM_SOCS

# Schemes that leave a model in floats.
FLOAT_SCHEMES = ("none", "fp16")
# ExecuTorch, backends/qualcomm/utils/utils.py: "Only premium tier SoC like Snapdragon 8 Gen 1 or
# newer can support HTP fp16." That one is SM8450, with V69.
_WITHOUT_FLOATS = ("V68",)


def precision_notes(quantization: str | None, soc: str | None) -> Iterator[str]:
    """What to know of a program's floats, as sentences.

    Args:
        quantization: The scheme; None if it is not known.
        soc: What the program is compiled for; None if it is not known yet.
    """
    if quantization == "none":
        yield (
            "The HTP has no 32-bit floats: floats are computed in 16 bits, and the outputs are "
            "judged as such."
        )
    facts = QUALCOMM_SOCS.get(soc or "")
    if quantization in FLOAT_SCHEMES and facts and facts.htp_arch in _WITHOUT_FLOATS:
        yield (
            f"The HTP of {facts.name} ({facts.htp_arch}) may not compute floats at all: ExecuTorch "
            "names Snapdragon 8 Gen 1 as the first whose HTP has 16-bit floats. Qualcomm's "
            "simulator computes them in 32 bits for it, so that a simulated run does not show "
            "whether the phone can: quantise the model (export.quantization=int8_static)."
        )
