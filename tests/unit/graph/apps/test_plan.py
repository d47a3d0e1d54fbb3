"""Which ExecuTorch an app has for each backend, and what is refused before anything is exported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from etdeploy.cli.main import run_cli
from etdeploy.core.errors import BuildError, EtdeployError, UsageError
from etdeploy.graph.job import AppOptions
from etdeploy.graph.jobs import open_job
from etdeploy.graph.pipeline import missing_for
from etdeploy.graph.preflight import refuse_early
from etdeploy.graph.resolve import Resolved, resolve
from etdeploy.plan.model import Provider
from etdeploy.program.model import EMPTY_PROGRAM
from etdeploy.recipe.load import load_recipe
from tests.support.facts import lacks
from tests.support.machine import bare_machine, equip

TARGETS = {"android": "android-arm64", "ios": "ios-arm64"}


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without an SDK for Android, without an NDK and without Xcode."""
    equip(bare_machine(tmp_path, monkeypatch), monkeypatch)
    monkeypatch.setattr("etdeploy.graph.preflight.check_needs", lambda _: None)
    monkeypatch.setattr("etdeploy.apps.ios.platform.xcode_version", lambda: "")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def resolved(
    out: Path, system: str, recipe: str, *overrides: str, given: Path | None = None
) -> Resolved:
    """The app of a recipe whose model is not exported yet; its project alone is asked for."""
    loaded = load_recipe(recipe, overrides)
    app = AppOptions(given, builds=False)
    with open_job(loaded, out, None, TARGETS[system], app=app) as job:
        return resolve(job)


def refusal(found: Resolved) -> EtdeployError:
    with pytest.raises(EtdeployError) as caught:
        refuse_early(found)
    return caught.value


@pytest.mark.parametrize(
    ("system", "recipe", "packages"),
    [
        ("android", "vulkan", ["executorch-android-vulkan"]),
        ("android", "portable", ["executorch-android"]),
        ("ios", "coreml", ["backend_coreml", "executorch"]),
        ("ios", "portable", ["executorch"]),
    ],
)
def test_a_release_of_executorch_has_the_backends_of_its_system(
    out: Path, system: str, recipe: str, packages: list[str]
) -> None:
    found = resolved(out, system, recipe)
    refuse_early(found)
    assert found.plan.provider.value == Provider.PREBUILT
    assert [part.name for part in found.plan.components if part.value] == packages


def test_libraries_for_the_phone_are_in_the_plan_before_the_export(out: Path) -> None:
    found = resolved(out, "android", "qnn", "export.soc=SM8850")
    (phone,) = (each for each in missing_for(found) if each.what == "QNN for phones")
    assert "libQnnHtpV81Skel.so" in phone.why
    assert "2.42" in phone.remedy
    assert not [each for each in missing_for(found) if "NDK" in each.why]
    # A program that delegates nothing to QNN needs none.
    assert missing_for(found.with_program(EMPTY_PROGRAM)) == ()


@pytest.mark.parametrize("runtime", ["auto", "prebuilt", "source"])
@pytest.mark.parametrize(
    ("system", "recipe", "why"),
    [
        ("android", "coreml", "CoreMLBackend, which runs on macos or ios only"),
        ("android", "openvino", "OpenvinoBackend, which runs on linux on x86_64 only"),
        ("ios", "vulkan", "VulkanBackend, which does not run on iPhones"),
        ("ios", "openvino", "OpenvinoBackend, which does not run on iPhones"),
        ("ios", "qnn", "QnnBackend, which does not run on iPhones"),
    ],
)
def test_a_backend_of_another_system_is_refused_with_settings_that_help(
    out: Path, system: str, recipe: str, why: str, runtime: str
) -> None:
    soc = ("export.soc=SM8650",) if recipe == "qnn" else ()
    asked = (*soc, f"app.runtime={runtime}")
    error = refusal(resolved(out, system, recipe, *asked))
    assert isinstance(error, BuildError)
    assert error.message.startswith(f"an app for {TARGETS[system]} cannot be built: ")
    assert why in error.message
    remedy = str(error.remedy)
    general = re.findall(r"--set (app\.\S+)", remedy)
    ways = [re.findall(r"--set (export\.\S+)", way) for way in re.split(r"   or |\n", remedy)]
    assert any(ways)
    for way in filter(None, ways):
        other = resolved(out, system, recipe, *asked, *general, *way)
        assert other.plan.blockers == ()


def test_core_ml_is_for_the_app_on_an_iphone(out: Path) -> None:
    assert "etdeploy app ios" in str(refusal(resolved(out, "android", "coreml")).remedy)
    assert "etdeploy app ios" not in str(refusal(resolved(out, "android", "openvino")).remedy)


def test_etdeploys_own_attention_is_refused_before_a_language_model_is_exported(
    out: Path, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    asked = (f"--model={tmp_path / 'model'}", "export.generation.attention=kernel")
    error = refusal(resolved(out, "ios", "llm-xnnpack", *asked))
    assert "etdeploy::attention.out" in error.message
    assert "export.generation.attention=stock" in str(error.remedy)
    refuse_early(resolved(out, "ios", "llm-xnnpack", *asked[:1]))
    android = resolved(out, "android", "llm-xnnpack", *asked)
    assert android.plan.provider.value == Provider.SOURCE
    assert "etdeploy::attention.out" in android.plan.provider.reason


@pytest.mark.parametrize(("system", "name"), [("android", "mine.apk"), ("ios", "mine.ipa")])
def test_a_file_that_is_no_app_is_refused_before_anything_is_exported(
    out: Path, tmp_path: Path, system: str, name: str
) -> None:
    archive = tmp_path / name
    archive.write_bytes(b"no archive")
    with pytest.raises(UsageError, match=r"model\.json") as caught:
        resolved(out, system, "portable", given=archive)
    assert caught.value.place == str(archive)


def test_what_is_missing_for_an_app_names_no_runner_in_its_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["plan", "-r", "portable", "-t", "android-arm64", "--as", "app"]
    assert run_cli([*words, "--set", "app.runtime=source"]) == 0
    told = capsys.readouterr().out
    assert "Android NDK" in told
    assert "musl" not in told


def test_an_app_for_a_runner_is_a_contradiction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.apk").write_bytes(b"")
    words = ["plan", "-t", "android-arm64", "--app", str(tmp_path / "mine.apk")]
    assert run_cli([*words, "--as", "runner"]) == 2
    assert not lacks(capsys.readouterr().err, "--app", "--as runner")
