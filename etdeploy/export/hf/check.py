"""Whether a checkpoint on this machine can be exported, as its files tell without PyTorch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from etdeploy.core.commands import python_command, quoted
from etdeploy.core.console import count, size
from etdeploy.export.hf.config import (
    AGAIN,
    ConfigProblem,
    code_files,
    config_refusals,
    longest_context,
    pipeline_refusal,
    read_config,
    stops_refusal,
)
from etdeploy.export.hf.files import (
    CONFIG,
    PIPELINE,
    TOKENIZER_CONFIG,
    WEIGHTS,
    WEIGHTS_INDEX,
    are_pickles,
    cached_commit,
    has_tokenizer,
    lists_tokenizer,
    other_weights,
    snapshot,
)
from etdeploy.export.hf.gguf import SUFFIX, read_header
from etdeploy.export.hf.prequantized import (
    ORIGINAL,
    outlook_notes,
    read_prequantized,
)
from etdeploy.export.hf.quantized_layers import UnreadableError
from etdeploy.export.hf.tensors import checkpoint_tensors, read_tensors, weight_files
from etdeploy.export.spec import ExportSpec, HfModel
from etdeploy.recipe.document import KeyPath, SourceLocation

_SHOWN = 3
_CONVERT = (
    "import transformers as t; "
    '[getattr(t, k).from_pretrained({place}).save_pretrained("converted") for k in {kinds}]'
)


def weights_refusal(folder: Path) -> ConfigProblem | None:
    """What is wrong with the weights of a checkpoint; None where nothing is, as headers tell."""
    if not (folder / WEIGHTS_INDEX).is_file() and not (folder / WEIGHTS).is_file():
        return no_weights([path.name for path in folder.iterdir()], str(folder))
    try:
        files = weight_files(folder)
    except (OSError, ValueError) as error:
        return ConfigProblem(
            f"the index of the weights cannot be read: {error}",
            AGAIN,
            place=str(folder / WEIGHTS_INDEX),
        )
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        return ConfigProblem(
            f"{count(len(missing), 'file')} of the weights {_are(missing)} missing: "
            + _listed(missing),
            "Get the missing files from where the others came.",
            place=str(folder),
        )
    return next(filter(None, map(_damage, files)), None)


def no_weights(names: list[str], place: str) -> ConfigProblem:
    """The refusal of a folder or repository without safetensors that can be loaded."""
    if PIPELINE in names and CONFIG not in names:
        return pipeline_refusal(place)
    foreign = foreign_refusal(names, place)
    if foreign:
        return foreign
    others = other_weights(names)
    if are_pickles(others):
        return ConfigProblem(
            f"the weights are in pickles only ({_listed(others)}); to load one runs whatever code "
            "is in it, so only safetensors are read",
            f"If you trust them, convert them:\n{_conversion(names, place)}\n"
            "Then: --model ./converted",
            place=place,
        )
    there = f"; {_listed(others)} cannot be read" if others else ""
    return ConfigProblem(
        f"there are no weights in safetensors, as transformers names them ({WEIGHTS}){there}",
        "Name a folder that save_pretrained wrote, or the id of a model that has them.",
        place=place,
    )


def foreign_refusal(names: list[str], place: str) -> ConfigProblem | None:
    """The refusal of an adapter or of GGUF, which come without what transformers saves."""
    if any(name.startswith("adapter_model.") or name == "adapter_config.json" for name in names):
        return ConfigProblem(
            "these are the weights of an adapter, without those of the model that it changes",
            f"Name that model, too: --model ID_OR_FOLDER --set {quoted(f'model.lora={place}')}",
            place=place,
        )
    gguf = sorted(name for name in names if name.endswith(SUFFIX))
    if gguf and not are_pickles(names):
        return gguf_refusal(place, gguf)
    return None


def gguf_refusal(folder: str, names: list[str]) -> ConfigProblem:
    """The refusal of a folder or repository with weights in llama.cpp's format only."""
    several = len(names) > 1
    return ConfigProblem(
        f"there are no weights in safetensors, but {count(len(names), 'file')} in GGUF, "
        f"llama.cpp's format: {_listed(names)}",
        f"Name {'one of them' if several else 'the file'}: --model "
        + quoted(str(PurePosixPath(folder) / names[0])),
        place=folder,
    )


