"""The tolerances of a program follow its backend, too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from etdeploy.bench.passes import Pass, PassResult
from etdeploy.bench.sizes import compare_sizes
from etdeploy.recipe.model import Tolerance
from etdeploy.runner.protocol import RunnerOutput, RunnerResults
from tests.support.bench_values import make_program_folder

_TIMING = Pass("timing", 0, 1, outputs=True)


def _result() -> PassResult:
    output = RunnerOutput(kind="Tensor", dtype="float32", shape=(2, 4), path="0.bin")
    results = RunnerResults(
        schema_version=1,
        executorch_version="1.5.1",
        method="forward",
        started_unix_s=0,
        threads=1,
        warmup=0,
        load_program_ms=1.0,
        load_method_ms=1.0,
        rss_after_load_bytes=0,
        peak_rss_bytes=0,
        first_inference_ms=1.0,
        samples_ms=(1.0,),
        outputs=(output,),
    )
    return PassResult(results, 1.0, "timing.json", _TIMING.outputs_folder)


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
    found = compare_sizes(
        [_TIMING], {_TIMING.key: _result()}, tmp_path, program, provenance, Tolerance()
    )
    assert [check.within_tolerance for check in found[""]] == [within]
