"""A language model of transformers: checked, loaded, and made into methods that generate."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from etdeploy.backends.schemes import GROUPED_SCHEMES, LINEAR_SCHEMES
from etdeploy.core.console import count, listed, size
from etdeploy.core.files.basic import CACHE_VARIABLE
from etdeploy.export.cache import joined_commits
from etdeploy.export.hf.check import checkpoint_refusals, context_note
from etdeploy.export.hf.config import AGAIN, FACTORY
from etdeploy.export.hf.files import GENERATION_CONFIG, has_tokenizer
from etdeploy.export.hf.memory import MemoryForecast, memory_forecast, memory_refusal
from etdeploy.export.hf.prequantized import (
    Prequantized,
    outlook_notes,
    read_prequantized,
)
from etdeploy.export.hf.tensors import checkpoint_tensors
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import exception_text, fail, is_memory
from etdeploy.export.worker.language import gguf
from etdeploy.export.worker.language.fetch import (
    Checkpoint,
    Tell,
    checkpoint_failure,
    fetch,
    require_code,
    require_tokenizer,
)
from etdeploy.export.worker.language.prequantized import (
    joined_notes,
    of_linears,
    unpacked_state,
    weights_on_grid,
)
from etdeploy.export.worker.language.tokenizer import (
    HfTokenizer,
    load_gguf_tokenizer,
    load_tokenizer,
)
from etdeploy.export.worker.lowering.rowwise import mapped_state
from etdeploy.export.worker.lowering.stored import StoredWeight
from etdeploy.export.worker.lowering.weight_files import WeightFiles, return_large_blocks
from etdeploy.export.worker.tasks.inputs import Processor, load_processor
from etdeploy.recipe.hub_cache import CONFIG, read_object
from etdeploy.recipe.tasks import TASKS, has_encoder

if TYPE_CHECKING:
    from etdeploy.export.worker.language.lora import Adapter

_TEMPORARY = "etdeploy-gguf-"
_SHOWN = 3


@dataclass(frozen=True)
class LoadedModel:
    """A language model on this machine, in float32 and evaluation mode, with notes for the user.

    `stored` has the weights that its checkpoint has quantized, by the path of the linear layer; the
    model has what they stand for. `adapters` are the files of all adapters; `apart` has those that
    are not merged, by name. `files` stores what is derived from weights that do not fit in memory;
    None if they fit. `memory` is what the export is expected to take, if that is known. `processor`
    makes the inputs of its encoder; None for a model without one.
    """

    model: Any
    checkpoint: Checkpoint
    tokenizer: HfTokenizer
    notes: tuple[str, ...]
    stored: Mapping[str, StoredWeight] = field(default_factory=dict)
    adapters: tuple[Checkpoint, ...] = ()
    apart: Mapping[str, Adapter] = field(default_factory=dict)
    files: WeightFiles | None = None
    memory: MemoryForecast | None = None
    processor: Processor | None = None

    @property
    def commit(self) -> str | None:
        """The commits of the model and its adapters; None where none is from the hub."""
        return joined_commits(each.commit for each in (self.checkpoint, *self.adapters))

    def write(self, folder: Path) -> None:
        """Copies the files of its tokenizer into a program folder."""
        self.tokenizer.write(folder)

    @property
    def vocabulary(self) -> int:
        """Number of logits."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    def stored_weights(self) -> dict[int, StoredWeight]:
        """`stored` by the `id()` of the layer."""
        layers = dict(self.model.named_modules())
        return {id(layers[path]): weight for path, weight in self.stored.items()}


def _tell_sizes(memory: MemoryForecast | None, tell: Tell) -> None:
    """Before the long work, what the backend says about the program and its export."""
    for sentence in memory.sentences if memory else ():
        tell(sentence.rstrip("."), 0.1)


