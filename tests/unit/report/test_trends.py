"""A history as a page and as text."""

from __future__ import annotations

import json
import re
from typing import Any

from etdeploy.bench.records.performance import Disturbance, DisturbanceKind
from etdeploy.history.entry import Judgement, entry_from
from etdeploy.history.series import series_from
from etdeploy.history.trend import Trend, compute_trend
from etdeploy.report.document import Figure, Folded, Table, Text
from etdeploy.report.html import render
from etdeploy.report.terminal import render as terminal_text
from etdeploy.report.trends import list_text, plot_trend, trend_text, trends_page
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
    entries = [entry_from(record)[0] for record in records]
    entries[-1] = type(entries[-1])(**{**vars(entries[-1]), "judgement": Judgement.REGRESSED})
    return compute_trend(series_from(records[0]), entries, metric, 500)


def test_the_plot_has_points_levels_and_changes() -> None:
    figure = plot_trend("plot", trend())
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
    figure = plot_trend("plot", trend("peak_rss_bytes"))
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


def stairs() -> Trend:
    """Twelve runs of about 1 ms, then six of about 1.5 ms with another recipe and torch."""
    old = {"recipe": recipe_named("mlp", git_revision="a" * 40, git_dirty=False)}
    new = {"recipe": recipe_named("mlp", git_revision="b" * 40, git_dirty=True)}
    wiggle = (0, 0.01, -0.01, 0.02, -0.02)
    records = [
        *(run_at(i, 1.0 + wiggle[i % 5], **old) for i in range(12)),
        *(run_at(60 + i, 1.5 + wiggle[i % 5], versions={"torch": "3"}, **new) for i in range(6)),
    ]
    entries = [entry_from(record)[0] for record in records]
    return compute_trend(series_from(records[0]), entries, "latency_ms", 1234)


def test_the_text_of_one_series() -> None:
    head, changes, runs = terminal_text(trend_text(stairs(), None)).rsplit("\n\n", 2)
    assert (
        head
        == """\
mlp on host (Test CPU): xnnpack

  series          c4f99eab5b8272b8, 1,234 runs in the history
  latency         1.500 ms: ▁▁▁▁▁▁▁▁▁▁▁▁██████  18 runs
  median          1.500 ms: since the last change, spread between runs 0.99 %"""
    )
    assert " ".join(changes.splitlines()[2].split()) == (
        f"2026-11-21 00:01 1.000 ms 1.500 ms +50.0 % {run_at(60).run_id} recipe aaaaaaaaaa -> "
        "bbbbbbbbbb with changes; etdeploy 0 -> none; torch none -> 3"
    )
    lines = runs.splitlines()
    assert lines[0].split() == ["started", "latency", "spread", "run", "recipe", "remark"]
    assert len(lines) == 12
    assert lines[-1].split() == [
        "2026-11-21", "00:01", "1.500", "ms", "-", run_at(65).run_id, "bbbbbbbbbb",
    ]  # fmt: skip


def test_disturbed_runs_and_missing_numbers_in_the_text() -> None:
    text = terminal_text(trend_text(trend(), 80))
    assert "not used: slow & <hot>" in " ".join(text.split())
    assert "32.7 MB" in terminal_text(trend_text(trend("peak_rss_bytes"), 80))
    steady = [entry_from(run_at(i, 1.0))[0] for i in range(9)]
    same = compute_trend(series_from(run_at(0)), steady, "latency_ms", 9)
    assert "  changes         none found" in terminal_text(trend_text(same, 80))
    assert "  latency at long no run has it" in terminal_text(
        trend_text(trend("latency_ms@long"), 80)
    )


def test_the_list_of_several_series() -> None:
    phone = run_at(3, 12.0, device=make_device("android", name="android:R5", serial="R5",
                                               model="Pixel 9"))  # fmt: skip
    other = compute_trend(series_from(phone), [entry_from(phone)[0]], "latency_ms", 1)
    text = terminal_text([list_text([stairs(), other], 3)])
    first, second = stairs().series.short_key, other.series.short_key
    assert text.splitlines()[:4] == [
        "  series    recipe  device                 runs  last         latency  spread  backend  "
        "trend",
        "  --------  ------  --------------------  -----  ----------  --------  ------  -------  "
        "------------------",
        f"  {first}  mlp     host (Test CPU)       1,234  2026-11-21  1.500 ms  0.99 %  xnnpack  "
        "▁▁▁▁▁▁▁▁▁▁▁▁██████",
        f"  {second}  mlp     android:R5 (Pixel 9)      1  2026-11-21  12.00 ms       -  xnnpack  "
        "▅",
    ]
    assert text.splitlines()[-1].startswith("  and 3 more series")
