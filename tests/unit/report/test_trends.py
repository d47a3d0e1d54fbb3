"""A history as a page and as text."""

from __future__ import annotations

import json
import re
from typing import Any

from etdeploy.bench.records.performance import Disturbance, DisturbanceKind
from etdeploy.history.entry import CommitLinks, Judgement, entry_from
from etdeploy.history.nights import DeviceHealth, DeviceWeek
from etdeploy.history.series import series_from
from etdeploy.history.trend import SeriesTrends, Trend, compute_series_trends, compute_trend
from etdeploy.report.document import Figure, Folded, LargeTable, Table, Text, Timeline
from etdeploy.report.html import HISTORY_MARK, MARK, render
from etdeploy.report.plots import plot_trend
from etdeploy.report.terminal import render as terminal_text
from etdeploy.report.trends import (
    SeriesIndex,
    device_table,
    devices_page,
    list_text,
    series_page,
    trend_text,
    trends_page,
)
from tests.support.bench_values import make_device
from tests.support.histories import make_alert, recipe_named, run_at
from tests.support.judged_nights import revision, run_of

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


LINKS = CommitLinks(
    "https://git.example.org/m/commit/{id}",
    "https://git.example.org/m/compare/{old}...{new}",
    frozenset({revision(9), revision(10)}),
)


def months(**changes: Any) -> SeriesTrends:
    """Twenty nights with two repeats; the tenth and all later ones are slower, with torch 3."""
    records = [
        run_of(
            day, i, (1.0 if day < 10 else 1.2) + day % 3 / 100 + i / 1000,
            versions={"torch": "2" if day < 10 else "3"},
            disturbances=(HOT,) if (day, i) == (4, 1) else (), **changes,
        )
        for day in range(20) for i in range(2)
    ]  # fmt: skip
    first_bad = records[20]
    of = series_from(records[0])
    alerts = (
        make_alert(
            id=7, series=of.key, first_bad_run=first_bad.run_id, reason="latency is <slow>",
            old_revision=revision(9), new_revision=revision(10),
        ),
        make_alert(id=3, series=of.key, state="fixed"),
    )  # fmt: skip
    return compute_series_trends(of, [entry_from(record)[0] for record in records], alerts)


def test_the_page_of_a_series_has_every_run_and_what_changed() -> None:
    trends = months()
    page = series_page(trends, "xnnpack", LINKS)
    assert page.title == "mlp on android:S1 (Test CPU), xnnpack"
    assert page.subtitle.startswith(f"series {trends.series.key}; 40 runs in 20 nights, the latest")
    assert [section.key for section in page.sections] == [
        "alerts", "runs", "changes", "surroundings",
    ]  # fmt: skip
    [timeline] = page.sections[1].blocks
    assert isinstance(timeline, Timeline)
    payload = json.loads(json.dumps(timeline.payload))
    runs, latency = payload["runs"], payload["metrics"][0]
    assert len(set(runs["id"])) == 40
    assert runs["night"] == [day for day in range(20) for _ in range(2)]
    assert runs["at"][1] - runs["at"][0] == 2 * 3600
    assert runs["used"].count(0) == 1
    assert payload["strings"][runs["remark"][9]] == "slow & <hot>"
    assert (latency["title"], latency["unit"], latency["values"][0]) == ("latency", "ms", 1.0)
    assert latency["changes"] == [{"run": 20, "before": 1.01025, "after": 1.2105}]
    assert [metric["name"] for metric in payload["metrics"]][1:3] == [
        "first_inference_ms", "load_ms",
    ]  # fmt: skip
    assert payload["surrounding_changes"] == [[20, "torch 2 -> 3"]]
    assert payload["surroundings"][runs["surroundings"][39]]["torch"] == "3"
    known = {each["id"] for each in payload["commits"] if each["known"]}
    assert known == {revision(9), revision(10)}
    assert payload["alerts"] == [
        {"run": 20, "metric": "latency_ms", "text": "alert 7, open: latency is <slow>"}
    ]


