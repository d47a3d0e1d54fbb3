"""A page in a real browser without a window, and what must not happen while it is open."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's browser; the test is skipped where there is none."""
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # As root, its sandbox needs what containers do not have.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Opened:
    """A page, and everything that it asked for or complained about."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._dialog)

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, file: Path) -> None:
        """Opens a file, and waits until its plots are drawn."""
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("html[data-drawn]", state="attached")

    def require_quiet(self, file: Path) -> None:
        """Fails if the page asked for anything but itself, or if the browser complained."""
        assert self.requests == [file.as_uri()]
        assert self.complaints == []


@contextmanager
def opened(
    browser: Browser, file: Path, width: int = 1280, scheme: Any = "light"
) -> Iterator[Page]:
    """A page in a window of a width in CSS pixels; afterwards, it has to have been quiet."""
    with browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme
    ) as context:
        found = Opened(context.new_page())
        found.open(file)
        yield found.page
        found.require_quiet(file)
