"""Whether a checkpoint on this machine can be exported, as its files tell without PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from etdeploy.export.hf.config import (
    code_files,
    config_refusals,
    longest_context,
    read_config,
    stops_refusal,
)
from etdeploy.export.hf.files import TOKENIZER_CONFIG, has_tokenizer
from etdeploy.export.hf.hub import cached_commit, snapshot
from etdeploy.export.hf.refusal import Refusal
from etdeploy.export.hf.room import least_memory_bytes, memory_note, memory_refusal
from etdeploy.export.hf.weights import (
    foreign_refusal,
    gguf_refusal,
    parameter_count,
    weights_refusal,
)
from etdeploy.export.spec import ExportSpec, HfModel
from etdeploy.recipe.place import KeyPath, Place


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
    if isinstance(config, Refusal) or weights_refusal(folder):
        return False
    return not code or all((folder / name).is_file() for name in code_files(config))


def has_text_files(folder: Path) -> bool:
    """Whether a snapshot has a tokenizer with its settings.

    Hardly any model has none; who got one with from_pretrained got the weights without.
    """
    return has_tokenizer(folder) and (folder / TOKENIZER_CONFIG).is_file()


def fit_context(spec: ExportSpec, places: Mapping[KeyPath, Place]) -> ExportSpec:
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


def checkpoint_refusals(folder: Path, context: int) -> Iterator[Refusal]:
    """What keeps a checkpoint from being exported; each may hold only if those before do not.

    Args:
        folder: With the checkpoint.
        context: Positions that the recipe asks for.
    """
    if folder.is_file():  # a recipe names a folder, or a file in GGUF
        yield gguf_refusal(str(folder.parent), folder.name)
        return
    config = read_config(folder)
    if isinstance(config, Refusal):
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
