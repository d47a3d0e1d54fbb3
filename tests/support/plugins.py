"""Packages with entry points, as pip would have installed them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from etdeploy.backends import registry


def install_plugin(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    group: str,
    entry: str,
    *,
    package: str = "etdeploy-lab",
    metadata: str = "",
    **modules: str,
) -> None:
    """Makes a package importable, with its metadata, for this test.

    Args:
        folder: Where it is installed.
        monkeypatch: Of the test.
        group: Of its entry point.
        entry: `name = module:attribute`.
        package: Its name.
        metadata: Further lines of its metadata.
        modules: The code of each of its modules.
    """
    info = folder / f"{package.replace('-', '_')}-1.2.dist-info"
    info.mkdir(parents=True)
    head = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n"
    (info / "METADATA").write_text(head + metadata)
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")
    for name, code in modules.items():
        (folder / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(folder))


@contextmanager
def forgetting_backends() -> Iterator[None]:
    """The registry of backends looks for plug-ins anew, and forgets them afterwards."""
    known = dict(registry._plugged)
    registry._plugged.clear()
    registry.plugged_names.cache_clear()
    try:
        yield
    finally:
        registry._plugged.clear()
        registry._plugged.update(known)
        registry.plugged_names.cache_clear()


def raised_by_plugin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ZeroDivisionError:
    """An exception of the second line of the plug-in `lab`, from its function `broken`."""
    install_plugin(
        folder, monkeypatch, "etdeploy.tests", "lab = lab_zero:broken",
        lab_zero="def broken():\n    1 / 0\n",
    )  # fmt: skip
    module = importlib.import_module("lab_zero")
    with pytest.raises(ZeroDivisionError) as caught:
        module.broken()
    return caught.value
