"""Where the history is."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.core.errors import StoreError
from etdeploy.history.location import require_location, resolve_location


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("sqlite:////a/my%20runs.db", Path("/a/my runs.db")),
        ("sqlite:///runs.db", Path.cwd() / "runs.db"),
        ("~/runs.db", Path.home() / "runs.db"),
        ("runs.db", Path.cwd() / "runs.db"),
    ],
)
def test_files(text: str, file: Path) -> None:
    place = resolve_location(text)
    assert place
    assert place.file in (file, Path("~/runs.db").expanduser() if "~" in text else file)


def test_a_password_is_never_shown() -> None:
    place = resolve_location(
        "postgresql://me:s3cret@db.example:5433/bench?password=s3cret&sslmode=require"
    )
    assert place
    assert place.file is None
    assert place.shown == "postgresql://me@db.example:5433/bench"
    assert "s3cret" not in repr(place)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mysql://root@db/bench", "SQLite or PostgreSQL, and not in mysql"),
        ("sqlite://runs.db", "three slashes"),
        ("sqlite:///", "three slashes"),
        ("postgresql://me:s3cret@db:port/bench", "not a URL of PostgreSQL"),
        ("postgresql://me:s3cret@[db/bench", "not a URL of PostgreSQL"),
    ],
)
def test_what_is_no_history(text: str, why: str) -> None:
    with pytest.raises(StoreError, match=why) as caught:
        resolve_location(text)
    assert caught.value.place == "--store"
    assert "s3cret" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_no_history_unless_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETDEPLOY_STORE", "none")
    assert resolve_location() is None
    with pytest.raises(StoreError, match="no history is kept"):
        require_location(None)
    assert require_location("/a/two.db").file == Path("/a/two.db")
