"""The page of a history."""

from __future__ import annotations

import json
import re
from typing import Any

from etdeploy.bench.records.conditions import Disturbance, DisturbanceKind
from etdeploy.history.entry import Judgement, entry_of
from etdeploy.history.model import Trend, trend_of
from etdeploy.history.series import series_of
from etdeploy.report.html.blocks import Figure, Folded, Table, Text
from etdeploy.report.html.figures.history import over_time
from etdeploy.report.html.page import render
from etdeploy.report.html.trends import trends_page
from tests.support.bench_values import make_device
from tests.support.histories import recipe_named, run_at

HOT = Disturbance(kind=DisturbanceKind.THROTTLED, text="slow & <hot>")


def trend(metric: str = "latency_ms", **changes: Any) -> Trend:
    """Twelve runs of 1 ms, one disturbed, then eight of 1.2 ms, the last of them regressed."""
    records = [
        *(run_at(i, 1.0 + i % 3 / 100, **changes) for i in range(12)),
        run_at(20, 7.0, disturbances=(HOT,), **changes),
        *(run_at(60 + i, 1.2 + i % 3 / 100, **changes) for i in range(8)),
    ]
    entries = [entry_of(record)[0] for record in records]
    entries[-1] = type(entries[-1])(**{**vars(entries[-1]), "judgement": Judgement.REGRESSED})
    return trend_of(series_of(records[0]), entries, metric, 500)


def test_the_plot_has_points_levels_and_changes() -> None:
    figure = over_time("plot", trend())
    runs, others, levels = figure.data
    assert runs["x"] == [*range(12), *range(13, 21)]
    assert runs["marker"]["color"] == ["@blue"] * 19 + ["@red"]
    assert (others["x"], others["y"], others["name"]) == ([12], [7.0], "not used")
    assert "slow &amp; &lt;hot&gt;" in others["text"][0]
    assert levels["x"] == [-0.4, 12.4, None, 12.6, 20.4, None]
    assert levels["y"] == [1.01, 1.01, None, 1.21, 1.21, None]
    [line] = figure.layout["shapes"]
    assert line["x0"] == 12.5
    [words] = figure.layout["annotations"]
    assert words["text"] == "+19.8 %"
    # All of one day: their times.
    assert figure.layout["xaxis"]["ticktext"][:2] == ["00:00", "00:00"]


def test_memory_is_in_megabytes() -> None:
    figure = over_time("plot", trend("peak_rss_bytes"))
    assert figure.layout["yaxis"]["title"]["text"] == "peak memory (MB)"
    assert set(figure.data[0]["y"]) == {32.7}


def test_the_page_of_several_series() -> None:
    phone = trend(device=make_device("android", name="android:R5", serial="R5", model="Pixel 9"))
    page = trends_page([trend(), phone], more=3)
    assert page.title == "Latency over time"
    assert page.subtitle.startswith("42 runs of 2 series, the latest of 2026-11-21 00:01:07")
    assert [card.label for card in page.cards] == [
        "mlp on host (Test CPU)", "mlp on android:R5 (Pixel 9)",
    ]  # fmt: skip
    assert page.cards[0].lines[0] == "latest of 500 runs"
    assert page.notices == (Text("3 more series are not shown.", "quiet"),)
    figure, changes, folded = page.sections[1].blocks
    assert isinstance(figure, Figure)
    assert isinstance(changes, Table)
    assert [cell.text for cell in changes.rows[0]][1:4] == ["1.010 ms", "1.210 ms", "+19.8 %"]
    assert isinstance(folded, Folded)
    [runs] = folded.blocks
    assert isinstance(runs, Table)
    assert runs.rows[0][-1].text == "checked: regressed"
    assert runs.rows[8][-1].text == "not used: slow & <hot>"


def test_a_series_without_the_number() -> None:
    page = trends_page([trend("latency_ms@long")])
    [section] = page.sections
    [text] = section.blocks
    assert isinstance(text, Text)
    assert page.cards[0].value == "no value"


def test_names_are_text_in_the_page() -> None:
    strange = recipe_named("</script><script>alert(1)</script>")
    html = render(trends_page([trend(recipe=strange)]))
    assert "<script>alert" not in html
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found
    assert len(json.loads(found[1])["figures"]) == 1
