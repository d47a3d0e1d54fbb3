"""A profile as text."""

from __future__ import annotations

from etdeploy.profile.calls import Reasons
from etdeploy.profile.model import ModuleTime, Profile
from etdeploy.profile.profiled import profile_from
from etdeploy.report.profile import TRACED, profile_text
from etdeploy.report.terminal import render
from tests.support.bench_values import make_record
from tests.support.report_values import make_profile
from tests.support.text_values import TRACED as METHODS
from tests.support.traces import TRACE

_PROFILE = profile_from(make_record([9.0]), TRACE, Reasons(None, None))


def test_a_profile_reads_from_the_bottleneck_to_the_details() -> None:
    text = render(profile_text(_PROFILE, rows=4))
    assert TRACED in text
    assert (
        text[text.index("  time goes to") :]
        == """\
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
  and 1 more: etdeploy profile -n 5, --json for each call

  module       ms  self ms  share  in a delegate  class
  ---------  ----  -------  -----  -------------  ------
  the model  9.00     2.00  90.0%          66.7%  Net
    layers   6.00     6.00  60.0%         100.0%  layers
    norm     1.00     1.00  10.0%           0.0%  norm

  note            Nodes in a delegate that names no debug handles are joined to modules by their
                  order of execution; those without a counterpart belong to what their whole
                  partition is in."""
    )


def _modules(profile: Profile) -> list[str]:
    text = render(profile_text(profile)).partition("  module  ")[2]
    return [line.split()[0] for line in text.splitlines()[2:] if line]


def test_modules_that_only_call_another_stand_in_its_line() -> None:
    def module(path: str, *children: ModuleTime) -> ModuleTime:
        return ModuleTime(path=path, kind="a.K", total_ms=5, self_ms=0, children=children)

    leaf = module("a.0.b").model_copy(update={"self_ms": 5.0})
    tree = module("", module("a", module("a.0", leaf)))
    assert _modules(_PROFILE.model_copy(update={"modules": tree}))[0] == "a.0.b"


def test_the_methods_of_generated_text_stand_first() -> None:
    profiles = [make_profile(method=each.method, text=each) for each in METHODS]
    lines = render(profile_text(profiles[0], profiles)).splitlines()
    assert [line.split()[:2] for line in lines[2:4]] == [["decode", "3"], ["prefill", "1"]]