def load_model(spec: ExportSpec, tell: Tell, files: WeightFiles | None = None) -> LoadedModel:
    """The language model that the spec names; `files` is for weights that do not fit in memory."""
    if spec.hf is None or spec.generation is None:
        raise ValueError("the spec names no language model")
    checkpoint = fetch(spec, tell)
    folder, context = checkpoint.folder, spec.generation.context
    for refusal in checkpoint_refusals(folder, context, spec.task):
        raise checkpoint_failure(refusal, spec)
    memory = memory_forecast(spec, folder)
    if too_large := memory_refusal(memory, folder):
        raise checkpoint_failure(too_large, spec)
    if not has_tokenizer(folder):
        require_tokenizer(spec, None)
    elif folder.is_dir():
        require_tokenizer(spec, folder)
    scarce = tuple(memory.notes() if memory else ())
    _tell_sizes(memory, tell)
    tell(f"loading {spec.source}", 0.1)
    require_code(spec, folder)
    if folder.is_file():
        return replace(_load_gguf(spec, checkpoint, scarce), memory=memory)
    quantized = read_prequantized(read_object(folder / CONFIG), checkpoint_tensors(folder))
    state, stored = _state(spec, folder, quantized)
    files = _taken(spec, files, memory)
    return_large_blocks(scarce=files is not None)
    model, unused = _eager(spec, folder, state, remote_code=spec.hf.remote_code)
    if not stored and spec.quantization in GROUPED_SCHEMES:
        stored = weights_on_grid(model, files)
    tokenizer = load_tokenizer(folder, remote_code=spec.hf.remote_code)
    require_tokenizer(spec, tokenizer.folder, tokenizer.why)
    known: Iterable[str] = joined_notes(model, stored)
    if quantized and spec.quantization not in LINEAR_SCHEMES:
        known = outlook_notes(quantized, spec.quantization)
    notes = filter(None, (*scarce, context_note(spec), *known, unused, tokenizer.note))
    return LoadedModel(
        model,
        checkpoint,
        tokenizer,
        tuple(notes),
        of_linears(model, stored),
        files=files,
        memory=memory,
        processor=load_processor(folder, str(spec.task)) if has_encoder(spec.task) else None,
    )


def _load_gguf(spec: ExportSpec, checkpoint: Checkpoint, notes: tuple[str, ...]) -> LoadedModel:
    path = checkpoint.folder
    with TemporaryDirectory(prefix=_TEMPORARY) as temporary:
        source = gguf.arguments(gguf.link(path, Path(temporary)))
        config = load_config(path, source)
        gguf.complete_config(path, config)
        model, info = load_pretrained(spec, {**source, **gguf.dequantized()}, config)
    if mismatches := mismatches_of(info):
        raise fail(
            "checkpoint",
            f"the weights do not fit the metadata: {mismatches}",
            remedy="Convert the model again, or get the file again.",
            file=str(path),
        )
    gguf.complete_model(path, model, spec.generation.context if spec.generation else 0)
    unused = unused_note(gguf.unused_tensors(path, model), "metadata")
    tokenizer = load_gguf_tokenizer(path)
    require_tokenizer(spec, tokenizer.folder, tokenizer.why)
    all_notes = filter(None, (*notes, context_note(spec), unused, tokenizer.note))
    stored = gguf.stored_weights(path, model)
    return LoadedModel(model.eval(), checkpoint, tokenizer, tuple(all_notes), stored)


def _taken(
    spec: ExportSpec, files: WeightFiles | None, memory: MemoryForecast | None
) -> WeightFiles | None:
    """The files, if memory lacks for what they are to hold; refuses a disk without room."""
    if files is None or memory is None or not memory.maps:
        return None
    disk = files.folder.parent
    free = shutil.disk_usage(disk).free
    if free < memory.disk_bytes:
        raise fail(
            "memory",
            f"memory does not hold the quantized weights of {spec.source}; files with them need "
            f"about {size(memory.disk_bytes)}: {disk} has {size(free)}",
            remedy=f"Make room there, or choose another disk: export {CACHE_VARIABLE}=FOLDER",
        )
    return files


def _state(
    spec: ExportSpec, folder: Path, quantized: Prequantized | None
) -> tuple[dict[str, torch.Tensor] | None, dict[str, StoredWeight]]:
    """The weights, and those that are quantized already; None where transformers reads them.

    Floats are computed by rows until the weights are quantized. But a program of floats has them as
    floats, adapters change them, and the nodes of a program are compared with layers that have
    them.
    """
    linear = spec.quantization in LINEAR_SCHEMES
    rowwise = linear and not (spec.all_adapters or spec.observation)
    if quantized:
        return unpacked_state(spec, folder, quantized, rowwise=rowwise)
    return (mapped_state(folder) if rowwise else None), {}


def _version() -> str:
    import transformers

    return str(transformers.__version__)


def _eager(
    spec: ExportSpec, folder: Path, state: dict[str, torch.Tensor] | None, *, remote_code: bool
) -> tuple[Any, str | None]:
    """The model in float32, and a note where its checkpoint has more.

    Of bfloat16, each value is one of float32 too. `state` has the weights where transformers is not
    to read them from the folder.
    """
    from transformers import GenerationConfig

    source = {
        "pretrained_model_name_or_path": folder,
        "local_files_only": True,
        "trust_remote_code": remote_code,  # None would ask on the terminal
    }
    config = load_config(folder / CONFIG, source)
    if state is not None and hasattr(config, "quantization_config"):
        del config.quantization_config
    kind = auto_class(config, str(spec.task))
    if state is not None:
        # The class that finds the model's asks for a folder.
        kind = _model_class(config, kind, folder if remote_code else None)
        source |= {"pretrained_model_name_or_path": None, "state_dict": state}
    model, info = load_pretrained(spec, {**source, "use_safetensors": True}, config, kind)
    require_match(spec, info)
    if state is not None and (folder / GENERATION_CONFIG).is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    return model.eval(), unused_note(info["unexpected_keys"])


