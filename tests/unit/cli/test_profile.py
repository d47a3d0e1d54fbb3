"""`etdeploy profile` writes over nothing but an earlier profile."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.cli.main import run_cli
from etdeploy.profile import profiled
from etdeploy.profile.model import OperatorTime, Profile, TextProfile
from tests.support.bench_values import FOLDER, make_record
from tests.support.text_values import TRACED, make_text_record, make_text_workload

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

    def profiles(run: Any, *_: Any) -> TextProfile:
        found.append(run.record.run_id)
        row = OperatorTime(
            name="conv", calls=1, total_ms=1.0, self_ms=1.0, share=0.5, module="stem"
        )
        made = Profile(
            run_id=run.record.run_id, inferences=1, inference_ms=2.0, untraced_ms=None,
            operators=(row,), modules=None, shares={}, outside_delegates=0.5,
            bottleneck="It waits.",
        )  # fmt: skip
        if not isinstance(run.record.workload, TextGeneration):
            return TextProfile(run_id=made.run_id, method="forward", methods={"forward": made})
        methods = {
            each.method: made.model_copy(update={"method": each.method, "text": each})
            for each in run.record.workload.methods
        }
        return TextProfile(run_id=made.run_id, method="decode", methods=methods)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ETDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(profiled, "profiles_of", profiles)
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
    assert "recipe.yaml: " in capsys.readouterr().err
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


@pytest.fixture
def text(tmp_path: Path) -> str:
    """The id of a run that generated text."""
    record = make_text_record(workload=make_text_workload(methods=TRACED), run_id="text")
    record.save(tmp_path / "etdeploy-out/text/record.json")
    return str(tmp_path / "etdeploy-out/text")


def test_of_text_the_method_that_decodes_is_shown_and_json_has_all(
    text: str, capsys: Capture
) -> None:
    assert _profile(text) == 0
    shown = capsys.readouterr().out
    assert "2.000 ms per call of decode while traced (3 calls at positions 8 to 10); 50.0%" in shown
    assert [line.split()[0] for line in shown.splitlines()[:4]] == [
        "method", "-------", "decode", "prefill",
    ]  # fmt: skip
    assert _profile(text, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["method"], list(found["methods"])) == ("decode", ["decode", "prefill"])


@pytest.mark.parametrize("form", _FORMS)
def test_an_option_chooses_the_method(form: list[str], text: str, capsys: Capture) -> None:
    assert _profile(text, *form, "--method", "prefill") == 0
    out = capsys.readouterr().out
    if form == ["--json"]:
        found = json.loads(out)
        assert (found["method"], list(found["methods"])) == ("prefill", ["prefill"])
    if not form:
        assert "per call of prefill while traced (1 call at positions 0 to 7)" in out
    assert _profile(text, *form, "-o", "mine", "--method", "prefill") == 0
    assert _profile(text, *form, "-o", "mine") == 0, "an earlier profile is replaced"


def test_a_method_without_a_trace_is_refused_with_those_that_have_one(
    text: str, capsys: Capture
) -> None:
    assert _profile(text, "--method", "forward") == 2
    shown = capsys.readouterr().err
    assert "forward" in shown
    assert "decode, prefill" in shown
