"""What of the backend qnn can be tried without Qualcomm's SDK."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from etdeploy.backends.qnn.compiler import CompileKit, find_compile_kit
from etdeploy.backends.qnn.facts import PERFORMANCE_MODES, QUALCOMM_SOCS
from etdeploy.backends.qnn.loading import loading_problem
from etdeploy.backends.values import Workstation
from tests.support.facts import lacks
from tests.support.qnn_sdk import lay_out_sdk

pytestmark = pytest.mark.integration

# An adaptor as a pybind11 before 2.12 makes it.
_REFUSING = """
import sys, unittest.mock
adaptor = unittest.mock.MagicMock()
adaptor.TensorWrapper.side_effect = RuntimeError("Unable to cast Python instance\\nmore of it")
sys.modules["executorch.backends.qualcomm.python.PyQnnManagerAdaptor"] = adaptor
"""
_CHECK = """
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.backends.qnn_placement import check_adaptor
try:
    check_adaptor()
    print("taken")
except WorkerError as error:
    print(error.failure.message)
    print(error.failure.remedy)
"""
_TABLE = """
import json
from executorch.backends.qualcomm.serialization.qc_schema import _soc_info_table as table
rows = [(c.name, int(c), s.htp_info.htp_arch.name, s.htp_info.vtcm_size_in_mb)
        for c, s in table.items()]
print(json.dumps(rows))
"""
_MODES = """
import json
from executorch.backends.qualcomm.serialization.qc_schema import QnnExecuTorchHtpPerformanceMode
print(json.dumps([(mode.name, int(mode)) for mode in QnnExecuTorchHtpPerformanceMode]))
"""
# What the worker has compiled, without the SDK that would do it.
_LEVEL = """
from executorch.backends.qualcomm.serialization.qc_schema_serialize import flatbuffer_to_option
from executorch.backends.qualcomm.utils import utils
from etdeploy.backends.options import option_values
from etdeploy.backends.qnn.facts import OPTIONS
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import Traced
from etdeploy.export.worker.backends.qnn import LOWERING
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.tracing.structure import ExampleInputs
import torch

def told(module, inputs, specs, **_):
    options = flatbuffer_to_option(specs[0].value)
    htp = options.backend_options.htp_options
    vtcm = options.soc_info.htp_info.vtcm_size_in_mb
    print(options.profile_level.name, htp.performance_mode.name, bool(htp.use_dlbc), vtcm)

utils.to_edge_transform_and_lower_to_qnn = told
other = {"performance_mode": "low_balanced", "dlbc": True, "vtcm_mib": 2}
for profiled, given in ((True, {}), (False, other)):
    spec = ExportSpec(
        backend="qnn", quantization="fp16", soc="SM8650", profiled=profiled,
        options=option_values(OPTIONS, given),
    )
    module = torch.nn.Linear(2, 2)
    source = MethodSource(module, ExampleInputs((torch.zeros(1, 2),)), None)
    exported = torch.export.export(module, source.inputs.args)
    LOWERING.lower(spec, {"forward": Traced(module, source, exported)})
"""
# What is asked of ExecuTorch for one and for several methods.
_METHODS = (
    _LEVEL[: _LEVEL.index("def told")]
    + """

def told(modules, inputs, specs, skip_mutable_buffer, **_):
    assert list(modules) == list(inputs)
    htp = flatbuffer_to_option(specs[0].value).backend_options.htp_options
    print(*modules, htp.use_weight_sharing, skip_mutable_buffer)
    if len(modules) == 3:
        raise AssertionError("Only graphs with the same number of partitions could be used")

utils.to_edge_transform_and_lower_to_qnn = told
def spec_of(soc, shared):
    options = option_values(OPTIONS, {"weight_sharing": shared})
    return ExportSpec(backend="qnn", quantization="fp16", soc=soc, options=options)

spec = spec_of("SM8650", True)
module = torch.nn.Linear(2, 2)
source = MethodSource(module, ExampleInputs((torch.zeros(1, 2),)), None)
traced = Traced(module, source, torch.export.export(module, source.inputs.args))
LOWERING.lower(spec, {"forward": traced})
LOWERING.lower(spec, {"prefill": traced, "decode": traced})
LOWERING.lower(spec_of("SM8350", False), {"prefill": traced, "decode": traced})
try:
    LOWERING.lower(spec, dict.fromkeys("abc", traced))
