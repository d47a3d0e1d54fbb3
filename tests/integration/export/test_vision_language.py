"""Vision-language models: what their methods give, on devices and in ExecuTorch's own runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etdeploy.cache.workspace import Workspace
from tests.integration.export.test_tasks import SHORT, picture, saved
from tests.support.adbd import AndroidRoot, android_x86_64, make_android  # noqa: F401 - fixtures
from tests.support.cli import Cli
from tests.support.export import export_workspace, run_python, run_support  # noqa: F401
from tests.support.facts import lacks

pytest.importorskip("transformers", reason="needs etdeploy[llm]")
pytestmark = pytest.mark.integration
FAMILIES = ("llava", "smolvlm", "idefics3", "gemma3-vision", "qwen2.5-vl")
_METHODS = ["vision_encoder", "token_embedding", "text_decoder", "decode"]
_FLOATS = ("--set", "export.quantization=none", "--context", "256")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vision-language")


@pytest.fixture(scope="module")
def found(models: Path) -> Any:
    run_python("-m", "tests.support.task_models", str(models), *FAMILIES)
    return run_support("vision_language", str(models))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_methods_give_the_logits_of_the_models_own_forward(found: Any, name: str) -> None:
    family = found[name]
    assert (family["path"], family["methods"]) == ("fast", _METHODS)
    assert family["image_tokens"] == len(family["parts"]) * family["rows"][1]
    assert family["error"] < 1e-5 * family["largest"]
    assert family["is_real"] == [True, None]


def test_an_image_of_several_tiles_is_encoded_one_by_one(found: Any) -> None:
    assert found["smolvlm"]["parts"] == [[1, 3, 32, 32]] * 5
    assert found["llava"]["parts"] == [[1, 3, 32, 32]]


def test_tokens_have_the_positions_of_their_architecture(found: Any) -> None:
    assert found["llava"]["table"] is None
    # The four tokens of the image see the last of them, and one call takes the whole prompt.
    gemma = found["gemma3-vision"]
    assert gemma["table"][0][8:16] == [8, 9, 13, 13, 13, 13, 14, 15]
    assert gemma["prefill"] == gemma["prompt"]
    # Three rows and four columns of an image, whose first token is at 8.
    frames, rows, columns = (row[8:21] for row in found["qwen2.5-vl"]["table"])
    assert frames == [8] * 12 + [12]
    assert rows == [8] * 4 + [9] * 4 + [10] * 4 + [12]
    assert columns == [8, 9, 10, 11] * 3 + [12]


def test_images_have_any_mode_and_size(found: Any) -> None:
    assert set(map(str, found["modes"].values())) == {"[[1, 3, 32, 32]]"}
    is_real, note = found["random"]
    assert not is_real
    assert not lacks(note, "random", "--image FILE")


def test_what_cannot_be_exported_is_named(found: Any) -> None:
    refused = found["refused"]
    assert not lacks(refused["token"][0], "<image>", "one image")
    assert refused["token"][2] == refused["empty"][2] == "benchmark.input.text"
    assert not lacks(refused["damaged"][1], "PNG or JPEG")
    assert refused["damaged"][2].endswith("damaged.png")
    assert not lacks(refused["processor"][0], "processor_config.json")
    assert not lacks(refused["tokens"][0], "no image tokens")


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["none", "8da4w"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_device_gives_the_text_about_an_image(
    models: Path,
    export_workspace: Workspace,  # noqa: F811
    tmp_path: Path,
    name: str,
    scheme: str,
) -> None:
    cli = Cli(export_workspace.root, tmp_path, {})
    asked = (
        "--model", str(saved(models, name)), "--image", str(picture(tmp_path / "picture.png")),
        "--text", "what is it?", *_FLOATS, "--set", f"export.quantization={scheme}",
    )  # fmt: skip
    record: dict[str, Any] = cli.ok("run", *asked, *SHORT, "--json").json
    workload = record["workload"]
    [text] = workload["texts"]
    assert text["within_tolerance"]
    if scheme == "none":
        assert text["equal_tokens"] == len(text["expected_ids"]) > 0
    encoder = workload["encoder"]
    assert (encoder["is_real"], encoder["audio_s"]) == (True, None)
    assert len(encoder["encode_ms"]["samples"]) == 3
    again = cli.ok("generate", *asked, "--max-new-tokens", "8", "--json").json
    assert again["token_ids"] == workload["points"][0]["token_ids"][:8]
    if (name, scheme) != ("smolvlm", "none"):
        return
    cli.ok("export", *asked, "--output", str(tmp_path / "program"))
    program = tmp_path / "program" / "program.pte"
    own = run_support("vision_language", str(program), str(models / name), asked[3])
    assert own == again["token_ids"][: len(own)]
    assert len(own) == 8


@pytest.mark.nightly
def test_a_phone_gives_the_text_about_an_image(
    models: Path,
    export_workspace: Workspace,  # noqa: F811
    tmp_path: Path,
    android_x86_64: AndroidRoot,  # noqa: F811
) -> None:
    cli = Cli(export_workspace.root, tmp_path, {"HOME": str(tmp_path)})  # for its own adb key
    asked = (
        "--model", str(saved(models, "gemma3-vision")), "--text", "what is it?",
        "--image", str(picture(tmp_path / "picture.png")), *_FLOATS,
    )  # fmt: skip
    record = cli.ok("run", *asked, *SHORT, "--device", android_x86_64.spec, "--json").json
    [text] = record["workload"]["texts"]
    assert text["equal_tokens"] == len(text["expected_ids"]) > 0
