"""What is said of floats, which the HTP computes in 16 bits or not at all."""

from __future__ import annotations

import pytest

from etdeploy.backends.qnn.precision import precision_notes
from etdeploy.backends.qnn.socs import QUALCOMM_SOCS

_IN_16_BITS = "The HTP has no 32-bit floats"
_NONE_AT_ALL = "may not compute floats at all"


@pytest.mark.parametrize("soc", [None, *QUALCOMM_SOCS])
@pytest.mark.parametrize("scheme", [None, "none", "fp16", "int8_static", "16a4w"])
def test_notes(soc: str | None, scheme: str | None) -> None:
    text = "\n".join(precision_notes(scheme, soc))
    old = soc in ("SM8350", "SA8295", "QCM6490")
    assert (_IN_16_BITS in text) == (scheme == "none")
    assert (_NONE_AT_ALL in text) == (old and scheme in ("none", "fp16"))
