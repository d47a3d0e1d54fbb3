"""What the export step tells of the program that it gives."""

from __future__ import annotations

import pytest

from etdeploy.export.run import ExportedProgram
from etdeploy.export.spec import ExportSpec
from etdeploy.graph.pipeline import origin


@pytest.mark.parametrize(
    ("spec", "cached", "told"),
    [
        (ExportSpec(example="mlp"), False, "made"),
        (ExportSpec(example="mlp"), True, "taken from the cache"),
        (ExportSpec(program="/models/net.pte"), False, "taken from net.pte"),
        (ExportSpec(program="/models/net.pte"), True, "taken from net.pte"),
    ],
)
def test_a_finished_program_is_not_made(spec: ExportSpec, cached: bool, told: str) -> None:
    exported = ExportedProgram(folder="/cache/k", key="k", cached=cached, sha256="0")
    assert origin(spec, exported) == told
