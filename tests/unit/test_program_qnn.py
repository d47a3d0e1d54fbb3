"""For what a QNN program was compiled, as its compile spec and its context binary say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.program.qnn import CompiledFor, compiled_for
from tests.support.program_files import Plan, pte

# Compile specs as ExecuTorch 1.5.1 writes them (generate_qnn_executorch_compiler_spec).
RECORDED = json.loads((Path(__file__).parents[1] / "data/qnn/compile_specs.json").read_bytes())
CONTEXT = b"\xcd\xab\x78\x56" + bytes(252) + b"graph\0v2.37.0.250724175447_124859\0weights"


def spec(soc: str) -> tuple[tuple[str, bytes], ...]:
    return tuple((key, bytes.fromhex(value)) for key, value in RECORDED[soc].items())


def write(folder: Path, *plans: Plan, payload: bytes = CONTEXT) -> Path:
    path = folder / "model.pte"
    path.write_bytes(pte(*plans, segments=(payload,)))
    return path


@pytest.mark.parametrize(("soc", "number", "arch"), [("SM8750", 69, "V79"), ("SM8550", 43, "V73")])
def test_the_compile_spec_names_the_soc(tmp_path: Path, soc: str, number: int, arch: str) -> None:
    path = write(tmp_path, Plan(delegates=(("QnnBackend", 0),), compile_specs=spec(soc)))
    assert compiled_for(path) == (CompiledFor(number, arch, "2.37.0.250724175447"),)


def test_partitions_that_agree_are_told_once(tmp_path: Path) -> None:
    both = (("QnnBackend", 0), ("QnnBackend", 0))
    path = write(
        tmp_path,
        Plan("prefill", delegates=both, compile_specs=spec("SM8750")),
        Plan("decode", delegates=both, compile_specs=spec("SM8550")),
    )
    assert [c.soc_id for c in compiled_for(path)] == [69, 43]


def test_a_context_binary_may_not_show_its_version(tmp_path: Path) -> None:
    plan = Plan(delegates=(("QnnBackend", 0),), compile_specs=spec("SM8750"))
    path = write(tmp_path, plan, payload=b"v2.37 and v1.2.3.4 are no builds of the SDK")
    assert compiled_for(path) == (CompiledFor(69, "V79", None),)


def test_other_backends_say_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, Plan(delegates=(("XnnpackBackend", 0),), compile_specs=spec("SM8750")))
    assert compiled_for(path) == ()


def test_a_damaged_compile_spec_is_told(tmp_path: Path) -> None:
    broken = (("qnn_compile_spec", b"\xff\xff\x00\x00"),)
    path = write(tmp_path, Plan(delegates=(("QnnBackend", 0),), compile_specs=broken))
    with pytest.raises(UsageError, match="damaged"):
        compiled_for(path)
