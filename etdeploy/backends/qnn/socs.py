"""Qualcomm's systems on a chip that QNN compiles for."""

from __future__ import annotations

from dataclasses import dataclass

from etdeploy.backends.qnn.versions import LEAST_SDK


@dataclass(frozen=True)
class QualcommSoc:
    """A Qualcomm system on a chip that ExecuTorch's QNN backend can compile for.

    Attributes:
        name: Qualcomm's part number, as in `ro.soc.model` without suffixes.
        qnn_id: Its number in QNN.
        htp_arch: Generation of its HTP (Hexagon tensor processor).
        vtcm_mib: Its tightly coupled vector memory.
        float_bits: In how many bits QNN's simulator computes its floats; None for a SoC that QNN
            compiles no floats for ("The SocModel doesn't support FP16"). Tried with QNN 2.49.40,
            one model for each SoC.
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
