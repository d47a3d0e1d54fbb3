"""The lines with which steps report what they did."""

from __future__ import annotations

import pytest

from etdeploy.devices.base import PushReport
from etdeploy.export.cache import ExportedProgram
from etdeploy.export.spec import ExportSpec
from etdeploy.graph.on_device import pushed_line
from etdeploy.graph.pipeline import origin


@pytest.mark.parametrize(
    ("spec", "cached", "told"),
    [
        (ExportSpec(example="mlp"), False, "exported"),
        (ExportSpec(example="mlp"), True, "taken from the cache"),
        (ExportSpec(program="/models/net.pte"), False, "taken from net.pte"),
        (ExportSpec(program="/models/net.pte"), True, "taken from net.pte"),
    ],
)
def test_a_finished_program_is_not_made(spec: ExportSpec, cached: bool, told: str) -> None:
    exported = ExportedProgram(folder="/cache/k", key="k", cached=cached, sha256="0")
    assert origin(spec, exported) == told


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (PushReport(1, 2_000_000, 1, 0.5), "1 file, 2.0 MB; 1 already there"),
        (PushReport(8, 2_000_000, 0, 0.5), "8 files, 2.0 MB; 0 already there"),
        (PushReport(0, 0, 1, 0.5), "the device already has 1 file"),
        (
            PushReport(1, 50_000_000, 0, 0.5, resumed_bytes=900_000_000),
            "1 file, 50.0 MB (900.0 MB were there of an interrupted push); 0 already there",
        ),
        (
            PushReport(2, 2_000_000, 0, 0.5, removed_bytes=3_000_000),
            "2 files, 2.0 MB; 0 already there; removed 3.0 MB of what was used longest ago",
        ),
    ],
)
def test_a_push_counts_its_files(report: PushReport, line: str) -> None:
    assert pushed_line(report) == line
