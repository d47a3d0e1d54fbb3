"""Whether a checkpoint on this machine can be exported, as its files tell without PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from etdeploy.core.console import size
from etdeploy.export.hf.config import (
    ConfigProblem,
    code_files,
    config_refusals,
    longest_context,
    read_config,
    stops_refusal,
)
from etdeploy.export.hf.files import TOKENIZER_CONFIG, cached_commit, has_tokenizer, snapshot
from etdeploy.export.hf.weights import (
    foreign_refusal,
    gguf_refusal,
    parameter_count,
    weights_refusal,
)
from etdeploy.export.spec import ExportSpec, HfModel
from etdeploy.recipe.document import KeyPath, SourceLocation


def folder_here(model: HfModel) -> Path | None:
    """The folder of a model if it is on this machine; of an id, that in the hub's cache."""
    if model.folder:
        return Path(model.folder)
    commit = cached_commit(str(model.id), model.revision)
    folder = snapshot(str(model.id), commit) if commit else None
    return folder if folder and folder.is_dir() else None


def is_whole(folder: Path, *, code: bool) -> bool:
    """Whether a snapshot has all that is loaded; a download may have been interrupted."""
    config = read_config(folder)
    if isinstance(config, ConfigProblem) or weights_refusal(folder):
        return False
    return not code or all((folder / name).is_file() for name in code_files(config))


def has_text_files(folder: Path) -> bool:
    """Whether a snapshot has a tokenizer with its settings.

    Hardly any model has none; who got one with from_pretrained got the weights without.
    """
    return has_tokenizer(folder) and (folder / TOKENIZER_CONFIG).is_file()


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
    model = places.get(("model", "hf"))
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
    if folder.is_file():  # a recipe names a folder, or a file in GGUF
        yield gguf_refusal(str(folder.parent), folder.name)
        return
    config = read_config(folder)
    if isinstance(config, ConfigProblem):
        yield foreign_refusal(_names(folder), str(folder)) or config
        return
    yield from config_refusals(config, str(folder), context)
    refusal = stops_refusal(folder) or weights_refusal(folder)
    if refusal:
        yield refusal
        return
    least = least_memory_bytes(parameter_count(folder), config, context)
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
        least = least_memory_bytes(parameter_count(folder), config, context)
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
