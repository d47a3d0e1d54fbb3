"""Getting a model from the hub with huggingface_hub, from a server on this machine."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etdeploy.export.hf.config import download_config
from etdeploy.export.hf.files import ADAPTER_FILES
from etdeploy.export.protocol import ExportFailure
from etdeploy.export.spec import ExportSpec, HfModel
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.language import fetch as fetching
from etdeploy.export.worker.language.fetch import Checkpoint, fetch, fetch_adapter
from etdeploy.recipe.load import default_recipe, load_recipe
from etdeploy.recipe.paths import hub_model
from etdeploy.recipe.sections.export import ExportGeneration
from tests.support.checkpoints import write_adapter, write_checkpoint
from tests.support.facts import lacks
from tests.support.gguf_files import write_gguf
from tests.support.hub import COMMIT, Hub, serving

constants = pytest.importorskip("huggingface_hub.constants")
LOG_IN = "hf auth login   (or: export HF_TOKEN=..., a token of {}/settings/tokens)"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    bars = importlib.import_module("huggingface_hub.utils")
    bars.disable_progress_bars()
    yield folder
    bars.enable_progress_bars()


@pytest.fixture
def hub(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    folder = write_checkpoint(tmp_path / "given")
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
        "README.md",
        "pytorch_model.bin",
        "modeling_x.py",
    ):
        (folder / name).write_text("{}")
    with serving(Hub("org/model", folder)) as server:
        point_at(server.address, monkeypatch)
        yield server


def point_at(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT does when huggingface_hub is imported."""
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def spec_of(model: str = "org/model", context: int = 64, **more: Any) -> ExportSpec:
    return ExportSpec(
        hf=HfModel(id=model, **more),
        generation=ExportGeneration(context=context),
        places={"model.hf": "r.yaml:1:8", "model.revision": "r.yaml:2:3"},
    )


def failure(spec: ExportSpec) -> ExportFailure:
    with pytest.raises(WorkerError) as caught:
        fetch(spec, lambda *_: None)
    return caught.value.failure