def _conversion(names: list[str], place: str) -> str:
    kinds = ["AutoModelForCausalLM", *(["AutoTokenizer"] if lists_tokenizer(names) else [])]
    return python_command(_CONVERT, place=place, kinds=kinds)


def _damage(path: Path) -> ConfigProblem | None:
    try:
        read_tensors(path)
    except OSError as error:
        return ConfigProblem(f"the weights cannot be read: {error.strerror}", place=str(path))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        pointer = path.stat().st_size < _LONGEST_POINTER and b"git-lfs" in path.read_bytes()
        what = "it is git-lfs's pointer to the file" if pointer else str(error) or repr(error)
        return ConfigProblem(
            f"the file of weights is damaged: {what}",
            "In a clone: git lfs pull" if pointer else "Get the file again.",
            place=str(path),
        )
    return None


_LONGEST_POINTER = 1024


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (" and more" if len(names) > _SHOWN else "")


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def folder_here(model: HfModel) -> Path | None:
    """The folder or file of a model if it is on this machine; of an id, in the hub's cache."""
    if model.path:
        return model.path
    commit = cached_commit(str(model.id), model.revision)
    folder = snapshot(str(model.id), commit) / (model.gguf or "") if commit else None
    return folder if folder and folder.exists() else None


def is_whole(folder: Path, *, code: bool) -> bool:
    """Whether a snapshot has all that is loaded; a download may have been interrupted."""
    config = read_config(folder)
    if isinstance(config, ConfigProblem):
        return False
    if folder.is_file():
        return True
    if weights_refusal(folder):
        return False
    return not code or all((folder / name).is_file() for name in code_files(config))


def has_text_files(folder: Path) -> bool:
    """Whether a snapshot has a tokenizer with its settings.

    Hardly any model has none; who got one with from_pretrained got the weights without.
    """
    return has_tokenizer(folder) and (folder.is_file() or (folder / TOKENIZER_CONFIG).is_file())


def fit_context(spec: ExportSpec, places: Mapping[KeyPath, SourceLocation]) -> ExportSpec:
    """Lower a context that was not chosen for this model to the positions that the model has.

    It was chosen for another if --model or a file other than the context's names the model. What
    the command line asks for is never changed.
    """
    asked, folder = spec.generation, folder_here(spec.hf) if spec.hf else None
    config = read_config(folder) if asked and folder else None
    longest = longest_context(config) if isinstance(config, dict) else None
    if asked is None or longest is None or asked.context <= longest:
        return spec
    chosen = places.get(("export", "generation", "context"))
    model = places.get(("model", "gguf" if spec.hf and spec.hf.gguf else "hf"))
    if chosen and (chosen.line is None or (model and chosen.file == model.file)):
        return spec
    prefill = min(asked.prefill_tokens, longest)
    fitting = asked.model_copy(update={"context": longest, "prefill_tokens": prefill})
    return spec.model_copy(update={"generation": fitting, "recipe_context": asked.context})


def context_note(spec: ExportSpec) -> str | None:
    """A sentence where the program has another context than the recipe says."""
    if spec.recipe_context is None or spec.generation is None:
        return None
    return (
        f"The model has {spec.generation.context:,} positions, so the program is for texts of as "
        f"many tokens instead of the recipe's {spec.recipe_context:,}."
    )


def checkpoint_refusals(folder: Path, context: int) -> Iterator[ConfigProblem]:
    """What keeps a checkpoint from being exported; each may hold only if those before do not."""
    config = read_config(folder)
    if isinstance(config, ConfigProblem):
        yield foreign_refusal(_names(folder), str(folder)) or config
        return
    yield from config_refusals(config, str(folder), context)
    refusal = None if folder.is_file() else stops_refusal(folder) or weights_refusal(folder)
    if refusal:
        yield refusal
        return
    try:
        parameters = parameter_count(folder, config)
    except UnreadableError as error:
        yield ConfigProblem(str(error), ORIGINAL, place=str(folder))
        return
    least = least_memory_bytes(parameters, config, context)
    too_large = memory_refusal(least, _memory()[0], str(folder))
    if too_large:
        yield too_large


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def memory_notes(folder: Path, context: int) -> Iterator[str]:
    """A sentence where the export of a sound checkpoint may run out of memory."""
    config = read_config(folder)
    if isinstance(config, dict):
        least = least_memory_bytes(parameter_count(folder, config), config, context)
        note = memory_note(least, _memory()[1])
        if note:
            yield note