def auto_class(config: Any, task: str) -> Any:
    """The class of transformers that loads the models of a task."""
    import transformers

    names = TASKS[task].auto_classes if task in TASKS else ()
    classes = [getattr(transformers, name) for name in names or ("AutoModelForCausalLM",)]
    return next((each for each in classes if type(config) in each._model_mapping), classes[0])


def _model_class(config: Any, kind: Any, code: Path | None) -> Any:
    """The class of the model that an auto class loads; that in the folder `code`, if it names one.

    The order is that of transformers' `_BaseAutoModelClass.from_pretrained`.
    """
    own = (getattr(config, "auto_map", None) or {}).get(kind.__name__)
    if code and own:
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        return get_class_from_dynamic_module(own, str(code), local_files_only=True)
    found = kind._model_mapping[type(config)]
    if not isinstance(found, (list, tuple)):
        return found
    named = getattr(config, "architectures", None) or ()
    return next((each for each in found if each.__name__ in named), found[0])


def load_pretrained(
    spec: ExportSpec, source: Mapping[str, Any], config: Any, kind: Any = None
) -> tuple[Any, dict[str, Any]]:
    """The model, by default of the class that its configuration names, and what did not fit it."""
    from transformers import AutoModelForCausalLM

    try:
        model, info = (kind or AutoModelForCausalLM).from_pretrained(
            **source,
            config=config,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # so that the message has all of them
            output_loading_info=True,
        )
    except MemoryError:
        raise
    except Exception as error:
        if is_memory(error):
            raise
        raise fail(
            "checkpoint",
            f"transformers {_version()} cannot load {spec.source}: {exception_text(error)}",
            remedy="The log has the whole traceback. model.hf takes what "
            f"{(kind or AutoModelForCausalLM).__name__}.from_pretrained loads.",
            file=spec.place("model", "hf"),
        ) from error
    return model, info


def load_config(file: Path, source: Mapping[str, Any]) -> Any:
    """What transformers makes of `config.json`, or of the metadata of a GGUF file."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(**source)
    except Exception as error:
        raise fail(
            "checkpoint",
            f"transformers {_version()} does not take the values in the file: "
            f"{exception_text(error)}",
            remedy=AGAIN,
            file=str(file),
        ) from error


def require_match(spec: ExportSpec, info: dict[str, Any]) -> None:
    """Refuses weights that are not those of the model that its configuration describes."""
    if mismatches := mismatches_of(info):
        raise fail(
            "checkpoint",
            f"the weights of {spec.source} do not fit its {CONFIG}: {mismatches}",
            remedy="Use the configuration and the weights of one model, as save_pretrained wrote "
            "them.",
            file=spec.place("model", "hf"),
        )


@contextmanager
def own_forward(model: Any) -> Iterator[None]:
    """Runs the block without gradients; describes what the model's own forward raises in it."""
    try:
        with torch.no_grad():
            yield
    except MemoryError:
        raise
    except Exception as error:
        raise fail(
            "outputs",
            f"the model, a {type(model).__name__}, raised in its own forward, "
            f"{exception_text(error)}",
            remedy=FACTORY,
        ) from error


def unused_note(unused: Collection[str], described_by: str = CONFIG) -> str | None:
    """A sentence about weights that nothing in the model uses; None where there are none."""
    if not unused:
        return None
    return (
        f"The checkpoint has {count(len(unused), 'tensor')} of which its {described_by} knows "
        f"nothing: {listed(sorted(unused))}."
    )


def mismatches_of(info: dict[str, Any]) -> str | None:
    """Which tensors do not fit; None where all do."""
    parts = []
    missing = sorted(info["missing_keys"])
    if missing:
        parts.append(f"{count(len(missing), 'tensor')} missing ({listed(missing)})")
    other = [
        f"{name} is {list(a)} and not {list(b)}"
        for name, a, b in sorted(info["mismatched_keys"], key=lambda each: str(each[0]))
    ]
    return "; ".join([*parts, *other[:_SHOWN], *(["and more"] if other[_SHOWN:] else [])]) or None
