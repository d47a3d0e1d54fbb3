"""What is refused before anything starts, and how to get it."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from etdeploy.backends import registry
from etdeploy.backends.qnn import precision as export
from etdeploy.backends.qnn.sdk import how_to_get
from etdeploy.backends.registry import backend_named
from etdeploy.backends.values import Package
from etdeploy.core.commands import pip_command
from etdeploy.core.errors import Blocker, ExportError, UsageError
from etdeploy.export import needs
from etdeploy.export.derive import export_spec
from etdeploy.export.needs import check_language_model, check_needs
from etdeploy.export.spec import TESTED_VERSIONS, CodeReference, ExportSpec
from etdeploy.recipe.hub_cache import snapshot
from etdeploy.recipe.model import Recipe
from tests.support.checkpoints import write_checkpoint
from tests.support.facts import lacks
from tests.support.qnn_sdk import lay_out_sdk
from tests.support.tokenizers import byte_level, save

ALL = {"torch": "2.13.0", "executorch": "1.5.1", "torchao": "0.18.0", "coremltools": "9.0"}


def spec_of(model: dict[str, Any] | None = None, **export: Any) -> ExportSpec:
    recipe = {"model": model or {"example": "mlp"}, "export": export}
    return export_spec(Recipe.model_validate(recipe))


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The installed packages, to take some away."""
    present = dict(ALL)
    monkeypatch.setattr(needs, "installed_version", present.get)
    return present


@pytest.fixture
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def refusal(spec: ExportSpec, environment: dict[str, str] | None = None) -> ExportError:
    with pytest.raises(ExportError) as caught:
        check_needs(spec, environment or {})
    return caught.value


def test_nothing_is_missing(packages: dict[str, str]) -> None:
    check_needs(spec_of(), {})
    check_needs(spec_of(quantization="8da4w"), {})
    check_needs(spec_of(backend="vulkan"), {})
    check_needs(spec_of(backend="coreml"), {})


