"""Models of tasks from folders: exported, run, and their results compared with eager's."""

from __future__ import annotations

import shutil
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from etdeploy.cache.workspace import Workspace
from tests.support.adbd import AndroidRoot, android_x86_64, make_android  # noqa: F401 - fixtures
from tests.support.cli import Cli
from tests.support.export import export_workspace, run_python  # noqa: F401 - a fixture
from tests.support.facts import lacks

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[3]
SHORT = ("--set", "benchmark.memory=false", "--set", "benchmark.profile=false", "--runs", "1")
# Others are for the night.
_TIMM = ("resnet18", "mobilenetv3_small_050", "vit_tiny_patch16_224", "convnext_femto")
_TEXTS, _HEARING = ("bert", "minilm", "roberta", "modernbert", "deberta"), ("wav2vec2", "ast")
_FAMILIES = (
    *_TEXTS, *_HEARING, "vit", "dinov2", "convnext", "swin", "yolos", "detr", "segformer", "dpt",
    "fastspeech2",
)  # fmt: skip
_TRANSLATING = ("t5", "bart", "marian")
_ONE_OF_EACH_TASK = (
    "minilm", "bert", "roberta", "deberta", "vit", "yolos", "segformer", "dpt", "wav2vec2", "ast",
    "whisper", "t5", "smolvlm",
)  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has a folder for each model that a test asks for."""
    return tmp_path_factory.mktemp("task-models")


def saved(models: Path, name: str) -> Path:
    if not (models / name / "config.json").is_file():
        run_python("-m", "tests.support.task_models", str(models), name)
    return models / name


def picture(path: Path) -> Path:
    image = Image.new("RGB", (320, 240), "skyblue")
    draw = ImageDraw.Draw(image)
    draw.rectangle((40, 100, 140, 220), fill="brown")
    draw.ellipse((200, 40, 280, 120), fill="yellow")
    image.save(path)
    return path


def tone(path: Path) -> Path:
    samples = np.sin(np.arange(22_050) * 0.05) * 8000
    with wave.open(str(path), "wb") as stream:
        stream.setnchannels(1)
        stream.setsampwidth(2)
        stream.setframerate(22_050)
        stream.writeframes(samples.astype("<i2").tobytes())
    return path


def given(name: str, folder: Path) -> tuple[str, ...]:
    if name in (*_TEXTS, *_TRANSLATING, "fastspeech2"):
        return ("--text", "ab cd [MASK] f." if name == "bert" else "ab cd ef.")
    if name in (*_HEARING, "whisper"):
        return ("--audio", str(tone(folder / "tone.wav")))
    return ("--image", str(picture(folder / "picture.png")))


@pytest.mark.nightly
@pytest.mark.parametrize("name", _FAMILIES)
def test_a_device_gives_the_models_result(
    models: Path,
    export_workspace: Workspace,  # noqa: F811
    tmp_path: Path,
    name: str,
) -> None:
    cli = Cli(export_workspace.root, tmp_path, {})
    record: dict[str, Any] = cli.ok(
        "run", "--model", str(saved(models, name)), *given(name, tmp_path), *SHORT, "--json"
    ).json
    workload = record["workload"]
    assert all(output["within_tolerance"] for output in workload["outputs"])
    task = workload["task"]
    assert (task["is_real"], task["agrees"]) == (True, True)
    result = task["result"]
    assert result["labels"] or result["text"] is not None or result["vector_size"]
    assert result["took_ms"] > 0
    assert task["preprocess_ms"] > 0
    drawn = name in ("yolos", "detr", "segformer", "dpt")
    assert (result["file"] == "result.png") == drawn
    assert (result["file"] == "result.wav") == (name == "fastspeech2")


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["none", "int8_static"])
@pytest.mark.parametrize("name", _TIMM)
def test_a_device_gives_the_result_of_a_model_of_timm(
    models: Path,
    export_workspace: Workspace,  # noqa: F811
    tmp_path: Path,
    name: str,
    scheme: str,
) -> None:
    pytest.importorskip("timm")
    cli = Cli(export_workspace.root, tmp_path, {})
    image = ("--image", str(picture(tmp_path / "picture.png")))
    quantized = ("--set", f"export.quantization={scheme}")
    run = ("run", "--model", str(saved(models, f"timm-{name}")), *image, *quantized, *SHORT)
    record: dict[str, Any] = cli.ok(*run, "--json").json
    workload = record["workload"]
    assert all(output["within_tolerance"] for output in workload["outputs"])
    assert workload["task"]["agrees"]
    assert len(workload["task"]["result"]["labels"]) == 5
    losses = record["program"]["quantization_loss"]
    assert len(losses) == (scheme != "none")
    assert all(loss["cosine_similarity"] > 0.98 for loss in losses)


@pytest.mark.nightly
def test_a_phones_outputs_are_read_as_those_of_this_machine(
    models: Path,
    export_workspace: Workspace,  # noqa: F811
    tmp_path: Path,
    android_x86_64: AndroidRoot,  # noqa: F811
) -> None:
    cli = Cli(export_workspace.root, tmp_path, {"HOME": str(tmp_path)})  # for its own adb key
    run = ("run", "--model", str(saved(models, "vit")), *given("vit", tmp_path), *SHORT, "--json")
    here: dict[str, Any] = cli.ok(*run).json["workload"]["task"]
    there = cli.ok(*run, "--device", android_x86_64.spec).json["workload"]["task"]
    assert there["agrees"]
    for task in (here, there):
        del task["result"]["took_ms"]
    assert there == here


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["whisper", *_TRANSLATING])
@pytest.mark.parametrize("scheme", ["none", "8da4w"])
def test_a_device_gives_the_text_of_an_encoder_decoder(
    models: Path,
    export_workspace: Workspace,  # noqa: F811
    tmp_path: Path,
    name: str,
    scheme: str,
) -> None:
    cli = Cli(export_workspace.root, tmp_path, {})
    input_ = given(name, tmp_path)
    folder = str(saved(models, name))
    quantized = ("--set", f"export.quantization={scheme}")
    record: dict[str, Any] = cli.ok(
        "run", "--model", folder, *input_, *quantized, *SHORT, "--json"
    ).json
    workload = record["workload"]
    [text] = workload["texts"]
    assert text["within_tolerance"]
    assert text["equal_tokens"] == len(text["expected_ids"]) > 0
    encoder = workload["encoder"]
    assert encoder["is_real"]
    assert len(encoder["encode_ms"]["samples"]) == 3
    assert (encoder["audio_s"] == pytest.approx(1)) == (name == "whisper")
    again = cli.ok(
        "generate", "--model", folder, *input_, *quantized, "--max-new-tokens", "8", "--json"
    ).json
    assert again["token_ids"] == workload["points"][0]["token_ids"][:8]
    assert again["encode_ms"] > 0


@pytest.mark.nightly
@pytest.mark.parametrize("device", ["android", "qemu"])
@pytest.mark.parametrize("name", _ONE_OF_EACH_TASK)
def test_other_devices_give_the_models_result(
    models: Path,
    export_workspace: Workspace,  # noqa: F811
    tmp_path: Path,
    name: str,
    device: str,
    request: pytest.FixtureRequest,
) -> None:
    spec = "qemu"
    if device == "android":
        spec = request.getfixturevalue("android_x86_64").spec
    elif not (shutil.which("qemu-aarch64-static") and shutil.which("aarch64-linux-gnu-g++")):
        pytest.skip("needs g++-aarch64-linux-gnu and qemu-user-static")
    cli = Cli(export_workspace.root, tmp_path, {"HOME": str(tmp_path)})  # for its own adb key
    floats = ("--set", "export.quantization=none")
    asked = ("--model", str(saved(models, name)), *given(name, tmp_path), *floats)
    if name == "smolvlm":
        asked += ("--context", "512")  # it has no more positions
    record: dict[str, Any] = cli.ok("run", *asked, *SHORT, "--device", spec, "--json").json
    assert record["device"]["facts"]["kind"] == device
    workload = record["workload"]
    if "texts" not in workload:
        assert all(output["within_tolerance"] for output in workload["outputs"])
        assert (workload["task"]["is_real"], workload["task"]["agrees"]) == (True, True)
        return
    [text] = workload["texts"]
    assert text["within_tolerance"]
    assert text["token_ids"] == text["expected_ids"]
    assert text["compared_tokens"] == len(text["expected_ids"]) > 0
    audio_s = workload["encoder"]["audio_s"]
    assert (audio_s == pytest.approx(1)) == (name == "whisper")
    again = ("generate", *asked, "--device", spec, "--max-new-tokens", "8", "--json")
    assert cli.ok(*again).json["token_ids"] == text["expected_ids"][:8]


def test_a_model_for_another_task_is_named_before_anything_runs(
    models: Path,
    export_workspace: Workspace,  # noqa: F811
    tmp_path: Path,
) -> None:
    cli = Cli(export_workspace.root, tmp_path, {})
    folder = saved(models, "bert")
    done = cli("plan", "--model", str(folder), "--set", "model.task=text-classification")
    assert done.code == 3
    assert not lacks(done.stderr, "BertForMaskedLM", "fill-mask", "--set model.task=fill-mask")
