"""Exit codes of programs that a signal ended."""

from __future__ import annotations

import pytest

from etdeploy.devices.shell import signal_name_for


@pytest.mark.parametrize(
    ("code", "name"), [(139, "SIGSEGV"), (134, "SIGABRT"), (135, "SIGBUS"), (1, None), (255, None)]
)
def test_signals_have_the_numbers_of_linux(code: int, name: str | None) -> None:
    assert signal_name_for(code) == name