def test_the_function_for_inputs_of_sizes_has_to_be_there(
    packages: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text("def make_inputs(): ...")
    inputs = CodeReference(file=str(tmp_path / "model.py"), name="inputs")
    error = refusal(spec_of().model_copy(update={"inputs": inputs}))
    assert not lacks(error, "benchmark.inputs", "model.py:inputs", "it has make_inputs")


def test_missing_packages(packages: dict[str, str]) -> None:
    del packages["torch"], packages["executorch"]
    error = refusal(spec_of())
    assert not lacks(error, "; torch and executorch are not", sys.executable)
    assert error.remedy == pip_command("etdeploy[export]")


def test_a_finished_program_needs_no_package(packages: dict[str, str], tmp_path: Path) -> None:
    packages.clear()
    (tmp_path / "m.pte").touch()
    check_needs(spec_of({"program": str(tmp_path / "m.pte")}), {})


def test_core_ml_needs_coremltools(packages: dict[str, str]) -> None:
    del packages["coremltools"]
    error = refusal(spec_of(backend="coreml"))
    assert not lacks(error, "lowering to Core ML", " coremltools,", sys.executable)
    assert error.remedy == pip_command("coremltools")


@pytest.mark.usefixtures("packages")
def test_a_lowering_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(backend_named("portable"), lowering="no_such_package.lowering")
    monkeypatch.setitem(registry._loaded, "portable", broken)
    error = refusal(spec_of(backend="portable"))
    assert not lacks(error, "backend portable", "no_such_package.lowering", sys.executable)


@pytest.mark.parametrize(
    ("installed", "fits"),
    [("2025.1", True), ("2025.4.1rc2", True), ("2026.4.1", False), ("2024.6", False)],
)
def test_a_package_of_the_wrong_release_is_refused(
    packages: dict[str, str], monkeypatch: pytest.MonkeyPatch, installed: str, fits: bool
) -> None:
    package = Package("coremltools", "lowering to it", "etdeploy[it]", ">=2025.1,<2026")
    picky = replace(backend_named("coreml"), packages=(package,))
    monkeypatch.setitem(registry._loaded, "coreml", picky)
    packages["coremltools"] = installed
    if fits:
        check_needs(spec_of(backend="coreml"), {})
        return
    error = refusal(spec_of(backend="coreml"))
    assert not lacks(
        error, "lowering to it", "coremltools>=2025.1,<2026", f"{sys.executable} has {installed}"
    )
    assert error.remedy == pip_command("etdeploy[it]")


def test_a_package_of_one_scheme_is_wanted_for_that_alone(packages: dict[str, str]) -> None:
    packages["openvino"] = "2025.4.1"
    check_needs(spec_of(backend="openvino"), {})
    check_needs(spec_of(backend="openvino", quantization="fp16"), {})
    quantized = spec_of(backend="openvino", quantization="int8_static")
    error = refusal(quantized)
    assert not lacks(error, "nncf>=3.1,<3.3", sys.executable)
    assert error.remedy == pip_command("etdeploy[openvino]")
    packages["nncf"] = "3.1.0"
    check_needs(quantized, {})


def test_files_that_are_not_there(packages: dict[str, str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for key, path, kind in (
        ("program", tmp_path / "m.pte", "not exist"),
        ("exported", tmp_path, "a folder"),
        ("program", tmp_path / "pipe", "a FIFO (named pipe)"),
    ):
        error = refusal(spec_of({key: str(path)}))
        assert error.place == f"model.{key} {path}"
        assert kind in error.message


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment for an SDK whose compiler can be loaded."""
    monkeypatch.setattr(export, "loading_problem", lambda *_: None)
    return {"QNN_SDK_ROOT": str(lay_out_sdk(tmp_path / "qairt"))}


@pytest.mark.usefixtures("linux", "packages")
def test_qnn_with_a_variable_that_leads_nowhere(tmp_path: Path) -> None:
    error = refusal(spec_of(backend="qnn"), {"QNN_SDK_ROOT": str(tmp_path)})
    assert error.message.endswith(" include/QNN")
    assert f"QNN_SDK_ROOT names {tmp_path}," in error.message


@pytest.mark.usefixtures("linux", "packages")
def test_qnn_compiles_for_a_soc_that_is_known(sdk: dict[str, str]) -> None:
    error = refusal(spec_of(backend="qnn"), sdk)
    assert "a qnn program" in error.message
    assert not lacks(error.remedy, "--device android", "--set export.soc=SM8650")
    check_needs(spec_of(backend="qnn", soc="SM8650"), sdk)


@pytest.mark.usefixtures("linux", "packages")
def test_qnn_with_a_soc_of_another_name(sdk: dict[str, str]) -> None:
    error = refusal(spec_of(backend="qnn", soc="SM8750P"), sdk)
    assert not lacks(error, "export.soc: QNN", "'SM8750P'")
    assert error.remedy == "--set export.soc=SM8750"
    tensor = refusal(spec_of(backend="qnn", soc="Tensor G4"), sdk)
    assert tensor.remedy is not None
    assert ": SM8350, SA8295, " in tensor.remedy


@pytest.mark.usefixtures("linux", "packages")
def test_qnn_with_an_sdk_that_is_older_than_the_soc(sdk: dict[str, str]) -> None:
    error = refusal(spec_of(backend="qnn", soc="SM8850"), sdk)
    assert not lacks(
        error, "SM8850 (HTP V81)", "QNN 2.42 or newer", f"{sdk['QNN_SDK_ROOT']} is 2.37.0;",
        "2.37.0.250724,",
    )  # fmt: skip
    assert error.remedy == how_to_get("2.42")


@pytest.mark.usefixtures("linux", "packages")
def test_qnn_without_a_compiler_for_a_soc_that_needs_a_newer_one() -> None:
    error = refusal(spec_of(backend="qnn", soc="SM8850"), {})
    assert how_to_get("2.42") in str(error.remedy)
    assert "2.37" not in str(error.remedy)


@pytest.mark.usefixtures("linux", "packages")
def test_qnn_with_an_sdk_that_is_older_than_executorchs_adaptor(
    sdk: dict[str, str], tmp_path: Path
) -> None:
    old = {"QNN_SDK_ROOT": str(lay_out_sdk(tmp_path / "old", "2.31.0.250130151446"))}
    error = refusal(spec_of(backend="qnn", soc="SM8650"), old)
    assert "with QNN 2.37 or newer," in error.message
    assert error.remedy == how_to_get("2.37")


@pytest.mark.usefixtures("linux", "packages")
def test_qnn_with_an_sdk_that_lacks_what_an_export_loads(sdk: dict[str, str]) -> None:
    (Path(sdk["QNN_SDK_ROOT"]) / "lib/x86_64-linux-clang/libQnnSystem.so").unlink()
    error = refusal(spec_of(backend="qnn", soc="SM8650"), sdk)
    assert error.message.endswith(" lib/x86_64-linux-clang/libQnnSystem.so")
    assert "Unpack all" in (error.remedy or "")


@pytest.mark.usefixtures("linux", "packages")
def test_qnn_with_a_compiler_that_cannot_be_loaded(
    sdk: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Blocker("compiler", "libQnnHtp.so cannot be loaded", "apt-get install libc++1")
    monkeypatch.setattr(export, "loading_problem", lambda *_: problem)
    error = refusal(spec_of(backend="qnn", soc="SM8650"), sdk)
    assert (error.message, error.remedy) == (problem.why, problem.remedy)


@pytest.mark.usefixtures("packages")
def test_qnn_is_refused_on_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    error = refusal(spec_of(backend="qnn"), {"QNN_SDK_ROOT": "/sdk"})
    assert not lacks(error, "on Linux x86_64", "darwin arm64")


LLM = {
    "transformers": "5.23.0", "huggingface_hub": "2.4.0", "safetensors": "0.8", "tokenizers": "1",
}  # fmt: skip


def test_a_language_model_needs_the_extra(packages: dict[str, str], tmp_path: Path) -> None:
    error = refusal(spec_of({"hf": str(write_checkpoint(tmp_path))}))
    assert not lacks(error, *LLM, sys.executable)
    assert error.remedy == pip_command("etdeploy[export,llm]")


def test_a_model_of_timm_needs_another_extra(packages: dict[str, str]) -> None:
    error = refusal(spec_of({"timm": "timm/resnet18.a1_in1k"}))
    assert not lacks(error, "timm", "torchvision", sys.executable)
    assert "transformers" not in error.message
    assert error.remedy == pip_command("etdeploy[export,timm]")


def test_a_language_model_on_this_machine_is_looked_at_first(
    packages: dict[str, str], tmp_path: Path
) -> None:
    packages |= LLM
    folder = write_checkpoint(tmp_path / "m")
    generation = {"context": 256}
    check_needs(spec_of({"hf": str(folder)}, generation=generation), {})
    error = refusal(spec_of({"hf": str(folder)}))
    assert error.place == "export.generation.context"
    assert not lacks(error, "256 positions", "2048")
    assert not lacks(error.remedy, "export.generation.context=256 ", "--context 256")
    (folder / "config.json").unlink()
    error = refusal(spec_of({"hf": str(folder)}, generation=generation))
    assert error.place == str(folder)


def test_a_model_that_cannot_be_talked_with_is_not_exported(
    packages: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages |= LLM
    folder = write_checkpoint(tmp_path / "m")
    spec = spec_of({"hf": str(folder)}, generation={"context": 256})
    check_needs(spec, {})
    with pytest.raises(UsageError, match="no tokenizer") as raised:
        check_needs(spec.model_copy(update={"speech": "text"}), {})
    assert raised.value.place == str(folder)
    save(byte_level(), folder, template=None)
    check_needs(spec.model_copy(update={"speech": "text"}), {})
    with pytest.raises(UsageError, match="no chat template"):
        check_needs(spec.model_copy(update={"speech": "chat"}), {})

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    commit = "0" * 40
    hub = spec_of({"hf": "org/model", "revision": commit}, generation={"context": 256})
    write_checkpoint(snapshot("org/model", commit))
    check_needs(hub.model_copy(update={"speech": "chat"}), {})  # the export gets the tokenizer


def test_a_text_to_evaluate_is_read_before_anything_starts(
    packages: dict[str, str], tmp_path: Path
) -> None:
    packages |= LLM
    model, text = {"hf": str(write_checkpoint(tmp_path / "m"))}, tmp_path / "text.txt"
    generation = {"context": 256, "evaluate": str(text)}
    for content, facts in (
        (None, (f" {text}:", "not exist")),
        ("\n", (f"{text} has no text",)),
        ("some words", ("text.txt", "tokenizer")),
    ):
        if content is not None:
            text.write_text(content)
        error = refusal(spec_of(model, generation=generation))
        assert str(error.place).startswith("export.generation.evaluate")
        assert not lacks(error, *facts)
        assert (error.remedy is None) == (content is None)
    (tmp_path / "m" / "tokenizer.json").write_text("{}")
    check_needs(spec_of(model, generation=generation), {})


def archive(path: Path, *entries: str) -> Path:
    with ZipFile(path, "w") as file:
        for entry in entries:
            file.writestr(f"root/{entry}", b"")
    return path


@pytest.mark.usefixtures("packages")
def test_a_file_for_another_key_is_refused_with_that_key(tmp_path: Path) -> None:
    factory = tmp_path / "model.py"
    factory.write_text("def make(): ...")
    program = tmp_path / "m.pte"
    program.write_bytes(b"\x10\x00\x00\x00ET12" + bytes(8))
    script = archive(tmp_path / "script.pt", "data.pkl", "constants.pkl", "code/__torch__.py")
    state = archive(tmp_path / "state.pt", "data.pkl", "data/0")
    exported = archive(tmp_path / "model.pt2", "archive_format", "models/model.json")
    tensors = tmp_path / "m.safetensors"
    tensors.write_bytes(bytes(16))
    legacy = tmp_path / "legacy.bin"  # of torch.save before 1.6
    legacy.write_bytes(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j")

    def refused(**model: Any) -> tuple[str, str]:
        error = refusal(spec_of({key: str(value) for key, value in model.items()}))
        return error.message, str(error.remedy)

    made = f"{factory}:make"
    for model, named in (
        ({"exported": program}, f"model: {{program: {program}}}"),
        ({"exported": state}, f"weights: {state}"),
        ({"exported": tensors}, f"weights: {tensors}"),
        ({"exported": legacy}, f"weights: {legacy}"),
        ({"exported": script}, "weights.pt"),
        ({"python": made, "weights": script}, "weights.pt"),
        ({"python": made, "weights": exported}, f"model: {{exported: {exported}}}"),
        ({"python": made, "weights": program}, f"model: {{program: {program}}}"),
    ):
        message, remedy = refused(**model)
        assert named in remedy
        assert "weights_only" not in message + remedy
    for model in ({"exported": exported}, {"python": made, "weights": state}):
        check_needs(spec_of({key: str(value) for key, value in model.items()}), {})


def test_a_model_is_refused_or_noted_before_any_package_is_looked_for(
    packages: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages.clear()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    assert "org/model is not" in str(check_language_model(spec_of({"hf": "org/model"})))
    sound = write_checkpoint(tmp_path / "m", max_position_embeddings=4096)
    assert check_language_model(spec_of({"hf": str(sound)})) is None
    (sound / "model.safetensors").rename(sound / "pytorch_model.bin")
    with pytest.raises(ExportError, match="pickles"):
        check_language_model(spec_of({"hf": str(sound)}))


TESTED = {**TESTED_VERSIONS, "torchao": "0.18.0"}
TEXT = spec_of({"hf": "org/model"})


def install(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
    monkeypatch.setattr(needs, "installed_version", (TESTED | versions).get)


@pytest.mark.parametrize("version", [TESTED["torch"], f"{TESTED['torch']}+cu130"])
def test_the_releases_that_are_tested(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    install(monkeypatch, torch=version)
    assert needs.may_replace_parts(TEXT)
    assert list(needs.release_notes(TEXT, shortens=True)) == []


@pytest.mark.parametrize("name", TESTED)
@pytest.mark.parametrize("version", ["9.0", None])
def test_no_part_of_another_release_is_replaced(
    monkeypatch: pytest.MonkeyPatch, name: str, version: str | None
) -> None:
    install(monkeypatch, **{name: version})
    assert not needs.may_replace_parts(TEXT)


def test_what_another_release_means_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, executorch="1.6.0", torchao="0.18.1")
    [first] = needs.release_notes(TEXT, shortens=False)
    assert not lacks(first, "executorch 1.6.0;", " 1.5.1 ")
    same, slow = needs.release_notes(TEXT, shortens=True)
    assert same == first
    assert not lacks(slow, "longer", "executorch 1.5.1", "torchao 0.18.0")
