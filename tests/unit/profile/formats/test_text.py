from __future__ import annotations

import pytest

from etdeploy.profile.calls import Reasons
from etdeploy.profile.model import ModuleTime
from etdeploy.profile.profiled import profile_from
from etdeploy.profile.text import profile_text
from tests.support.bench_values import make_record
from tests.support.traces import TRACE

_PROFILE = profile_from(make_record([9.0]), TRACE, Reasons(None, None))
_TEXT = """\
60% of an inference is in XnnpackBackend, 40% in Gemm (one call in layers). Fewer bits may make it \
faster: export.quantization (int8_static, int8_dynamic, 8da4w, 8da8w).

10.00 ms per inference while traced (1 inference), 9.00 ms without the tracer; 40.0% of it outside \
of delegates

time goes to                                      ms  share
----------------------------------------------  ----  -----
XnnpackBackend                                  6.00  60.0%
slice, expand, view and other copies of layout  2.00  20.0%
other kernels                                   1.00  10.0%
the runtime, in no operator                     1.00  10.0%

operator                      calls    ms  share  where
----------------------------  -----  ----  -----  ----------------------------------------
Gemm                              1  4.00  40.0%  XnnpackBackend, layers
aten::permute_copy.out            1  2.00  20.0%  CPU
XnnpackBackend: linear, relu      1  1.00  10.0%  XnnpackBackend, layers, around its nodes
Clamp                             1  1.00  10.0%  XnnpackBackend, layers
and 1 more: -n 5, --json for each call

module       ms  share  in a delegate  class
---------  ----  -----  -------------  ------
the model  9.00  90.0%          66.7%  Net
  layers   6.00  60.0%         100.0%  layers
  norm     1.00  10.0%           0.0%  norm

note: Nodes in a delegate that names no debug handles are joined to modules by their order of \
execution; those without a counterpart belong to what their whole partition is in."""


def test_a_profile_reads_from_the_bottleneck_to_the_details() -> None:
    assert profile_text(_PROFILE, rows=4) == _TEXT


@pytest.mark.parametrize("width", [40, 60, 80, 132])
def test_lines_fit_the_terminal(width: int) -> None:
    assert max(map(len, profile_text(_PROFILE, width=width).splitlines())) <= width


def test_without_modules_there_is_no_table_of_them() -> None:
    assert "module  " not in profile_text(_PROFILE.model_copy(update={"modules": None}))


def test_modules_that_only_call_another_stand_in_its_line() -> None:
    def module(path: str, *children: ModuleTime) -> ModuleTime:
        return ModuleTime(path=path, kind="a.K", total_ms=5, self_ms=0, children=children)

    leaf = module("a.0.b").model_copy(update={"self_ms": 5.0})
    tree = module("", module("a", module("a.0", leaf)))
    shown = profile_text(_PROFILE.model_copy(update={"modules": tree}))
    assert "\na.0.b   5.00" in shown
