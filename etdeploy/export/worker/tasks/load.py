"""Models of transformers that answer in one call: loaded, with their inputs, as one method."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import parametrize

from etdeploy.core.console import listed
from etdeploy.export.hf.check import checkpoint_refusals
from etdeploy.export.hf.config import FACTORY, longest_context
from etdeploy.export.hf.files import MODULES, POOLING
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import lowering_of, patched
from etdeploy.export.worker.failures import WorkerError, fail
from etdeploy.export.worker.language.fetch import (
    Checkpoint,
    Tell,
    checkpoint_failure,
    fetch,
    require_code,
)
from etdeploy.export.worker.language.load import (
    auto_class,
    load_config,
    load_pretrained,
    own_forward,
    require_match,
    unused_note,
)
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.tasks.inputs import (
    INPUT_IMAGE,
    LABELS,
    PROCESSOR_FOLDER,
    Processor,
    TaskTensors,
    image_preprocessing,
    load_processor,
    processor_files,
    random_input_note,
    speech_preprocessing,
    task_tensors,
)
from etdeploy.export.worker.tasks.results import ModelAnswer, Tensors, task_result
from etdeploy.export.worker.tracing.structure import ExampleInputs
from etdeploy.program.task import TaskProgram
from etdeploy.recipe.hub_cache import CONFIG, read_object
from etdeploy.recipe.tasks import FEATURE_EXTRACTION, IMAGE_CLASSIFICATION, SPEECH_RECOGNITION

# The outputs that a task is about, of those that a model has.
_OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "object-detection": ("logits", "pred_boxes"),
    "depth-estimation": ("predicted_depth",),
    "text-to-speech": ("waveform", "spectrogram"),
    FEATURE_EXTRACTION: ("last_hidden_state", "pooler_output"),
}
_LOGITS = ("logits",)
_UNMASKED = "etdeploy_unmasked"
# Of outputs, relative to the largest: float32 sums in another order.
_TOLERANCE = 1e-3
_NORMALIZE = "Normalize"
# Of audio: models of speech combine about 25 ms in each position.
_LEAST_S = 0.1


@dataclass(frozen=True)
class TaskModel:
    """A model with the tensors of the user's input, ready to be exported.

    `config` is what transformers reads of it, or has `id2label` alone for a model of timm, whose
    images need no processor after the model.
    """

    config: Any
    checkpoint: Checkpoint
    processor: Processor
    inputs: TaskTensors
    source: MethodSource
    notes: tuple[str, ...] = ()

    @property
    def commit(self) -> str | None:
        """Of the hub; None for a folder."""
        return self.checkpoint.commit

    @property
    def image(self) -> Any:
        """The input image; None for other modalities."""
        return self.inputs.content if self.processor.modality == "image" else None

    def write(self, folder: Path) -> None:
        """Puts what reads its results into a program folder, with the input image."""
        target = folder / PROCESSOR_FOLDER
        target.mkdir()
        if self.checkpoint.is_timm:
            (target / LABELS).write_text(json.dumps(self.config.id2label))
        else:
            for name, path in processor_files(self.processor.folder).items():
                shutil.copyfile(path, target / name)
        if self.image is not None:
            self.image.save(target / INPUT_IMAGE)

    def program(self, outputs: Tensors | None) -> TaskProgram:
        """What is known of the program, with the result of the model's own outputs."""
        expected = None
        if outputs is not None:
            answer = ModelAnswer(
                self.processor, self.config, self.inputs.values, outputs, self.image
            )
            expected = task_result(answer)
        image, speech, no_app = None, None, None
        if self.processor.task == IMAGE_CLASSIFICATION:
            image, no_app = image_preprocessing(self.processor, self.inputs.values)
        if self.processor.task == SPEECH_RECOGNITION:
            speech, no_app = speech_preprocessing(self.processor, self.inputs.values)
        return TaskProgram(
            task=self.processor.task,
            is_real=self.inputs.is_real,
            preprocess_ms=round(self.inputs.took_ms, 3),
            expected=expected,
            image=image,
            speech=speech,
            no_app=no_app,
        )


