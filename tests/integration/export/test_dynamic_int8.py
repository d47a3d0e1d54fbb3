"""Convolutions in int8_dynamic: programs that ExecuTorch's own lowering gets wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.program.folder import load_provenance
from tests.support.export import ROOT, Exporter, export_workspace, exported, run_exported

__all__ = ["export_workspace", "exported"]

MODEL = ROOT / "tests/data/export/dynamic_int8.py"


@pytest.mark.nightly
def test_convolutions_take_what_was_quantized_for_them(exported: Exporter) -> None:
    export = {"backend": "xnnpack", "quantization": "int8_dynamic"}
    folder = Path(exported({"model": {"python": f"{MODEL}:make"}, "export": export}).folder)
    made = load_provenance(folder)
    assert "dropped" not in made.details["rewrites"]
    distances = run_exported(folder.parent, [folder.name])[folder.name]
    found = dict(zip(made.methods, distances, strict=True))
    assert len(found) == 8
    # Rounding at run time may end in the neighbouring quantum; what is read as packed is far off.
    assert {
        n: d["cosine_similarity"] for n, d in found.items() if d["cosine_similarity"] < 0.999
    } == {}
