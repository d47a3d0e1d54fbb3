"""Entry points of other packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.core.plugins import (
    load_plugin,
    module_path,
    plugin_code,
    plugin_folder,
    plugin_names,
    plugin_owner,
)
from tests.support.facts import lacks
from tests.support.plugins import install_plugin

GROUP = "etdeploy.tests"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import no_such_module_xyz", "cannot be loaded: ModuleNotFoundError: No module named"),
        ("1 / 0", "cannot be loaded: ZeroDivisionError: division by zero"),
        ("OTHER = 1", "cannot be loaded: AttributeError"),
        ("X = 7", "is 7, not an instance of str"),
    ],
)
def test_a_plugin_that_does_not_work_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, problem: str
) -> None:
    install_plugin(tmp_path, monkeypatch, GROUP, "lab = lab_broken:X", lab_broken=code)
    assert plugin_names(GROUP) == ("lab",), "naming it imports nothing"
    with pytest.raises(UsageError) as caught:
        load_plugin(GROUP, "lab", str)
    assert not lacks(caught.value.message, "'lab'", f"etdeploy-lab 1.2 {problem}")
    assert not lacks(caught.value.place, "lab_broken:X", GROUP)
    assert "uninstall etdeploy-lab" in str(caught.value.remedy)


def test_two_packages_with_the_same_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("etdeploy-lab", "rival-lab"):
        install_plugin(
            tmp_path / package, monkeypatch, GROUP, "lab = lab_words:WORD", package=package
        )
    with pytest.raises(UsageError) as caught:
        load_plugin(GROUP, "lab", str)
    assert caught.value.message.endswith("-lab and rival-lab")


def test_a_package_that_is_installed_twice_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("user", "system"):
        install_plugin(
            tmp_path / place, monkeypatch, GROUP, "lab = lab_words:WORD", lab_words="WORD = 'yes'"
        )
    assert load_plugin(GROUP, "lab", str) == "yes"


def test_the_digest_of_a_plugins_code_follows_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(tmp_path, monkeypatch, GROUP, "lab = lab_words:WORD", lab_words="WORD = 'yes'")
    before = plugin_code(GROUP, "lab")
    assert plugin_owner(GROUP, "lab") == "etdeploy-lab 1.2"
    (tmp_path / "other.py").write_text("1")
    assert plugin_code(GROUP, "lab") == before
    further = plugin_code(GROUP, "lab", "other")
    assert further != before
    (tmp_path / "other.py").write_text("2")
    assert plugin_code(GROUP, "lab", "other") != further
    assert plugin_code(GROUP, "lab", "no_such_module.at_all") == before


def test_looking_for_a_module_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lab_pkg" / "inner").mkdir(parents=True)
    (tmp_path / "lab_pkg" / "__init__.py").write_text("1 / 0")
    (tmp_path / "lab_pkg" / "inner" / "low.py").write_text("1 / 0")
    install_plugin(tmp_path, monkeypatch, GROUP, "lab = lab_pkg.inner")
    assert module_path("lab_pkg.inner.low") == tmp_path / "lab_pkg" / "inner" / "low.py"
    assert plugin_folder(GROUP, "lab") == tmp_path / "lab_pkg" / "inner"
    before = plugin_code(GROUP, "lab")
    (tmp_path / "lab_pkg" / "inner" / "low.py").write_text("2 / 0")
    assert plugin_code(GROUP, "lab") != before
    for name in ("lab_pkg.none", "lab_pkg.inner.low.x", "no_such_pkg.x", "", "..a"):
        assert module_path(name) is None
