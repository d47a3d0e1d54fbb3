"""For what a QNN program was compiled, as its compile spec and its context binary say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etdeploy.backends.qnn.payload import describe_target
from etdeploy.backends.values import CompiledFor
from etdeploy.core.errors import UsageError
from etdeploy.program.inspect import describe, inspect_file
from tests.support.facts import lacks
from tests.support.program_files import Plan, pte

# Compile specs as ExecuTorch 1.5.1 writes them (generate_qnn_executorch_compiler_spec).
RECORDED = json.loads((Path(__file__).parents[3] / "data/qnn/compile_specs.json").read_bytes())
_BURST = ("precision=fp16", "performance_mode=burst")
CONTEXT = b"\xcd\xab\x78\x56" + bytes(252) + b"graph\0v2.37.0.250724175447_124859\0weights"


def spec(soc: str) -> tuple[tuple[str, bytes], ...]:
    return tuple((key, bytes.fromhex(value)) for key, value in RECORDED[soc].items())


def compiled_for(path: Path) -> tuple[CompiledFor, ...]:
    return inspect_file(path).compiled_for


def write(folder: Path, *plans: Plan, payload: bytes = CONTEXT) -> Path:
    path = folder / "model.pte"
    path.write_bytes(pte(*plans, segments=(payload,)))
    return path


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
    assert compiled_for(path) == (
        CompiledFor(soc_id=69, soc="SM8750", htp_arch="V79", settings=_BURST),
    )


def test_a_damaged_compile_spec_is_told(tmp_path: Path) -> None:
    broken = (("qnn_compile_spec", b"\xff\xff\x00\x00"),)
    path = write(tmp_path, Plan(delegates=(("QnnBackend", 0),), compile_specs=broken))
    with pytest.raises(UsageError, match="damaged"):
        compiled_for(path)


def test_methods_that_share_one_context_binary(tmp_path: Path) -> None:
    """As ExecuTorch's script for language models makes them: one segment, one delegate each."""
    shared = (("QnnBackend", 0),)
    path = write(
        tmp_path,
        *(Plan(name, delegates=shared, compile_specs=spec("SM8650 mha2sha")) for name in "ab"),
    )
    program = inspect_file(path)
    assert [d.compiled_for for m in program.methods for d in m.delegates] == [
        *program.compiled_for,
        *program.compiled_for,
    ]
    text = describe(program, "model.pte")
    line = (
        "  compiled   for SM8650 (HTP V75), by QNN 2.37.0.250724175447, with "
        "precision=quantized, performance_mode=burst\n"
    )
    assert text.count(line) == 2


def test_a_program_that_was_compiled_to_be_profiled(tmp_path: Path) -> None:
    plan = Plan(delegates=(("QnnBackend", 0),), compile_specs=spec("SM8650 profiled"))
    (target,) = compiled_for(write(tmp_path, plan))
    assert target.profiled
    described = describe_target(target)
    assert not lacks(described, "QNN 2.37.0.250724175447,", "profiled by operator")


@pytest.mark.parametrize(
    ("recorded", "settings"),
    [
        (
            "SM8650 all options",
            ("precision=fp16", "performance_mode=low_balanced", "dlbc=true", "weight_sharing=true"),
        ),
        ("SM8350 quantized", ("precision=quantized", "performance_mode=default")),
        ("SM8650 GPU", ()),
    ],
)
def test_what_else_a_program_was_compiled_with(
    tmp_path: Path, recorded: str, settings: tuple[str, ...]
) -> None:
    plan = Plan(delegates=(("QnnBackend", 0),), compile_specs=spec(recorded))
    (target,) = compiled_for(write(tmp_path, plan))
    assert target.settings == settings
    assert describe_target(target).endswith(f", with {', '.join(settings)}" if settings else "7")