def test_open_alerts_and_changes_are_tables() -> None:
    page = series_page(months(), "", LINKS)
    [alerts], [changes] = page.sections[0].blocks, page.sections[2].blocks
    assert isinstance(alerts, Table)
    assert isinstance(changes, Table)
    assert page.badges[0].text == "1 open alert"
    [row] = alerts.rows
    assert [cell.text for cell in row][:4] == ["7", "open", "latency", "+20.0 %"]
    assert row[5].text == f"{revision(9)[:12]}..{revision(10)[:12]}"
    assert row[5].address.endswith(f"/compare/{revision(9)}...{revision(10)}")
    assert [cell.text for cell in changes.rows[0]][1:5] == [
        "latency", "1.010 ms", "1.210 ms", "+19.8 %",
    ]  # fmt: skip
    [unlinked] = series_page(months(), "", CommitLinks()).sections[0].blocks
    assert isinstance(unlinked, Table)
    assert unlinked.rows[0][5].address == ""


def test_a_history_s_page_is_small_and_no_report() -> None:
    hostile = "</script><img src=x onerror=alert(1)>"
    page = series_page(months(), hostile, LINKS)
    text = render(page, HISTORY_MARK)
    assert text.startswith(HISTORY_MARK)
    assert not text.startswith(MARK)
    assert hostile not in text
    assert 'src="' not in text
    assert 'id="plots"' not in text
    assert len(text) < 60_000


def test_the_index_has_a_row_for_each_number() -> None:
    index = SeriesIndex()
    index.add(months(), "xnnpack")
    page = index.page("one series")
    [listing] = page.sections[0].blocks
    assert isinstance(listing, LargeTable)
    rows, strings = listing.payload["rows"], listing.payload["strings"]
    assert len(rows) == 5
    row = rows[0]
    assert [strings[row[i]] for i in (0, 1, 2, 4, 7)] == [
        "mlp", "latency", "1.210 ms", "2026-11-11", "2026-11-20",
    ]  # fmt: skip
    assert (row[3], row[6], row[12]) == (19.82, 1, 1.2105)
    assert strings[row[9]] == "android:S1 (Test CPU)"
    assert strings[row[10]] == f"series-{months().series.key}.html#metric=latency_ms"
    assert strings[row[11]] == "android:S1 (Test CPU), xnnpack"
    assert [strings[each[8]] for each in rows[1:]] == [""] * 4
    assert [each[3] for each in rows[1:]] == [None] * 4
    assert [listing.payload["filters"], page.badges[0].text] == [[9, 0, 1], "1 open alert"]


def test_a_series_without_a_number_has_a_page_and_no_row() -> None:
    of = months()
    empty = SeriesTrends(of.series, (), {})
    assert "No run of this series" in render(series_page(empty, "", LINKS), HISTORY_MARK)
    index = SeriesIndex()
    index.add(empty, "")
    assert index.rows == []


def device(**latest: Any) -> DeviceHealth:
    """Six quiet weeks, and one with these numbers."""
    calm = [
        DeviceWeek(week=f"2026-10-{5 + i:02d}", attempts=10, failed_percent=0.0, runs=10,
                   disturbed_percent=0.0) for i in range(6)
    ]  # fmt: skip
    last = DeviceWeek(week="2026-11-30", **latest)
    return DeviceHealth(
        device="android:S1", identity="android-S1", quarantined="hot", weeks=(*calm, last)
    )


def test_a_device_that_fails_more_than_before_stands_out() -> None:
    worse = device(attempts=10, failed=8, failed_percent=80.0, runs=10, disturbed=1)
    [row] = device_table([worse]).rows
    assert [cell.text for cell in row] == [
        "android:S1", "20 %", "0 %", "2.5 %", "0 %", "–", "–", row[7].text, "hot",
    ]  # fmt: skip
    assert (row[1].tone, row[3].tone) == ("warn", "")
    assert len(row[7].text) == 7
    assert "20 %" in terminal_text([device_table([worse])], 120)
    page = devices_page([worse], "by week")
    [weeks] = page.sections[1].blocks
    assert isinstance(weeks, LargeTable)
    assert weeks.payload["rows"][-1][2:] == [10, 8, 0, 80.0, 10, 1, None, 0]


def test_a_history_without_devices() -> None:
    page = devices_page([], "")
    assert page.sections == ()
    assert page.notices == (Text("There is no device yet.", "quiet"),)
    assert device_table([]).rows == ()
