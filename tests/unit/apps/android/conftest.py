"""What is installed here for all users is not looked for."""

from __future__ import annotations

import pytest

from etdeploy.apps.android import sdk


@pytest.fixture(autouse=True)
def no_studio_for_all_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk, "_STUDIO", tuple(p for p in sdk._STUDIO if p.startswith("~/")))