def load_task(spec: ExportSpec, tell: Tell) -> TaskModel:
    """The model of a task that the spec names."""
    if spec.hf is None or spec.task is None:
        raise ValueError("the spec names no task")
    checkpoint = fetch(spec, tell)
    folder = checkpoint.folder
    for refusal in checkpoint_refusals(folder, 0, spec.task):
        raise checkpoint_failure(refusal, spec)
    require_code(spec, folder)
    processor = load_processor(folder, spec.task)
    tell(f"loading {spec.source}", 0.1)
    model, unused = _loaded(spec, folder)
    longest = longest_text(model, processor)
    inputs = task_tensors(processor, spec.input, longest)
    speech = _speech_length(model, inputs)
    try:
        method = _method(model, spec.task, inputs, folder, speech)
    except WorkerError as error:
        if short := _too_short(processor, inputs):
            raise short from error
        raise
    shapes = None
    if processor.modality == "text" and not (speech or lowering_of(spec).fixed_shapes):
        tokens = torch.export.Dim.AUTO(min=2, max=longest)
        shapes = {name: {1: tokens} for name in inputs.values}
    source = MethodSource(method.eval(), ExampleInputs((), dict(inputs.values)), shapes)
    length = speech.note if speech else None
    notes = filter(None, (unused, random_input_note(processor, inputs), length))
    return TaskModel(model.config, checkpoint, processor, inputs, source, tuple(notes))


def _too_short(processor: Processor, inputs: TaskTensors) -> WorkerError | None:
    """Why a model failed with so little audio; None for other inputs."""
    if processor.modality != "audio" or inputs.content.size >= _LEAST_S * processor.sampling_rate:
        return None
    seconds = inputs.content.size / processor.sampling_rate
    return fail(
        "inputs",
        f"the audio is {seconds:.3g} s long, which is too short for the model's convolutions",
        remedy=f"Give at least {_LEAST_S} s.",
        file="benchmark.input.audio",
    )


def _loaded(spec: ExportSpec, folder: Path) -> tuple[Any, str | None]:
    config = load_config(folder / CONFIG, {"pretrained_model_name_or_path": folder})
    code = bool(spec.hf and spec.hf.remote_code)
    source = {
        "pretrained_model_name_or_path": folder,
        "local_files_only": True,
        "trust_remote_code": code,
        "use_safetensors": True,
    }
    model, info = load_pretrained(spec, source, config, auto_class(config, str(spec.task)))
    if spec.task == FEATURE_EXTRACTION:  # a pooler or a head that nothing needs
        info = {**info, "missing_keys": [k for k in info["missing_keys"] if "pooler" not in k]}
    require_match(spec, info)
    fix_parametrizations(model)
    return model.eval(), unused_note(info["unexpected_keys"])


def fix_parametrizations(model: torch.nn.Module) -> None:
    """Computes weights that are made of others, like those of a weight norm, once.

    In the graph, they would be computed by each inference, and ExecuTorch's lowering to QNN takes
    no such weight of a convolution of one dimension.
    """
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            for name in list(module.parametrizations):
                parametrize.remove_parametrizations(module, name, leave_parametrized=True)


def longest_text(model: Any, processor: Processor) -> int | None:
    """The most tokens of a text that a model takes; None without a limit, or of another input."""
    if processor.modality != "text":
        return None
    positions = longest_context(model.config.to_dict())
    embeddings = getattr(model.base_model, "embeddings", None)
    table = getattr(embeddings, "position_embeddings", None)
    # RoBERTa and its relatives number positions from the padding token's id on.
    unused = getattr(table, "padding_idx", None)
    if positions and unused is not None:
        positions -= unused + 1
    own = getattr(processor.tokenizer, "model_max_length", None)
    found = [n for n in (positions, own) if isinstance(n, int) and 2 < n < 2**20]
    return min(found, default=None)


class TaskMethod(torch.nn.Module):  # type: ignore[misc]
    """A model whose outputs are the tensors of a task, by their names."""

    def __init__(
        self,
        model: Any,
        inputs: Iterable[str],
        outputs: tuple[str, ...],
        pooling: Pooling | None,
        speech: SpeechLength | None = None,
    ) -> None:
        super().__init__()
        self.model, self.outputs, self.pooling = model, outputs, pooling
        self.speech = speech
        # torch.export names the inputs after the parameters.
        parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in inputs]
        signed: Any = partial(self._forward)
        signed.__signature__ = Signature(parameters)
        self.__dict__["forward"] = signed

    def _forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        with self.speech.fixed(self.model) if self.speech else nullcontext():
            out = self.model(**inputs, return_dict=True)
        found = {name: out[name] for name in self.outputs}
        if self.pooling:
            found["sentence_embedding"] = self.pooling(found["last_hidden_state"])
        return found


_REGULATOR = "length_regulator"


