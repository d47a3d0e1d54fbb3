"""Pages of a history in a real browser: filters of the index, and two runs side by side."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from etdeploy.cli.verbs.history import write_history_pages
from etdeploy.history.location import require_location
from etdeploy.history.store.alerts import save_alert
from etdeploy.history.store.store import Filter, open_store
from tests.support.browser import Opened, chromium, opened
from tests.support.histories import make_alert
from tests.support.judged_nights import keep_nights
from tests.support.report_values import HOSTILE
from tests.support.shelf_weeks import keep_weeks

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.integration
SLOW = [1.0] * 15 + [1.2] * 10


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def _git(folder: Path, *arguments: str) -> str:
    line = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def commit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The only commit of the repository in the working folder."""
    folder = tmp_path_factory.mktemp("repository")
    _git(folder, "init", "--quiet")
    _git(folder, "remote", "add", "origin", "https://anna:secret@git.example.org/team/models.git")
    _git(folder, "commit", "--quiet", "--allow-empty", "--message", "first")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield _git(folder, "rev-parse", "HEAD")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, commit: str) -> Path:
    """25 nights of two recipes on two phones; one became slower, in a commit that is known."""
    folder = tmp_path_factory.mktemp("history")
    place = require_location(str(folder / "history.db"))
    with open_store(place) as store:
        keep_weeks(store)
        keep_nights(store, [1.0] * 10, HOSTILE, "S1")
        keep_nights(store, [2.0] * 10, "conv", "S2")
        keep_nights(store, SLOW[:15], "mlp", "S2", versions={"torch": "2.13.0"})
        keep_nights(store, SLOW[15:], "mlp", "S2", first=15, revision=commit,
                    versions={"torch": "2.14.0"})  # fmt: skip
        [slow] = [s.series.key for s in store.series(Filter(recipe="mlp", device="S2"))]
        with store.transaction(writes=True) as connection:
            save_alert(connection, make_alert(series=slow, reason="latency is <b>1.2 ms</b>"))
        assert write_history_pages(store, place, Filter(), folder / "pages")
    return folder / "pages"


def _slow_page(browser: Browser, pages: Path) -> str:
    with opened(browser, pages / "index.html") as page:
        page.get_by_label("Search").fill("S2")
        page.get_by_label("Recipe").select_option("mlp")
        page.get_by_label("Number").select_option("latency")
        address = page.locator(".large tr.row a").get_attribute("href")
    assert address is not None
    assert address.endswith("#metric=latency_ms")
    return address.partition("#")[0]


def _rows(page: Page) -> list[str]:
    return page.locator(".large tr.row td:nth-child(1)").all_inner_texts()


def test_the_index_is_filtered_by_device_recipe_and_number(browser: Browser, pages: Path) -> None:
    with opened(browser, pages / "index.html") as page:
        count = page.locator(".controls output")
        assert count.inner_text() == "20 rows"
        # What changed last comes first.
        assert _rows(page)[0].splitlines() == ["mlp", "android:S2 (Test CPU), xnnpack"]
        first = page.locator(".large tr.row").first.locator("td")
        assert first.nth(2).inner_text().endswith(" ms")
        assert first.nth(3).inner_text().startswith(("+20", "+19"))
        assert [first.nth(i).inner_text() for i in (1, 4, 6)] == ["latency", "2026-11-16", "1"]
        page.get_by_label("Device").select_option("android:S1 (Test CPU)")
        assert count.inner_text() == "10 of 20 rows"
        page.get_by_label("Number").select_option("load")
        assert count.inner_text() == "2 of 20 rows"
        page.get_by_label("Recipe").select_option(HOSTILE)
        assert [text.splitlines()[0] for text in _rows(page)] == [HOSTILE]
        page.get_by_label("Device").select_option("android:S2 (Test CPU)")
        assert page.locator(".none").inner_text() == "Nothing matches."


def _side_by_side(page: Page) -> dict[str, list[str]]:
    rows = page.locator(".pair tbody tr").all()
    return {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in rows}


