"""Reports in a real browser: opened from the disk, clicked, searched, on a phone, in the dark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from etdeploy.report.formats import Format, render_report
from etdeploy.report.report_data import Report, ReportData
from tests.support.bench_values import SIMULATED, make_run
from tests.support.browser import chromium, opened
from tests.support.report_values import (
    HOSTILE,
    make_comparison,
    make_profile,
    make_report_data,
    renamed,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def _written(folder: Path, report: Report) -> Path:
    file = folder / "report.html"
    file.write_text(render_report(report, Format.HTML), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with 5,000 operators."""
    run = make_report_data()
    run = ReportData(run.run, run.name, run.plan, (make_profile(5_000),))
    return _written(tmp_path_factory.mktemp("large"), Report((run,)))


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five runs, one of them simulated."""
    runs = [renamed(make_report_data(base_ms=12 + i), f"recipe-{i}") for i in range(4)]
    runs.append(ReportData(make_run(simulated=SIMULATED), "simulation"))
    report = Report(tuple(runs), tuple(make_comparison(run) for run in runs[1:]))
    return _written(tmp_path_factory.mktemp("several"), report)


def _rows(page: Page) -> Locator:
    return page.locator(".large tr.row")


def _column(page: Page, number: int) -> list[str]:
    return _rows(page).locator(f"td:nth-child({number})").all_inner_texts()


def test_the_bar_with_buttons_shows_on_hover_and_covers_no_plot(
    browser: Browser, large: Path
) -> None:
    with opened(browser, large) as page:
        plot = page.locator("#plot-latency")
        group = plot.locator(".modebar-group").first
        opacity = "element => getComputedStyle(element).opacity"
        assert group.evaluate(opacity) == "0"
        plot.hover()
        page.wait_for_function(
            "() => getComputedStyle(document.querySelector('#plot-latency .modebar-group'))"
            ".opacity === '1'"
        )
        bar, drawn = group.bounding_box(), plot.locator(".nsewdrag").first.bounding_box()
        assert bar is not None
        assert drawn is not None
        assert bar["y"] + bar["height"] <= drawn["y"]


def test_every_plot_is_drawn(browser: Browser, large: Path) -> None:
    with opened(browser, large) as page:
        keys = page.locator(".canvas").evaluate_all("all => all.map(e => e.id)")
        assert len(keys) == 8
        for key in keys:
            assert page.locator(f"#{key} svg.main-svg").count() >= 1, key
            assert page.locator(f"#{key}").get_attribute("aria-label")
        assert not page.locator("#trouble").is_visible()
        assert page.locator("h1").inner_text().startswith("mlp on android:R5CT20")


def test_a_click_on_a_module_goes_into_it(browser: Browser, large: Path) -> None:
    with opened(browser, large) as page:
        plot = page.locator("#plot-modules")
        assert plot.locator("g.slice").count() == 1 + 4 + 12
        plot.get_by_text("layers.2", exact=True).first.click(force=True)
        # The bar above then has the way back.
        plot.locator("g.pathbar").first.wait_for()


def test_operators_are_sorted_by_mouse_and_keyboard(browser: Browser, large: Path) -> None:
    with opened(browser, large) as page:
        head = page.get_by_role("columnheader", name="self")
        assert head.get_attribute("aria-sort") == "descending"
        falling = [float(text) for text in _column(page, 5)]
        assert falling == sorted(falling, reverse=True)
        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == "ascending"
        rising = [float(text) for text in _column(page, 5)]
        assert rising == sorted(rising)
        assert rising[0] < falling[-1]
        name = page.get_by_role("columnheader", name="operator")
        name.get_by_role("button").focus()
        page.keyboard.press("Enter")
        assert name.get_attribute("aria-sort") == "ascending"
        assert head.get_attribute("aria-sort") is None
        names = page.locator(".large tr.row td:first-child code").all_inner_texts()
        assert names == sorted(names, key=str)


def test_a_search_finds_names_modules_and_reasons(browser: Browser, large: Path) -> None:
    with opened(browser, large) as page:
        said, box = page.locator(".large output"), page.get_by_label("Search")
        assert said.inner_text() == "4,992 rows"
        box.fill("layers.2.norm")
        assert said.inner_text() == "416 of 4,992 rows"
        box.fill("LAYERS.2.norm  no kernel")
        assert said.inner_text() == "416 of 4,992 rows"
        box.fill("none of these")
        assert said.inner_text() == "0 of 4,992 rows"
        assert page.get_by_text("Nothing matches.").is_visible()
        box.fill("")
        page.get_by_label("Runs on").select_option("CPU kernels")
        assert said.inner_text() == "1,664 of 4,992 rows"
        assert {text.splitlines()[0] for text in _column(page, 2)} == {"CPU kernels"}


def test_of_many_rows_those_in_sight_are_in_the_document(browser: Browser, large: Path) -> None:
    with opened(browser, large) as page:
        assert _rows(page).count() < 60
        last = "tr.row[aria-rowindex='4993']"
        assert page.locator(last).count() == 0
        page.locator(".rows").evaluate("box => { box.scrollTop = box.scrollHeight }")
        page.locator(last).wait_for()
        assert _rows(page).count() < 60
        assert page.locator(last).is_visible()


def test_the_theme_is_the_system_s_until_it_is_chosen(browser: Browser, large: Path) -> None:
    with opened(browser, large, scheme="dark") as page:
        assert page.locator("html").get_attribute("data-theme") == "dark"
        ticks = page.locator("#plot-latency .xtick text").first
        before = ticks.evaluate("text => getComputedStyle(text).fill")
        page.get_by_role("button", name="light theme").click()
        assert page.locator("html").get_attribute("data-theme") == "light"
        page.locator(".xtick text").first.wait_for()
        page.wait_for_timeout(200)
        assert ticks.evaluate("text => getComputedStyle(text).fill") != before


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("fixture", ["large", "several"])
def test_a_narrow_page_has_nothing_beside_it(
    browser: Browser, fixture: str, scheme: str, request: pytest.FixtureRequest
) -> None:
    with opened(browser, request.getfixturevalue(fixture), 400, scheme) as page:
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width == 400
        wide = page.locator("body *").evaluate_all(
            "all => all.filter(e => !e.closest('.scroll, pre, nav, svg, .skip')"
            " && e.getBoundingClientRect().right > innerWidth + 1)"
            ".map(e => e.outerHTML.slice(0, 80))"
        )
        assert wide == []
        names = _rows(page).first.locator("td").first.bounding_box()
        assert names
        assert names["width"] >= 120


def test_the_keyboard_reaches_the_content(browser: Browser, large: Path) -> None:
    with opened(browser, large) as page:
        page.keyboard.press("Tab")
        skip = page.get_by_role("link", name="Skip to the content")
        assert skip.evaluate("link => link === document.activeElement")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"


def test_text_can_be_read_on_its_ground(browser: Browser, large: Path) -> None:
    for scheme in ("light", "dark"):
        with opened(browser, large, scheme=scheme) as page:
            for name, ground in (("text", "surface"), ("muted", "surface"), ("muted", "page"),
                                 ("good", "good-soft"), ("warn", "warn-soft"),
                                 ("bad", "bad-soft"), ("accent", "page")):  # fmt: skip
                ratio = _contrast(_colour(page, name), _colour(page, ground))
                # WCAG 2, level AA.
                assert ratio >= 4.5, f"{scheme}: {name} on {ground} has {ratio:.2f}"


def _colour(page: Page, name: str) -> tuple[float, ...]:
    text = str(page.evaluate(f"getComputedStyle(document.documentElement)"
                             f".getPropertyValue('--{name}')")).strip()  # fmt: skip
    return tuple(int(text[i : i + 2], 16) / 255 for i in (1, 3, 5))


def _contrast(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """The ratio of the relative luminances, by WCAG 2."""
    light, dark = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: tuple[float, ...]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_the_record_inside_can_be_read_and_saved(
    browser: Browser, large: Path, tmp_path: Path
) -> None:
    record = make_report_data().record
    with opened(browser, large) as page:
        page.get_by_text("All figures as JSON").click()
        # The browser tells the page of an opened part in a later task than the click's.
        shown = page.locator(".record pre:not(:empty)").inner_text()
        assert json.loads(shown)["run_id"] == record.run_id
        with page.expect_download() as waiting:
            page.get_by_role("button", name="Save").click()
        assert waiting.value.suggested_filename == f"{record.run_id}.json"
        waiting.value.save_as(tmp_path / "record.json")
    assert json.loads((tmp_path / "record.json").read_text()) == record.model_dump(mode="json")


def test_no_name_becomes_markup(browser: Browser, tmp_path: Path) -> None:
    operator = make_profile().operators[0].model_copy(
        update={"name": HOSTILE, "module": HOSTILE, "delegate": HOSTILE}
    )  # fmt: skip
    run = renamed(make_report_data(notes=(HOSTILE,)), HOSTILE)
    root = make_profile().modules
    assert root
    profile = make_profile(
        operators=(operator,), bottleneck=HOSTILE, shares={HOSTILE: 0.5, "@blue": 0.5},
        modules=root.model_copy(update={"path": HOSTILE, "kind": HOSTILE}),
    )  # fmt: skip
    run = ReportData(run.run, HOSTILE, run.plan, (profile,))
    single = _written(tmp_path, Report((run,)))
    with opened(browser, single) as page:
        assert HOSTILE in page.locator("h1").inner_text()
        assert page.locator(".large td:first-child code").inner_text() == HOSTILE
        assert page.locator("a[href*=evil]").count() == 0
        page.locator("#plot-modules g.slice").first.hover(force=True)
        page.locator("#plot-shares .bars path").first.hover(force=True)
    compared = _written(tmp_path, Report((run, run), (make_comparison(run, reason=HOSTILE),)))
    with opened(browser, compared) as page:
        page.locator("#plot-ratios .points path").first.hover(force=True)
        assert page.locator("a[href*=evil]").count() == 0


def test_several_runs_are_compared(browser: Browser, several: Path) -> None:
    with opened(browser, several) as page:
        for key in ("plot-ratios", "plot-distributions", "plot-runs"):
            assert page.locator(f"#{key} svg.main-svg").count() >= 1, key
        verdicts = page.get_by_role("region", name="Runs and verdicts")
        assert verdicts.locator("tbody tr").count() == 5
        runs = page.get_by_role("region", name="Runs", exact=True)
        assert re.search(r"simulation\s+host\s+simulated", runs.inner_text())
        names = page.locator("#plot-runs .xtick text").all_text_contents()
        assert names == [f"recipe-{i}" for i in range(4)]
        page.get_by_label("Search").fill("layers.0.norm")
        assert re.fullmatch(r"\d+ of \d+ rows", page.locator(".large output").inner_text())


def test_a_browser_that_cannot_draw_says_so(browser: Browser, large: Path) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.add_init_script("delete window.DecompressionStream")
        page.goto(large.as_uri())
        page.locator("#trouble").wait_for()
        assert "The tables have the numbers." in page.locator("#trouble").inner_text()
        assert _rows(page).count() > 10


def test_it_prints_with_everything_unfolded(browser: Browser, large: Path, tmp_path: Path) -> None:
    with opened(browser, large) as page:
        page.pdf(path=tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
