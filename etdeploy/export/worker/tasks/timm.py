"""Models of timm: created with the weights of a folder, with images transformed as timm does."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from etdeploy.core.console import listed
from etdeploy.export.hf.check import timm_refusals
from etdeploy.export.hf.config import FACTORY
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import exception_text, fail, is_memory
from etdeploy.export.worker.language.fetch import Tell, checkpoint_failure, fetch
from etdeploy.export.worker.language.load import own_forward
from etdeploy.export.worker.loading.files import without_pickled_code
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.tasks.inputs import Processor, random_input_note, task_tensors
from etdeploy.export.worker.tasks.load import TaskModel
from etdeploy.export.worker.tracing.structure import ExampleInputs
from etdeploy.recipe.hub_cache import CONFIG, read_object
from etdeploy.recipe.tasks import FEATURE_EXTRACTION

_PIXELS = "pixel_values"
_SIZES = r"torch\.Size\((\[.*?\])\)"
_MISMATCH = re.compile(
    rf"size mismatch for (\S+): copying a param with shape {_SIZES} from checkpoint, the shape in "
    rf"current model is {_SIZES}"
)
_MISSING = re.compile(r"Missing key\(s\) in state_dict: (.+?)\.\s*$", re.MULTILINE)
_SHOWN = 3


class TimmMethod(torch.nn.Module):  # type: ignore[misc]
    """A model of timm whose output has the name that its task gives it."""

    def __init__(self, model: Any, output: str) -> None:
        super().__init__()
        self.model, self.output = model, output

    def forward(self, pixel_values: torch.Tensor) -> dict[str, torch.Tensor]:
        return {self.output: self.model(pixel_values)}


def load_timm(spec: ExportSpec, tell: Tell) -> TaskModel:
    """The model of timm that the spec names."""
    if spec.hf is None or spec.task is None:
        raise ValueError("the spec names no model of timm")
    checkpoint = replace(fetch(spec, tell), is_timm=True)
    folder = checkpoint.folder
    for refusal in timm_refusals(folder, spec.task):
        raise checkpoint_failure(refusal, spec)
    tell(f"loading {spec.source}", 0.1)
    config = read_object(folder / CONFIG)
    _require_architecture(str(config["architecture"]), spec)
    model = _loaded(spec, folder)
    labels = {} if spec.task == FEATURE_EXTRACTION else _labels(config, model)
    if spec.task == FEATURE_EXTRACTION:
        model.reset_classifier(0)
    transform, settings = _transform(model, spec)
    processor = Processor(folder, spec.task, "image", transform, settings=settings)
    inputs = task_tensors(processor, spec.input, None)
    output = "features" if spec.task == FEATURE_EXTRACTION else "logits"
    method = TimmMethod(model, output).eval()
    _require_one_tensor(model, inputs.values[_PIXELS])
    source = MethodSource(method, ExampleInputs((), dict(inputs.values)))
    note = random_input_note(processor, inputs)
    named = SimpleNamespace(id2label=labels)
    return TaskModel(named, checkpoint, processor, inputs, source, (note,) if note else ())


def _require_architecture(name: str, spec: ExportSpec) -> None:
    import timm

    if timm.is_model(name):
        return
    near = get_close_matches(name, timm.list_models())
    raise fail(
        "checkpoint",
        f"the installed timm {timm.__version__} has no architecture {name!r}"
        + (f"; it has {listed(near)}" if near else ""),
        remedy="Install a timm that has it, or export the model with a factory (model.python).",
        file=spec.place("model", "timm"),
    )


def _loaded(spec: ExportSpec, folder: Path) -> Any:
    import timm

    try:
        with without_pickled_code():
            model = timm.create_model(f"local-dir:{folder}", pretrained=True)
    except MemoryError:
        raise
    except Exception as error:  # of timm's code
        if is_memory(error):
            raise
        misfits = _misfits(str(error))
        # What timm says about loading without weights_only is nothing that etdeploy does.
        reason = exception_text(error).partition(" No automatic")[0]
        what = f"cannot load {spec.source}: {reason}"
        raise fail(
            "checkpoint",
            f"the weights do not fit {CONFIG}: {misfits}"
            if misfits
            else f"timm {timm.__version__} {what}",
            remedy="Use the configuration and the weights of one model, as timm.models.save_for_hf "
            "wrote them."
            if misfits
            else "The log has the whole traceback. Save the model again: "
            "timm.models.save_for_hf(model, FOLDER, safe_serialization=True)",
            file=str(folder),
        ) from error
    return model.float().eval()


def _misfits(text: str) -> str:
    """The tensors that do not fit, as a message of PyTorch's names them."""
    found = [
        f"{name} is {given} and not {wanted}" for name, given, wanted in _MISMATCH.findall(text)
    ]
    missing = ", ".join(_MISSING.findall(text)).replace('"', "").split(", ")
    missing = [name for name in missing if name]
    if missing:
        found.insert(0, f"without {listed(missing, _SHOWN)}")
    return "; ".join([*found[:_SHOWN], *(["and more"] if found[_SHOWN:] else [])])


def _labels(config: Mapping[str, Any], model: Any) -> dict[int, str]:
    """Names of classes: of the configuration, or ImageNet's for weights with its tag."""
    from timm.data import ImageNetInfo, infer_imagenet_subset

    cfg = {**(config.get("pretrained_cfg") or {}), **config}
    names = cfg.get("label_names") or cfg.get("labels")
    texts = cfg.get("label_descriptions") or {}
    if isinstance(names, list):
        names = dict(enumerate(names))
    if isinstance(names, dict):
        return {int(index): str(texts.get(name, name)) for index, name in names.items()}
    subset = infer_imagenet_subset(model)
    if subset is None or not re.search(r"in(1|12|21|22)k", str(cfg.get("tag"))):
        return {}
    return dict(enumerate(ImageNetInfo(subset).label_descriptions()))


def _transform(model: Any, spec: ExportSpec) -> tuple[Any, dict[str, Any]]:
    """Timm's transformation of an image, called as a processor of transformers.

    With fields of ImagePreprocessing that say the same.
    """
    from timm.data import create_transform, resolve_model_data_config

    data = resolve_model_data_config(model)
    channels = data["input_size"][0]
    mode = {1: "L", 3: "RGB"}.get(channels)
    if mode is None:
        raise fail(
            "inputs",
            f"the model takes images of {channels} channels, and image files have 1 or 3",
            remedy="Export it with a factory that makes its input: model.python",
            file=spec.place("model", "timm"),
        )
    transform = create_transform(**data, is_training=False)

    def process(images: Any, **_: Any) -> dict[str, torch.Tensor]:
        return {_PIXELS: transform(images.convert(mode))[None]}

    return process, _image_settings(data)


def _image_settings(data: Mapping[str, Any]) -> dict[str, Any]:
    height, width = data["input_size"][1:]
    found: dict[str, Any] = {
        "filter": data["interpolation"],
        "mean": tuple(data["mean"]),
        "std": tuple(data["std"]),
    }
    edges = [math.floor(side / data["crop_pct"]) for side in (height, width)]
    if data["crop_mode"] == "center" and height == width:
        return found | {"shortest_edge": edges[0]}
    return found | {"resize_height": edges[0], "resize_width": edges[1]}


def _require_one_tensor(model: Any, pixels: torch.Tensor) -> None:
    with own_forward(model):
        made = model(pixels)
    if not isinstance(made, torch.Tensor) or made.dim() != 2:
        raise fail(
            "outputs",
            f"the model, a {type(model).__name__}, gives something other than one vector",
            remedy=FACTORY,
        )