except Exception as error:
    print(error)
"""
)
_needs_executorch = pytest.mark.skipif(
    find_spec("executorch") is None, reason="ExecuTorch is not installed"
)


def _kit(folder: Path) -> CompileKit:
    kit = find_compile_kit(Workstation({"QNN_SDK_ROOT": str(lay_out_sdk(folder))}, folder))
    assert isinstance(kit, CompileKit)
    return kit


def _run(code: str) -> list[str]:
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    return outcome.stdout.splitlines()


@pytest.mark.skipif(
    sys.platform != "linux" or find_spec("executorch") is None, reason="no adaptor in this wheel"
)
def test_the_wheels_adaptor_takes_arrays_of_the_installed_numpy() -> None:
    assert _run(_CHECK)[-1] == "taken"


@_needs_executorch
def test_an_adaptor_that_takes_no_arrays_is_told() -> None:
    message, remedy = _run(_REFUSING + _CHECK)[-2:]
    assert not lacks(message, "adaptor", " numpy ", ": Unable to cast")
    assert remedy.startswith("pip install 'numpy<2'")


@_needs_executorch
def test_the_compile_spec_has_the_profile_level_and_the_options() -> None:
    assert _run(_LEVEL)[-2:] == [
        "kProfileDetailed kHtpBurst False 8",
        "kProfileOff kHtpLowBalanced True 2",
    ]


@_needs_executorch
def test_the_performance_modes_are_executorchs() -> None:
    names = {name.removeprefix("kHtp"): number for name, number in json.loads(_run(_MODES)[-1])}
    ours = {"".join(map(str.title, n.split("_"))): i for n, i in PERFORMANCE_MODES.items()}
    assert names == ours


@_needs_executorch
def test_several_methods_share_weights_and_keep_their_state_outside() -> None:
    lines = _run(_METHODS)[-5:]
    assert lines[:3] == [
        "forward False True",
        "prefill decode True True",
        "prefill decode False True",
    ]
    assert lines[3] == "a b c True True"
    assert "numbers of partitions" in lines[4]


@_needs_executorch
def test_the_socs_are_those_that_executorch_compiles_for() -> None:
    rows = {tuple(row) for row in json.loads(_run(_TABLE)[-1])}
    assert rows == {(s.name, s.qnn_id, s.htp_arch, s.vtcm_mib) for s in QUALCOMM_SOCS.values()}


@pytest.mark.skipif(sys.platform != "linux", reason="the SDK compiles on Linux only")
@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("QnnInterface_getProviders", None),
        ("QnnOther", "undefined symbol: QnnInterface_getProviders"),
    ],
)
def test_the_sdks_compiler_is_loaded(tmp_path: Path, function: str, problem: str | None) -> None:
    kit = _kit(tmp_path)
    source = tmp_path / "htp.c"
    source.write_text(f"int {function}(void) {{ return 0; }}\n")
    library = kit.libraries / "libQnnHtp.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    found = loading_problem(kit, {})
    assert (found.why if found else None) == (
        f"{library} cannot be loaded: {library}: {problem}" if problem else None
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the SDK compiles on Linux only")
def test_a_library_that_the_compiler_needs_is_named(tmp_path: Path) -> None:
    kit = _kit(tmp_path)
    source = tmp_path / "none.c"
    source.write_text("int QnnInterface_getProviders(void) { return 0; }\n")
    needed = tmp_path / "libc++abi.so.77"
    build = ["cc", "-shared", "-fPIC", str(source), "-Wl,--no-as-needed"]
    subprocess.run([*build, "-Wl,-soname,libc++abi.so.77", "-o", str(needed)], check=True)
    library = kit.libraries / "libQnnHtp.so"
    subprocess.run([*build, str(needed), "-o", str(library)], check=True)
    with_it = loading_problem(kit, {"LD_LIBRARY_PATH": str(tmp_path)})
    assert with_it is None
    needed.unlink()
    without = loading_problem(kit, {})
    assert without is not None
    assert "libc++abi.so.77: cannot open" in without.why
    assert without.remedy.startswith("apt-get install libc++1")
