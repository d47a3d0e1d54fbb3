"""What exceptions of ExecuTorch's QNN backend mean; their texts are those of 1.5.1."""

from __future__ import annotations

import re

from etdeploy.export.worker.known_errors import Meaning, Meanings

MEANINGS: Meanings = (
    (
        re.compile(r"running the 'DecomposeFloorDivide' pass"),
        Meaning(
            "operator",
            "ExecuTorch's QNN backend cannot divide integers by a number with //",
            "Write it as torch.div(x, 2, rounding_mode='floor'), or divide in floats.",
            operator="aten::floor_divide",
        ),
    ),
    (
        re.compile(r"QNN graph I/O does not match the delegated program signature"),
        Meaning(
            "lowering",
            "QNN's graph has other inputs and outputs than its part of the model: a value in it is "
            "input or output twice, or depends on no input",
            "Let the model return each value once, and nothing that is constant; the log names "
            "both lists.",
        ),
    ),
    (
        re.compile(r"Failed to initialize QNN backend"),
        Meaning(
            "lowering",
            "Qualcomm's compiler does not start",
            "etdeploy doctor shows which one is used; the log has its own words. Code 14001 there\n"
            "means that ExecuTorch's adaptor was built for another version of it.",
        ),
    ),
)
