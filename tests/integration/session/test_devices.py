"""Sessions on other devices: a state that outlives the connection."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import etdeploy
from tests.support.adbd import (  # noqa: F401 - fixtures
    AndroidRoot,
    android_x86_64,
    make_android,
    no_adb_server,
)
from tests.support.session_export import TEXT
from tests.support.sshd import MakeBoard, make_board

pytestmark = pytest.mark.integration
__all__ = ["make_board"]

_TOKENS = 20


def _outlives(
    session: etdeploy.Session, lose: Callable[[], None], back: Callable[[], None]
) -> None:
    """A text goes on as without a loss, from a state and from its tokens alone."""
    "".join(session.generate(TEXT, _TOKENS))
    whole = session.tokens
    "".join(session.generate(TEXT, 7))
    state = session.save()
    lost = _lose_in_a_text(session, lose)
    while lost is None:
        back()
        session.reopen()
        session.restore(state)
        lost = _lose_in_a_text(session, lose)
    begun = session.tokens
    assert begun[: len(state.tokens)] == state.tokens
    back()
    session.reopen()
    assert session.tokens == begun
    session.restore(state)
    "".join(session.generate(None, _TOKENS - 7))
    assert session.tokens == whole
    assert session.timings.cached_tokens == state.position
    if isinstance(lost, etdeploy.DeviceLostError):
        assert "session.reopen()" in str(lost)


def _lose_in_a_text(session: etdeploy.Session, lose: Callable[[], None]) -> Exception | None:
    """The error that ends the text; None where all of it had arrived, which takes 30 ms."""
    before, new_tokens = len(session.tokens), 200
    text = session.generate(None, new_tokens)
    next(text)
    lose()
    try:
        list(text)
    except (etdeploy.DeviceLostError, etdeploy.RunError) as error:
        return error
    assert len(session.tokens) == before + new_tokens
    return None


def _kill_runner(word: str) -> None:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_text()
        except OSError:
            continue
        if word in command and "--listen" in command:
            os.kill(int(entry.name), signal.SIGKILL)


def test_a_board_that_went_away(model: str, make_board: MakeBoard) -> None:
    board = make_board()
    with etdeploy.open(model=model, device=board.spec, quiet=True) as session:
        _outlives(session, board.stop, board.start)


@pytest.mark.nightly
def test_an_emulated_program_that_was_killed(model: str) -> None:
    root = os.environ["ETDEPLOY_CACHE_DIR"]
    with etdeploy.open(model=model, device="qemu", quiet=True) as session:
        _outlives(session, lambda: _kill_runner(root), lambda: None)


@pytest.mark.nightly
def test_a_phone_that_was_unplugged(
    model: str,
    android_x86_64: AndroidRoot,  # noqa: F811
    no_adb_server: None,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    phone = android_x86_64
    with etdeploy.open(model=model, device=phone.spec, quiet=True) as session:
        _outlives(session, phone.kill_adbd, phone.start_adbd)
