"""`etdeploy profile` writes over nothing but an earlier profile."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from etdeploy.cli.main import run_cli
from etdeploy.profile import profiled
from etdeploy.profile.model import OperatorTime, Profile
from tests.support.bench_values import FOLDER, make_record

Capture = pytest.CaptureFixture[str]
_FORMS: tuple[list[str], ...] = (
    [],
    ["--json"],
    ["--format", "perfetto"],
    ["--format", "model-explorer"],
)


@pytest.fixture(autouse=True)
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs whose profile was asked for."""
    found: list[str] = []

    def profile(run: Any, *_: Any) -> Profile:
        found.append(run.record.run_id)
        row = OperatorTime(
            name="conv", calls=1, total_ms=1.0, self_ms=1.0, share=0.5, module="stem"
        )
        return Profile(
            run_id=run.record.run_id, inferences=1, inference_ms=2.0, untraced_ms=None,
            operators=(row,), modules=None, shares={}, bottleneck="It waits.",
        )  # fmt: skip

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ETDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(profiled, "profile_of", profile)
    make_record().save(tmp_path / "etdeploy-out" / FOLDER.name / "record.json")
    return found


def _profile(*arguments: str) -> int:
    return run_cli(["profile", "--quiet", *arguments])


@pytest.mark.parametrize("form", _FORMS)
def test_a_profile_is_printed_or_written_and_replaced(
    form: list[str], tmp_path: Path, capsys: Capture
) -> None:
    assert _profile(*form) == 0
    printed = capsys.readouterr().out
    assert _profile(*form, "-o", "-") == 0
    assert capsys.readouterr().out == printed
    assert not (tmp_path / "-").exists()
    for _ in range(2):
        assert _profile(*form, "-o", "mine") == 0
        assert capsys.readouterr() == ("", f"written: {tmp_path / 'mine'}\n")
    written = (tmp_path / "mine").read_text()
    assert json.loads(written) == json.loads(printed) if form else "It waits." in written


@pytest.mark.parametrize("form", _FORMS)
def test_a_file_of_the_user_is_refused_before_the_work(
    form: list[str], tmp_path: Path, asked: list[str], capsys: Capture
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: {example: mlp}\n")
    assert _profile(*form, "-o", "recipe.yaml") == 2
    assert "recipe.yaml: the file exists and is not a profile as " in capsys.readouterr().err
    assert recipe.read_text() == "model: {example: mlp}\n"
    assert asked == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (os.devnull, "the profile needs a file, and this is a device"),
        ("etdeploy-out", "Name a file in it: --output etdeploy-out/perfetto.json"),
        ("typo/trace.json", "the folder for the profile does not exist"),
    ],
)
def test_what_is_no_file_is_refused(
    path: str, message: str, tmp_path: Path, asked: list[str], capsys: Capture
) -> None:
    assert _profile("--format", "perfetto", "-o", path) == 2
    assert message in capsys.readouterr().err
    assert asked == []
    assert not (tmp_path / "typo").exists()
