"""What is found on this machine, and what is told where it is not."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from etdeploy import doctor
from etdeploy.core.commands import pip_command


def test_what_is_installed_for_language_models_has_its_version() -> None:
    found = next(doctor._loaders())
    assert (found.state, found.remedy) == ("ok", None)
    assert f"tokenizers {importlib.metadata.version('tokenizers')}" in str(found.found)


def test_a_package_for_language_models_that_is_missing_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "LLM_PACKAGES", ("tokenizers", "not-there"))
    found = next(doctor._loaders())
    assert found.state == "optional"
    assert str(found.found).startswith("tokenizers ")
    assert str(found.remedy) == pip_command("etdeploy[llm]")


def test_what_talks_to_iphones_is_optional(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ETDEPLOY_PYMOBILEDEVICE3", str(tmp_path / "none"))
    missing = doctor._iphones()
    assert (missing.state, missing.found) == ("optional", None)
    assert "[ios]'" in str(missing.remedy)
    program = tmp_path / "pymobiledevice3"
    program.touch(0o755)
    monkeypatch.setenv("ETDEPLOY_PYMOBILEDEVICE3", str(program))
    assert (doctor._iphones().state, doctor._iphones().found) == ("ok", str(program))
