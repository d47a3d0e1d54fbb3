"""Convolutions in int8_dynamic: programs that ExecuTorch's own lowering gets wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from etdeploy.core.processes import process
from etdeploy.program.folder import load_provenance
from tests.support.export import Exporter, export_workspace, exported

__all__ = ["export_workspace", "exported"]

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "tests/data/export/dynamic_int8.py"


def test_convolutions_take_what_was_quantised_for_them(exported: Exporter) -> None:
    export = {"backend": "xnnpack", "quantization": "int8_dynamic"}
    folder = Path(exported({"model": {"python": f"{MODEL}:make"}, "export": export}).folder)
    made = load_provenance(folder)
    assert "dropped" not in made.details["rewrites"]
    arguments = (sys.executable, "-m", "tests.support.export_execute", str(folder))
    outcome = process.run(process.Request(arguments, cwd=ROOT))
    assert outcome.ok, outcome.stderr[-3000:]
    distances = json.loads(outcome.stdout.splitlines()[-1])[folder.name]
    found = dict(zip(made.methods, distances, strict=True))
    assert len(found) == 8
    # Rounding at run time may end in the neighbouring quantum; what is read as packed is far off.
    assert {
        n: d["cosine_similarity"] for n, d in found.items() if d["cosine_similarity"] < 0.999
    } == {}
