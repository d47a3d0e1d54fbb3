"""Models of timm: loaded from folders, with their transformations and labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from etdeploy.export.protocol import ExportFailure
from etdeploy.export.spec import ExportSpec, HfModel, TaskInput
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.tasks.inputs import LABELS, PROCESSOR_FOLDER
from etdeploy.export.worker.tasks.load import TaskModel
from etdeploy.export.worker.tasks.timm import load_timm
from tests.support.facts import lacks

timm = pytest.importorskip("timm")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ResNet for images of 32 pixels, with the labels of three classes."""
    folder = tmp_path_factory.mktemp("timm") / "model"
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", pretrained=False, num_classes=3)
    timm.models.save_for_hf(
        model,
        folder,
        model_config={"label_names": ["cat", "dog", "cow"]},
        data_config={"input_size": (3, 32, 32)},
        safe_serialization=True,
    )
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    copy = tmp_path / "model"
    copy.mkdir()
    for path in saved.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def change(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def loaded(folder: Path, task: str = "image-classification", **given: str) -> TaskModel:
    model = HfModel(folder=str(folder), timm=True)
    spec = ExportSpec(hf=model, task=task, backend="xnnpack", input=TaskInput(**given))
    return load_timm(spec, lambda *_: None)


def failure(folder: Path) -> ExportFailure:
    with pytest.raises(WorkerError) as caught:
        loaded(folder)
    return caught.value.failure


def outputs(model: TaskModel) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        made: dict[str, torch.Tensor] = model.source.module(**model.inputs.values)
    return made


def test_an_image_is_transformed_and_classified_as_timm_does(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    Image.effect_mandelbrot((90, 60), (-2, -1.5, 1, 1.5), 40).save(path)
    found = loaded(saved, image=str(path))
    own = timm.create_model(f"local-dir:{saved}", pretrained=True).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(own))
    pixels = transform(Image.open(path).convert("RGB"))[None]
    assert torch.equal(found.inputs.values["pixel_values"], pixels)
    logits = outputs(found)["logits"]
    with torch.no_grad():
        assert torch.equal(logits, own(pixels))
    expected = found.program({"logits": logits}).expected
    assert expected is not None
    assert expected.labels[0].label == ("cat", "dog", "cow")[int(logits.argmax())]
    found.write(tmp_path)
    names = json.loads((tmp_path / PROCESSOR_FOLDER / LABELS).read_text())
    assert names == {"0": "cat", "1": "dog", "2": "cow"}


def test_features_leave_out_the_classifier(saved: Path) -> None:
    found = loaded(saved, "feature-extraction")
    own = timm.create_model(f"local-dir:{saved}", pretrained=True).eval()
    with torch.no_grad():
        wanted = own.forward_head(own.forward_features(found.inputs.values["pixel_values"]), True)
    assert torch.equal(outputs(found)["features"], wanted)
    assert found.notes  # its pixels are random


def test_a_pickle_of_tensors_is_read_and_no_other(folder: Path) -> None:
    weights = folder / "model.safetensors"
    logits = outputs(loaded(folder))["logits"]
    own = timm.create_model(f"local-dir:{folder}", pretrained=True)
    weights.unlink()
    torch.save(own.state_dict(), folder / "pytorch_model.bin")
    assert torch.equal(outputs(loaded(folder))["logits"], logits)
    torch.save({"fc.weight": Path("x")}, folder / "pytorch_model.bin")
    assert failure(folder).kind == "checkpoint"


def test_an_architecture_that_timm_does_not_have(folder: Path) -> None:
    change(folder, architecture="test_resnets")
    assert not lacks(failure(folder).message, timm.__version__, "'test_resnets'", "test_resnet,")


def test_weights_of_another_number_of_classes(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    parts = ("model_args", "pretrained_cfg")
    change(
        folder,
        num_classes=5,
        label_names=None,
        **{name: {**config[name], "num_classes": 5} for name in parts},
    )
    assert not lacks(failure(folder).message, "[3, ", "[5, ")


def test_weights_of_imagenet_have_its_labels(folder: Path) -> None:
    own = timm.create_model("test_resnet", pretrained=False)
    pretrained = {**own.pretrained_cfg, "tag": "r160_in1k"}
    timm.models.save_for_hf(own, folder, safe_serialization=True)
    change(folder, label_names=None, pretrained_cfg=pretrained)
    assert loaded(folder).config.id2label[1].startswith("goldfish")
    change(folder, pretrained_cfg={**pretrained, "tag": "mine"})
    assert loaded(folder).config.id2label == {}


def test_images_of_more_channels_are_refused(folder: Path) -> None:
    own = timm.create_model("test_resnet", pretrained=False, in_chans=5)
    timm.models.save_for_hf(own, folder, safe_serialization=True)
    assert "5 channels" in failure(folder).message
