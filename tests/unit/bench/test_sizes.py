"""The tolerances of a program follow its backend, too."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pytest

from etdeploy.bench.passes import Pass, PassResult
from etdeploy.bench.sizes import compare_sizes
from etdeploy.recipe.model import Tolerance
from etdeploy.runner.protocol import RunnerOutput
from tests.support.bench_values import make_program_folder, make_results

_TIMING = Pass("timing", 0, 1, outputs=True)


def _result() -> PassResult:
    output = RunnerOutput(kind="Tensor", dtype="float32", shape=(2, 4), path="0.bin")
    results = make_results(outputs=(output,))
    return PassResult(_TIMING, results, 1.0, datetime.now(timezone.utc))


@pytest.mark.parametrize(
    ("backend", "scheme", "within"),
    [
        ("xnnpack", "none", False),
        ("qnn", "none", True),  # Qualcomm's HTP computes floats in 16 bits
        ("qnn", "fp16", True),
    ],
)
def test_a_backend_without_32_bit_floats_is_judged_so(
    tmp_path: Path, backend: str, scheme: str, within: bool
) -> None:
    program = tmp_path / "program"
    provenance = make_program_folder(program, backend=backend, quantization=scheme)
    wanted = np.linspace(0.5, 1.0, 8, dtype=np.float32)
    (program / "expected/0.bin").write_bytes(wanted.tobytes())
    given = tmp_path / _TIMING.outputs_folder
    given.mkdir()
    (given / "0.bin").write_bytes((wanted + np.float32(1e-3)).tobytes())
    found = compare_sizes({_TIMING.key: _result()}, tmp_path, program, provenance, Tolerance())
    assert [check.within_tolerance for check in found[""]] == [within]
