"""The plots' values: what is drawn is what was measured."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from etdeploy.bench.statistics import summarize
from etdeploy.profile.model import ModuleTime
from etdeploy.report.plots import escape, thin_out, visible_range
from etdeploy.report.plots_device import (
    plot_device,
    plot_memory,
    plot_sustained,
    plot_threads,
)
from etdeploy.report.plots_latency import (
    plot_distributions,
    plot_histogram,
    plot_ratios,
    plot_runs,
    plot_starts,
)
from etdeploy.report.profile import delegate_colours, plot_modules
from tests.support.report_values import (
    make_comparison,
    make_full_record,
    make_phone,
    make_profile,
    make_report_data,
    make_starts,
    renamed,
)


def test_a_name_is_no_markup_and_no_colour() -> None:
    assert escape("<b>@blue &lt;") == "&lt;b&gt;&#64;blue &amp;lt;"


def test_a_few_long_inferences_do_not_squeeze_the_others() -> None:
    samples = [1 + i / 1000 for i in range(300)] + [90.0]
    window = visible_range(samples)
    assert window
    assert window[1] < 2
    figure = plot_histogram("key", summarize(samples))
    assert figure.caption.startswith("1 inference ")
    assert "90 ms" in figure.caption
    assert sum(figure.data[0]["y"]) == 300
    assert visible_range(samples[:-1]) is None
    assert visible_range([math.nan]) is None


def test_starts_keep_their_samples_in_order_and_disturbed_ones_their_colour() -> None:
    starts, samples = make_starts(3, 10, disturbed=(1,))
    figure = plot_starts("key", starts, summarize(samples))
    calm, disturbed, medians = figure.data
    assert (len(calm["x"]), len(disturbed["x"])) == (20, 10)
    assert disturbed["marker"]["color"] == "@orange"
    assert disturbed["y"] == pytest.approx(samples[10:20], rel=1e-5)
    assert all(1.6 < x < 2.4 for x in disturbed["x"])
    assert medians["y"][::3] == pytest.approx([start.median_ms for start in starts], rel=1e-5)
    assert "lowered its frequency" in medians["text"][3]


def test_many_samples_are_thinned_evenly() -> None:
    picked = thin_out(list(range(10_000)), 300)
    assert len(picked) <= 300
    assert picked[1][0] - picked[0][0] == picked[-1][0] - picked[-2][0]


def test_the_icicle_has_every_module_under_its_parent() -> None:
    profile = make_profile()
    assert profile.modules
    [trace] = plot_modules("key", profile, profile.modules).data
    assert len(trace["ids"]) == len(set(trace["ids"])) == 1 + 4 + 12
    assert trace["parents"][0] == ""
    assert set(trace["parents"][1:]) <= set(trace["ids"])
    assert "layers.2" in trace["labels"]
    total = sum(trace["values"])
    assert total == pytest.approx(profile.modules.total_ms, rel=1e-4)


def test_a_module_has_the_colour_of_what_computes_it() -> None:
    children = tuple(
        ModuleTime(path=name or "k", kind="", total_ms=1, self_ms=1, delegates={name: 1.0})
        for name in ("A", "B", "")
    )
    root = ModuleTime(path="", kind="M", total_ms=3, self_ms=0,
                      delegates={"A": 1.0, "B": 1.0, "": 1.0}, children=children)  # fmt: skip
    colours = delegate_colours(root)
    assert list(colours) == ["A", "B", "CPU kernels", "several"]
    assert len(set(colours.values())) == 4
    [trace] = plot_modules("key", make_profile(modules=root), root).data
    assert trace["marker"]["colors"] == [colours[n] for n in ("several", "A", "B", "CPU kernels")]


def test_a_deep_model_is_no_recursion() -> None:
    module = ModuleTime(path="end", kind="", total_ms=1, self_ms=1, delegates={"": 1.0})
    for depth in range(400):
        module = ModuleTime(path=str(depth), kind="", total_ms=1, self_ms=0, children=(module,))
    [trace] = plot_modules("key", make_profile(), module).data
    assert len(trace["ids"]) == 401


def test_a_device_that_reports_nothing_has_no_plot() -> None:
    bare = [s.model_copy(update={"state": type(s.state)()}) for s in make_phone().during]
    assert plot_device("key", bare) is None


def test_ratios_without_a_number_are_not_drawn() -> None:
    a, b = make_report_data(), renamed(make_report_data(), "b")
    none = make_comparison(b, ratio=None)
    assert plot_ratios("key", ["b"], [none]) is None
    figure = plot_ratios("key", ["b", "c"], [none, make_comparison(a)])
    assert figure
    [trace] = figure.data
    assert (trace["x"], trace["y"]) == ([1.08], ["c"])
    assert (trace["error_x"]["array"], trace["error_x"]["arrayminus"]) == ([0.03], [0.03])


def test_distributions_are_shares_of_each_run() -> None:
    runs = [make_report_data(), renamed(make_report_data(base_ms=14.0), "slow")]
    for trace in plot_distributions("key", runs).data:
        assert sum(trace["y"]) == pytest.approx(100, rel=1e-3)
    medians = plot_runs("key", runs).data[-1]["y"]
    assert len(medians) == 2 * 5 * 3


def _all_figures() -> list[Any]:
    record = make_full_record()
    assert record.inference.sustained
    assert record.memory
    run = make_report_data()
    return [
        plot_threads("key", record.inference.threads),
        plot_sustained("key", record.inference.sustained),
        plot_memory("key", record.memory),
        plot_distributions("key", [run, run]),
    ]


@pytest.mark.parametrize("figure", _all_figures(), ids=lambda figure: figure.label)
def test_figures_are_json_and_say_what_they_show(figure: Any) -> None:
    json.dumps([figure.data, figure.layout], allow_nan=False)
    assert figure.label
    # Text that begins with @ is a colour of the theme.
    known = {"@blue", "@orange", "@green", "@red", "@purple", "@sky", "@yellow", "@grey", "@text",
             "@muted", "@faint", "@sunken", "@surface", "@line", "@onfill"}  # fmt: skip
    assert set(_colours([figure.data, figure.layout])) <= known


def _colours(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [found for each in value.values() for found in _colours(each)]
    if isinstance(value, list | tuple):
        return [found for each in value for found in _colours(each)]
    return [value] if isinstance(value, str) and value.startswith("@") else []