def _memory() -> tuple[int, int]:
    """Bytes of memory and swap that this machine has, and those that are free."""
    import psutil

    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return memory.total + swap.total, memory.available + swap.free


# The exporter computes in 32-bit floats, whatever the checkpoint has.
_FLOAT_BYTES = 4
# Copies of the weights at the peak, while they are lowered and written.
_COPIES = 3


def parameter_count(folder: Path, config: Mapping[str, Any]) -> int:
    """Number of weights of a model, of which several may be packed into one of its checkpoint.

    See `read_tensors` and `read_prequantized` for what it raises.
    """
    if folder.is_file():
        return read_header(folder).parameters
    tensors = checkpoint_tensors(folder)
    found = read_prequantized(config, tensors)
    if found:
        return found.parameter_count(tensors.infos)
    return sum(math.prod(info.shape) for info in tensors.infos.values())


def prequantized_notes(spec: ExportSpec) -> Iterator[str]:
    """What becomes of weights that a checkpoint on this machine has quantized; see needs.py."""
    folder = folder_here(spec.hf) if spec.hf else None
    config = read_config(folder) if folder else None
    if folder and folder.is_dir() and isinstance(config, dict):
        found = read_prequantized(config, checkpoint_tensors(folder))
        if found:
            yield from outlook_notes(found, spec.quantization)


def least_memory_bytes(parameters: int, config: Mapping[str, Any], context: int) -> int:
    """What the weights and the cache of keys and values take as 32-bit floats."""
    return _FLOAT_BYTES * parameters + cache_bytes(config, context)


def cache_bytes(config: Mapping[str, Any], context: int) -> int:
    """The least that the cache of a model takes, by the names of Llama's configuration.

    2 x heads of keys x size of a head x positions, for each layer; a layer with a sliding window
    has at least its positions. 0 where the configuration has other names.
    """
    layers, heads = (config.get(name) for name in ("num_hidden_layers", "num_attention_heads"))
    hidden, shared = config.get("hidden_size"), config.get("num_key_value_heads")
    if not (isinstance(layers, int) and isinstance(heads, int) and isinstance(hidden, int)):
        return 0
    head = config.get("head_dim")
    head_size = head if isinstance(head, int) else hidden // max(heads, 1)
    kv_heads = shared if isinstance(shared, int) else heads
    return 2 * kv_heads * head_size * _positions(config, layers, context) * _FLOAT_BYTES


def _positions(config: Mapping[str, Any], layers: int, context: int) -> int:
    """The sum of all layers' positions, of which those with a window may need fewer."""
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    if not isinstance(window, int) or config.get("use_sliding_window") is False:
        return layers * context
    # Without a list, it may be any of the layers: older files do not say.
    whole = kinds.count("full_attention") if isinstance(kinds, list) else 0
    return whole * context + (layers - whole) * min(window, context)


def memory_refusal(least_bytes: int, total_bytes: int, place: str) -> ConfigProblem | None:
    """The refusal of a model whose weights and cache alone are more than the machine's memory."""
    if least_bytes <= total_bytes:
        return None
    return ConfigProblem(
        f"the export needs more than {size(least_bytes)} of memory, for the weights and the cache "
        f"as 32-bit floats, and this machine has {size(total_bytes)}",
        "Export it on a larger machine, or name a smaller model or context.",
        place=place,
    )


def memory_note(least_bytes: int, available_bytes: int) -> str | None:
    """A sentence where the memory may not be enough."""
    expected = least_bytes * _COPIES
    if expected <= available_bytes:
        return None
    return (
        f"The export may need {size(expected)} of memory, and {size(available_bytes)} were free "
        "when it began."
    )