def test_two_nights_runs_and_commits_side_by_side(
    browser: Browser, pages: Path, commit: str
) -> None:
    with opened(browser, pages / _slow_page(browser, pages)) as page:
        # The nights before and after the change.
        shown = _side_by_side(page)
        assert [text[:10] for text in shown["started"][:2]] == ["2026-11-15", "2026-11-16"]
        assert shown["runs that count"][:2] == ["3 of 3", "3 of 3"]
        before, after, change = shown["latency"]
        assert (round(float(before.split()[0]), 1), round(float(after.split()[0]), 1)) == (1.0, 1.2)
        assert (before[-3:], after[-3:]) == (" ms", " ms")
        assert change.startswith(("+19", "+20"))
        assert shown["torch"] == ["2.13.0", "2.14.0", ""]
        assert shown["recipe's commit"][:2] == ["0e" * 5, commit[:10]]
        assert page.locator(".pair tr.differs th").all_inner_texts() == ["recipe's commit", "torch"]
        link = page.locator(".pair a")
        assert link.get_attribute("href") == f"https://git.example.org/team/models/commit/{commit}"
        page.get_by_role("button", name="Swap").click()
        assert _side_by_side(page)["torch"][:2] == ["2.14.0", "2.13.0"]

        page.get_by_label("Compare").select_option("commit")
        a, b = page.locator("select.a"), page.locator("select.b")
        assert a.locator("option").count() == 16
        b.select_option(index=15)
        assert _side_by_side(page)["runs that count"][1] == "30 of 30"

        page.get_by_label("Compare").select_option("run")
        a.select_option(index=0)
        b.select_option(index=1)
        shown = _side_by_side(page)
        assert [text[:16] for text in shown["started"][:2]] == [
            "2026-11-01 04:00",
            "2026-11-01 06:00",
        ]
        assert len({*shown["run"][:2]}) == 2


def test_a_click_on_a_point_chooses_it(browser: Browser, pages: Path) -> None:
    with opened(browser, pages / _slow_page(browser, pages)) as page:
        points = page.locator(".chart circle.run")
        assert points.count() == 75
        assert page.locator(".chart line.worse").count() == 1
        assert page.locator(".chart .surrounding").count() == 1
        for number, night in ((0, "2026-11-01"), (74, "2026-11-25")):
            points.nth(number).click(force=True)
            assert night in page.locator(".hint").inner_text()
        shown = _side_by_side(page)
        assert [text[:10] for text in shown["started"][:2]] == ["2026-11-01", "2026-11-25"]
        assert page.locator(".chart .ring.a").count() == 3
        page.get_by_label("Show").select_option("7")
        assert points.count() == 21
        page.get_by_label("Number").select_option("load")
        assert page.locator(".chart line.worse").count() == 0


def test_alerts_changes_and_all_runs_are_tables(browser: Browser, pages: Path) -> None:
    with opened(browser, pages / _slow_page(browser, pages)) as page:
        assert page.locator("#alerts td").nth(6).inner_text() == "latency is <b>1.2 ms</b>"
        assert "torch 2.13.0 -> 2.14.0" in page.locator("#surroundings").inner_text()
        assert page.locator("#changes tbody tr").count() == 1
        page.locator("details.all summary").click()
        rows = page.locator("details.all tr.row")
        assert rows.first.locator("td").first.inner_text() == "2026-11-25 08:00"
        page.locator("details.all input").fill("0303030303")
        assert page.locator("details.all output").inner_text() == "3 of 75 rows"


def test_the_metric_of_the_index_is_shown_at_once(browser: Browser, pages: Path) -> None:
    file = pages / _slow_page(browser, pages)
    with browser.new_context() as context:
        found = Opened(context.new_page())
        found.page.goto(f"{file.as_uri()}#metric=load_ms")
        assert found.page.get_by_label("Number").locator("option:checked").inner_text() == "load"
        assert found.complaints == []


def test_a_narrow_and_dark_page(browser: Browser, pages: Path) -> None:
    for name in ("index.html", "devices.html", _slow_page(browser, pages)):
        with opened(browser, pages / name, width=375, scheme="dark") as page:
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= 375, name


def test_devices_by_week(browser: Browser, pages: Path) -> None:
    with opened(browser, pages / "devices.html") as page:
        assert "android:S2" in page.locator("#devices").inner_text()
        page.locator(".large select").select_option("android:S1")
        weeks = page.locator(".large tr.row")
        assert weeks.locator("td:first-child").all_inner_texts()[-1] == "2026-10-26"
