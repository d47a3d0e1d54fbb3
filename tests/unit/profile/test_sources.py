from __future__ import annotations

import pytest

from etdeploy.profile.worker.__main__ import model_line

_TORCH = (
    'File "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134, in forward'
)
_PACKAGE = (
    'File "/venv/lib/python3.11/site-packages/transformers/models/llama/modeling.py", line 81, in f'
)


def _frame(file: str, line: int) -> str:
    return f'File "{file}", line {line}, in forward\n    return x\n'


@pytest.mark.parametrize(
    ("stack", "line"),
    [
        ("", ""),
        (_frame("/home/me/net/model.py", 7) + _TORCH, "model.py:7"),
        (_frame("/home/me/a.py", 7) + _frame("/home/me/b.py", 8), "b.py:8"),
        (_frame("/home/me/a.py", 7) + _PACKAGE, "transformers/models/llama/modeling.py:81"),
        (_TORCH, ""),
        (_frame("/usr/lib/python3.11/contextlib.py", 5), ""),
        (_frame("<eval_with_key>.3", 5), ""),
        (_frame("/usr/lib/python3/dist-packages/torch/x.py", 5), ""),
    ],
)
def test_the_innermost_line_of_the_models_code_is_found(stack: str, line: str) -> None:
    assert model_line(stack) == line