def test_only_what_is_loaded_is_downloaded_and_then_used_without_the_hub(
    hub: Hub, cache: Path
) -> None:
    told: list[str] = []
    found = fetch(spec_of(), lambda text, _: told.append(text))
    assert found == Checkpoint(cache / "models--org--model" / "snapshots" / COMMIT, COMMIT)
    assert sorted(path.name for path in found.folder.iterdir()) == [
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert [text.split()[0] for text in told] == ["asking", "getting"]
    assert all("org/model" in text for text in told)
    hub.asked.clear()
    assert fetch(spec_of(), lambda *_: None) == found
    assert hub.asked == []


def test_the_configuration_alone_chooses_the_recipe_of_a_model_that_is_not_here(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    hub.files["config.json"] = json.dumps({"architectures": ["BertForMaskedLM"]}).encode()
    assert default_recipe("org/model") == "llm-xnnpack"
    download_config("org/model", "main")
    assert [p.name for p in cache.rglob("snapshots/*/*")] == ["config.json"]
    for name in ("org/model", "https://huggingface.co/org/model/tree/main"):
        assert default_recipe(name) == "xnnpack"
    hub.asked.clear()
    download_config("org/model", "main")
    assert hub.asked == []


def test_an_id_without_an_organization_is_downloaded_like_others(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.chdir(tmp_path)
    with serving(Hub("gpt2", write_checkpoint(tmp_path / "given"))) as server:
        point_at(server.address, monkeypatch)
        server.files["config.json"] = json.dumps({"architectures": ["BertForMaskedLM"]}).encode()
        in_hub = hub_model("gpt2")
        assert in_hub is not None
        download_config(*in_hub)
        assert default_recipe("gpt2") == "xnnpack"
        assert load_recipe("xnnpack", ["--model=gpt2"]).recipe.model.task == "fill-mask"
    assert [p.parent.parent.parent.name for p in cache.rglob("snapshots/*/*")] == ["models--gpt2"]


def test_a_name_that_is_neither_a_folder_nor_a_model_of_the_hub(hub: Hub) -> None:
    found = failure(spec_of("gpt5"))
    assert found.message.startswith("there is no folder gpt5, and the Hugging Face hub has no ")
    assert not lacks(str(found.remedy), "path of a folder", "openai-community/gpt2", LOG_IN[:13])


@pytest.mark.parametrize("offline", [True, False])
def test_a_hub_that_does_not_answer_changes_nothing(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1" if offline else "0")
    hub.refusal = 403, {"X-Error-Code": "GatedRepo"}
    download_config("org/model", "main")
    assert bool(hub.asked) is not offline
    assert not any(cache.rglob("config.json"))
    assert default_recipe("org/model") == "llm-xnnpack"


def test_an_adapter_is_downloaded_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_adapter(tmp_path / "given")
    (folder / "adapter_model.bin").touch()
    adapter = HfModel(id="org/lora")
    spec = spec_of().model_copy(update={"lora": (adapter,)})
    hub = Hub("org/lora", folder)
    with serving(hub) as server:
        point_at(server.address, monkeypatch)
        found = fetch_adapter(spec, adapter, lambda *_: None)
        assert found == Checkpoint(cache / "models--org--lora" / "snapshots" / COMMIT, COMMIT)
        assert {path.name for path in found.folder.iterdir()} == {*ADAPTER_FILES}
        server.asked.clear()
        assert fetch_adapter(spec, adapter, lambda *_: None) == found
        assert server.asked == []
        with pytest.raises(WorkerError) as caught:
            fetch_adapter(spec, HfModel(id="org/none"), lambda *_: None)
        hub.refusal = 503, {}
        with pytest.raises(WorkerError) as unavailable:
            fetch_adapter(spec, HfModel(id="org/other"), lambda *_: None)
    assert caught.value.failure.file == "model.lora"
    assert not lacks(caught.value.failure.message, "org/none")
    assert not lacks(str(unavailable.value.failure.remedy), "--set model.lora=./other")


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_a_model_of_timm_is_downloaded_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str
) -> None:
    folder = write_checkpoint(tmp_path / "given")
    (folder / "config.json").write_text('{"architecture": "vit", "num_classes": 2}')
    for name in ("README.md", "model.onnx", "pytorch_model.bin"):
        (folder / name).touch()
    if weights == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
    model = HfModel(id="timm/vit.x", timm=True)
    spec = ExportSpec(hf=model, task="image-classification")
    with serving(Hub("timm/vit.x", folder)) as server:
        point_at(server.address, monkeypatch)
        found = fetch(spec, lambda *_: None)
        assert {path.name for path in found.folder.iterdir()} == {"config.json", weights}
        server.asked.clear()
        assert fetch(spec, lambda *_: None) == found
        assert server.asked == []


def test_a_model_of_timm_is_refused_before_its_weights_are_downloaded(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path / "given")
    (folder / "config.json").write_text('{"architecture": "vit", "num_classes": 0}')
    model = HfModel(id="timm/vit.x", timm=True)
    with serving(Hub("timm/vit.x", folder)) as server:
        point_at(server.address, monkeypatch)
        assert "no classes" in failure(ExportSpec(hf=model, task="image-classification")).message
        assert not any("model.safetensors" in path for path in server.asked)
        del server.files["model.safetensors"]
        assert "weights" in failure(ExportSpec(hf=model, task="image-classification")).message


def test_a_file_in_gguf_is_downloaded_alone_and_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    write_gguf(folder / "m-Q4_0.gguf")
    for name in ("m-Q8_0.gguf", "m-F16-00001-of-00002.gguf", "README.md"):
        (folder / name).touch()
    with serving(Hub("org/model", folder)) as server:
        point_at(server.address, monkeypatch)
        found = fetch(spec_of(gguf="m-Q4_0.gguf"), lambda *_: None)
        snapshot = cache / "models--org--model" / "snapshots" / COMMIT
        assert found == Checkpoint(snapshot / "m-Q4_0.gguf", COMMIT)
        assert [path.name for path in snapshot.iterdir()] == ["m-Q4_0.gguf"]
        server.asked.clear()
        assert fetch(spec_of(gguf="m-Q4_0.gguf"), lambda *_: None) == found
        assert server.asked == []
        missing = failure(spec_of(gguf="m-Q6_K.gguf"))
        split = failure(spec_of(gguf="m-F16-00001-of-00002.gguf"))
    assert not lacks(missing.message, "org/model", "m-Q6_K.gguf", "m-Q4_0.gguf")
    assert not lacks(str(missing.remedy), "--model org/model/m-")
    assert missing.file == "model.gguf"
    assert not lacks(str(split.remedy), "llama-gguf-split --merge m-F16-00001-of-00002.gguf")


def test_code_is_downloaded_only_if_it_may_run(hub: Hub) -> None:
    assert (fetch(spec_of(remote_code=True), lambda *_: None).folder / "modeling_x.py").is_file()


def test_a_download_that_was_cut_goes_on_at_the_same_commit(hub: Hub, cache: Path) -> None:
    folder = fetch(spec_of(), lambda *_: None).folder
    (folder / "model.safetensors").unlink()
    hub.asked.clear()
    assert (fetch(spec_of(), lambda *_: None).folder / "model.safetensors").is_file()
    assert not any("/revision/main" in path for path in hub.asked)


def test_weights_that_came_without_the_tokenizer(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch(spec_of(), lambda *_: None).folder
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    assert (fetch(spec_of(), lambda *_: None).folder / "tokenizer.json").is_file()
    (folder / "tokenizer.json").unlink()
    point_at("http://127.0.0.1:9", monkeypatch)
    assert fetch(spec_of(), lambda *_: None) == Checkpoint(folder, COMMIT)


INVALID = {"X-Error-Message": "Invalid credentials in Authorization header"}


@pytest.mark.parametrize(
    ("refusal", "changes", "facts", "remedy", "file"),
    [
        ((403, {"X-Error-Code": "GatedRepo"}), {}, "org/model is gated", LOG_IN, "r.yaml:1:8"),
        (None, {"model": "org/other"}, "no model org/other", LOG_IN, "r.yaml:1:8"),
        ((401, INVALID), {}, "refuses the token", LOG_IN, "r.yaml:1:8"),
        (None, {"revision": "v9"}, "revision 'v9'", " {}/org/model/tree/main", "r.yaml:2:3"),
        ((503, {}), {}, "503", " --model ./model", "r.yaml:1:8"),
    ],
)
def test_what_the_hub_refuses(
    hub: Hub, refusal: Any, changes: dict[str, Any], facts: str, remedy: str, file: str
) -> None:
    hub.refusal = refusal
    found = failure(spec_of(**changes))
    assert (found.kind, found.file) == ("hub", file)
    assert facts in found.message
    assert str(found.remedy).endswith(remedy.format(hub.address))
    assert len(hub.asked) == 1


def test_a_hub_that_cannot_be_reached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point_at("http://127.0.0.1:9", monkeypatch)
    found = failure(spec_of())
    assert found.message.startswith("org/model is not ")
    assert "http://127.0.0.1:9 cannot be" in found.message
    assert found.remedy is not None
    assert ": hf download org/model --local-dir model\n" in found.remedy
    assert found.remedy.endswith(": --model ./model")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in failure(spec_of()).message


def test_a_model_with_pickles_only_is_not_downloaded(hub: Hub, cache: Path) -> None:
    del hub.files["model.safetensors"]
    found = failure(spec_of())
    assert found.kind == "checkpoint"
    assert "(pytorch_model.bin)" in found.message
    assert not any("/resolve/" in path for path in hub.asked)


def test_what_the_configuration_rules_out_is_not_downloaded(hub: Hub) -> None:
    found = failure(spec_of(context=512))
    assert "256" in found.message
    assert "512" in found.message
    assert found.file == "export.generation.context"
    assert not any(path.endswith("model.safetensors") for path in hub.asked)


def test_a_model_that_cannot_chat_is_not_downloaded(hub: Hub) -> None:
    found = failure(spec_of().model_copy(update={"speech": "chat"}))
    assert (found.kind, found.file) == ("speech", "r.yaml:1:8")
    assert "no chat template" in found.message
    assert not any(path.endswith("model.safetensors") for path in hub.asked)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.json"])
def test_a_template_in_any_of_its_files_is_enough(hub: Hub, name: str) -> None:
    hub.files[name] = b'{"chat_template": "{{ messages }}"}'
    found = fetch(spec_of().model_copy(update={"speech": "chat"}), lambda *_: None)
    assert (found.folder / "model.safetensors").is_file()


def test_a_model_without_a_tokenizer_is_not_downloaded_for_text(hub: Hub) -> None:
    del hub.files["tokenizer.json"]
    found = failure(spec_of().model_copy(update={"speech": "text"}))
    assert "no tokenizer" in found.message
    assert not any("/resolve/" in path for path in hub.asked)


def test_a_model_that_does_not_fit_on_the_disk(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path, least_bytes: int, least_files: int) -> None:
        assert folder.is_dir()
        # The configuration is there already: it was looked at.
        wanted = [len(hub.files[name]) for name in (
            "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        )]  # fmt: skip
        assert (least_bytes, least_files) == (sum(wanted), 4)
        raise OSError(28, "No space left on device", str(folder))

    monkeypatch.setattr(fetching, "require_room", full)
    with pytest.raises(OSError, match="No space left"):
        fetch(spec_of(), lambda *_: None)
    assert not any(path.endswith("model.safetensors") for path in hub.asked)


def test_a_folder_needs_no_hub(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    spec = ExportSpec(hf=HfModel(folder=str(folder)))
    found = fetch(spec, lambda *_: None)
    assert (found.folder, found.commit) == (folder, None)
