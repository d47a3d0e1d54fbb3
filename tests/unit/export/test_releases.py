"""Parts of ExecuTorch, PyTorch and torchao are replaced in the releases alone that are tested."""

from __future__ import annotations

import pytest

from etdeploy.export.spec import TESTED_VERSIONS
from etdeploy.export.worker.lowering import releases
from tests.support.export import spec_of
from tests.support.facts import lacks

TESTED = {**TESTED_VERSIONS, "torchao": "0.18.0"}
TEXT = spec_of({"model": {"hf": "org/model"}})


def install(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
    monkeypatch.setattr(releases, "installed_version", (TESTED | versions).get)


@pytest.mark.parametrize("version", [TESTED["torch"], f"{TESTED['torch']}+cu130"])
def test_the_releases_that_are_tested(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    install(monkeypatch, torch=version)
    assert releases.may_replace_parts(TEXT)
    assert list(releases.release_notes(TEXT, shortens=True)) == []


@pytest.mark.parametrize("name", TESTED)
@pytest.mark.parametrize("version", ["9.0", None])
def test_no_part_of_another_release_is_replaced(
    monkeypatch: pytest.MonkeyPatch, name: str, version: str | None
) -> None:
    install(monkeypatch, **{name: version})
    assert not releases.may_replace_parts(TEXT)


def test_what_another_release_means_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, executorch="1.6.0", torchao="0.18.1")
    [first] = releases.release_notes(TEXT, shortens=False)
    assert not lacks(first, "executorch 1.6.0;", " 1.5.1 ")
    same, slow = releases.release_notes(TEXT, shortens=True)
    assert same == first
    assert not lacks(slow, "longer", "executorch 1.5.1", "torchao 0.18.0")