@dataclass(frozen=True)
class SpeechLength:
    """The length of the speech of FastSpeech 2, whose tokens last as long as the model predicts.

    torch.export takes no size that depends on values, so a program has that of the example's.
    """

    frames: int

    @property
    def note(self) -> str:
        """For the user."""
        return (
            f"The program's speech has {self.frames} frames, as the model predicts for the text; "
            "another text is another program."
        )

    @contextmanager
    def fixed(self, model: Any) -> Iterator[None]:
        """While the block runs, the model gives this number of frames."""
        with patched(inspect.getmodule(type(model)), **{_REGULATOR: self.regulated}):
            yield

    def regulated(
        self, embeddings: torch.Tensor, durations: torch.Tensor, speaking_speed: float = 1.0
    ) -> torch.Tensor:
        """As transformers' function, of embeddings of shape (1, tokens, d), with zeros at the end.

        Each token is repeated by a product with zeros and ones of shape (frames, tokens).
        """
        if speaking_speed != 1.0:
            durations = torch.round(durations.float() * speaking_speed).long()
        durations = durations + (durations.sum() == 0)
        ends = durations.cumsum(1).float().unsqueeze(1)
        frames = torch.arange(self.frames, dtype=torch.float32).reshape(-1, 1)
        after, before = frames < ends, frames >= ends - durations.unsqueeze(1)
        return (after & before).to(embeddings.dtype) @ embeddings


def _speech_length(model: Any, inputs: TaskTensors) -> SpeechLength | None:
    """That of a text; None of a model whose outputs have no length of their own."""
    module = inspect.getmodule(type(model))
    regulator = getattr(module, _REGULATOR, None)
    if regulator is None:
        return None
    lengths = []

    def observed(*args: Any) -> Any:
        found = regulator(*args)
        lengths.append(found.shape[1])
        return found

    with patched(module, **{_REGULATOR: observed}), own_forward(model):
        model(**inputs.values)
    return SpeechLength(*lengths)


@dataclass(frozen=True)
class Pooling:
    """How sentence-transformers makes one vector of those of a text's tokens."""

    first: bool
    normalized: bool

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        pooled = states[:, 0] if self.first else states.mean(dim=1)
        return torch.nn.functional.normalize(pooled, dim=-1) if self.normalized else pooled


def _pooling(folder: Path) -> Pooling | None:
    """That of a sentence-transformers model; None for another."""
    try:
        modules = (folder / MODULES).read_text()
        settings = read_object(folder / POOLING)
    except (OSError, ValueError):
        return None
    return Pooling(bool(settings.get("pooling_mode_cls_token")), _NORMALIZE in modules)


def _method(
    model: Any, task: str, inputs: TaskTensors, folder: Path, speech: SpeechLength | None
) -> TaskMethod:
    """The model with its outputs, computed without masks if they are the same then."""
    pooling = _pooling(folder) if task == FEATURE_EXTRACTION else None
    wanted = _own_outputs(model, inputs)
    names = tuple(name for name in _OUTPUTS.get(task, _LOGITS) if name in wanted)
    if not names:
        raise fail(
            "outputs",
            f"the model, a {type(model).__name__}, gives {listed(sorted(wanted))}, and not "
            f"{' or '.join(_OUTPUTS.get(task, _LOGITS))}",
            remedy=FACTORY,
        )
    method = TaskMethod(model, inputs.values, names, pooling, speech)
    own = getattr(model.config, "_attn_implementation", None)
    if own and use_unmasked_attention(model):
        tried = _tried(method, inputs).items()
        is_same = all(_equal(wanted[name], value) for name, value in tried if name in wanted)
        model.set_attn_implementation(_UNMASKED if is_same else own)
    return method


def _own_outputs(model: Any, inputs: TaskTensors) -> dict[str, torch.Tensor]:
    with own_forward(model):
        out = model(**inputs.values, return_dict=True)
    return dict(_float_tensors(out))


def _float_tensors(out: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in out.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 0:
            yield name, value


def _tried(method: TaskMethod, inputs: TaskTensors) -> Mapping[str, torch.Tensor]:
    try:
        with torch.no_grad():
            found: Mapping[str, torch.Tensor] = method(**inputs.values)
            return found
    except MemoryError:
        raise
    except Exception:  # the model's code, without the mask that it may need
        return {name: torch.full((1,), torch.nan) for name in method.outputs}


def _equal(wanted: torch.Tensor, found: torch.Tensor) -> bool:
    if wanted.shape != found.shape:
        return False
    bound = _TOLERANCE * max(1.0, float(wanted.abs().max()))
    return bool((wanted - found).abs().max() <= bound)


def use_unmasked_attention(model: Any) -> bool:
    """Replaces a model's attention by one to all positions: of one whole input, none is padding.

    Returns whether the model can do that.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if not model._can_set_attn_implementation():
        return False
    AttentionInterface.register(_UNMASKED, sdpa_attention_forward)
    AttentionMaskInterface.register(_UNMASKED, lambda *_, **__: None)
    model.set_attn_implementation(_UNMASKED)
    return True
