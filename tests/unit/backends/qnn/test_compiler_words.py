"""What Qualcomm's compiler printed when it could not compile a graph, and what is told of it."""

from __future__ import annotations

import pytest

from etdeploy.backends.qnn.diagnostics import compiler_cause

_END = """\
[ERROR] [Qnn ExecuTorch]:  <E> Failed to finalize graph (id: 1) with err 1002
[ERROR] [Qnn ExecuTorch]: Failed to finalize Qnn Graph with error: 1002
[ERROR] [Qnn ExecuTorch]: Fail to compile QNN graph
AssertionError: Failed to generate Qnn context binary.
"""
# As a report has it (executorch 17782), after lines of another project's with the same failure.
_TOO_LARGE = """\
[ERROR] fa_alloc.cc:2425::ERROR:graph requires estimated allocation of 2309576 KB, limit is 2097152 KB
[ERROR] graph_prepare.cc:838::ERROR:error during serialize: memory usage too large
"""  # noqa: E501
# From the README of ExecuTorch's own language models.
_NO_PROCESS = """\
[ERROR] [Qnn ExecuTorch]: QnnDsp <E> Failed to find available PD for contextId 1 on deviceId 0 \
coreId 0 with context size estimate 4025634048
[ERROR] [Qnn ExecuTorch]: QnnDsp <E> context create from binary failed on contextId 1
"""
_NOT_WRITTEN = """\
[ERROR] [Qnn ExecuTorch]: graph_prepare.cc:6004:ERROR:couldn't insert overall len
[ERROR] [Qnn ExecuTorch]: QnnDsp <E> Graph executorch serialization failed
"""
_VTCM = """\
 <E> "_dec_block_0_norm1_1_InstanceNormalization" generated: Requires 0x2400000 bytes of TCM, which is \
greater than the TCM size of 0x800000!
"""  # noqa: E501
# QNN 2.49: a layer norm over four million elements.
_UNTILED = """\
[ERROR] [Qnn ExecuTorch]: tcm_migration.cc:2402::ERROR:Operator named q::*InputSlice \
(0x6867900000002) not sufficiently tiled to fit in TCM. Requires 16777216 bytes
[ERROR] [Qnn ExecuTorch]: tcm_migration.cc:1824::ERROR:Inside TCMMigration::run() function: \
scan_input_graph() call failed
"""
# QNN 2.49: nn.MultiheadAttention, in 16-bit floats.
_BIAS = """\
[ERROR] [Qnn ExecuTorch]: fp16_conv_activations.cc:219::ERROR:genNopWithScaleParamsFP16/BF16 \
mismatched scale and bias dimensions: bias dim 48 scale dim 3 do not match and cannot broadcast
[ERROR] [Qnn ExecuTorch]: graph_prepare.cc:4093::ERROR:Oops: const evaluation failed for op
"""
# In executorch 12537.
_AT_NODE = """\
[ERROR] [Qnn ExecuTorch]: graph_prepare.cc:1574::ERROR:Op 0x10cb0000001a preparation failed \
with err:-1
[ERROR] [Qnn ExecuTorch]:  <E> "aten_relu_default" generated: could not create op
"""
_REFUSED_NODE = "[ERROR] [Qnn ExecuTorch]:  <E> Failed to validate op aten_add with error 0xc26\n"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            _TOO_LARGE + _END,
            "a part of the model needs 2.4 GB on the HTP, and one context there has at most 2.1 GB",
        ),
        (
            _NO_PROCESS + _END,
            "a part of the model needs 4.0 GB on the HTP, and one context there has 4 GB of "
            "addresses, of which about 3.7 GB are free",
        ),
        (
            _NOT_WRITTEN + _END,
            "the compiled part of the model is too large to be written (couldn't insert overall "
            "len): a context binary has at most 2 GB",
        ),
        (
            _VTCM + _END,
            "the operator _dec_block_0_norm1_1_InstanceNormalization needs 37.7 MB of the HTP's "
            "own memory (VTCM) at once, and the SoC has 8.4 MB",
        ),
        (
            _UNTILED + _END,
            "an operator needs 16.8 MB of the HTP's own memory (VTCM) at once, and Qualcomm's "
            "compiler finds no way to split it",
        ),
        (
            _BIAS + _END,
            "Qualcomm's compiler fails at a layer of 16-bit floats whose result is split into "
            "parts, as nn.MultiheadAttention does with a batch of one: genNopWithScaleParamsFP16/"
            "BF16 mismatched scale and bias dimensions: bias dim 48 scale dim 3 do not match and "
            "cannot broadcast",
        ),
        (
            _AT_NODE + _END,
            "Qualcomm's compiler fails at the operator aten_relu_default: could not create op",
        ),
        (
            "[ERROR] [Qnn ExecuTorch]: graph_prepare.cc:1471::ERROR:Graph prepare failed with "
            f"err:2\n{_END}",
            "Qualcomm's compiler failed: Graph prepare failed with err:2",
        ),
    ],
)
def test_a_failed_compile_is_told_in_words(text: str, cause: str) -> None:
    found = compiler_cause(_REFUSED_NODE + text)
    assert found is not None
    assert found.cause == cause
    assert found.remedy


@pytest.mark.parametrize("text", ["", _REFUSED_NODE, _AT_NODE, _END])
def test_what_a_working_compile_prints_is_no_cause(text: str) -> None:
    assert compiler_cause(text) is None
