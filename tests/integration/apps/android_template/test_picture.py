"""The picture of the app's screen in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.android_app import App, Tools
from tests.support.app_picture import PICTURE, draw

pytestmark = pytest.mark.integration


@pytest.mark.nightly
def test_the_picture_is_what_the_app_draws(
    tools: Tools, inference_app: App, tmp_path: Path
) -> None:
    """`python -m tests.support.app_picture` draws it anew."""
    assert draw(tools, tmp_path / "app", inference_app).read_text() == PICTURE.read_text()
