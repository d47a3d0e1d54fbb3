"""Whether a checkpoint on this machine can be exported, as its files tell without PyTorch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from etdeploy.core.commands import python_command, quoted
from etdeploy.core.console import count, listed
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
    PIPELINE,
    TIMM_PICKLE,
    TOKENIZER_CONFIG,
    WEIGHTS,
    WEIGHTS_INDEX,
    are_pickles,
    has_tokenizer,
    lists_tokenizer,
    other_weights,
)
from etdeploy.export.hf.gguf import SUFFIX, read_header
from etdeploy.export.hf.meta import read_params
from etdeploy.export.hf.prequantized import (
    ORIGINAL,
    gguf_layers,
    outlook_notes,
    read_prequantized,
)
from etdeploy.export.hf.quantized_layers import UnreadableError
from etdeploy.export.hf.tensors import checkpoint_tensors, read_tensors, weight_files
from etdeploy.export.spec import ExportSpec, HfModel
from etdeploy.recipe.document import KeyPath, SourceLocation
from etdeploy.recipe.hub_cache import CONFIG, cached_commit, snapshot
from etdeploy.recipe.tasks import (
    IMAGE_CLASSIFICATION,
    TEXT_GENERATION,
    class_counts,
    is_timm,
)

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
            + listed(missing),
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
            f"the weights are in pickles only ({listed(others)}); to load one runs whatever code "
            "is in it, so only safetensors are read",
            f"If you trust them, convert them:\n{_conversion(names, place)}\n"
            "Then: --model ./converted",
            place=place,
        )
    there = f"; {listed(others)} cannot be read" if others else ""
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
        f"llama.cpp's format: {listed(names)}",
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


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def folder_here(model: HfModel) -> Path | None:
    """The folder or file of a model if it is on this machine; of an id, in the hub's cache."""
    if model.path or model.checkpoint:
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
    if is_timm(config):
        return timm_weights_refusal(folder) is None
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
    if asked and spec.hf and spec.hf.params:
        config = read_params(Path(spec.hf.params))
    longest = longest_context(config) if isinstance(config, dict) else None
    if asked is None or longest is None or asked.context <= longest:
        return spec
    chosen = places.get(("export", "generation", "context"))
    model = places.get(("model", spec.hf.kind)) if spec.hf else None
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


def checkpoint_refusals(
    folder: Path, context: int, task: str | None = None
) -> Iterator[ConfigProblem]:
    """What keeps a checkpoint from being exported; each may hold only if those before do not."""
    config = read_config(folder)
    if isinstance(config, ConfigProblem):
        yield foreign_refusal(_names(folder), str(folder)) or config
        return
    yield from config_refusals(config, str(folder), context, task)
    refusal = None if folder.is_file() else stops_refusal(folder) or weights_refusal(folder)
    if refusal:
        yield refusal
        return
    if folder.is_file() or task not in (None, TEXT_GENERATION):
        return
    try:
        read_prequantized(config, checkpoint_tensors(folder))
    except UnreadableError as error:
        yield ConfigProblem(str(error), ORIGINAL, place=str(folder))


def timm_refusals(folder: Path, task: str | None) -> Iterator[ConfigProblem]:
    """What keeps a model of timm from being exported; each may hold only if those before do not."""
    config = read_config(folder)
    if isinstance(config, ConfigProblem):
        yield config
        return
    yield from timm_config_refusals(config, str(folder), task)
    if refusal := timm_weights_refusal(folder):
        yield refusal


def timm_config_refusals(
    config: Mapping[str, Any], place: str, task: str | None
) -> Iterator[ConfigProblem]:
    """What keeps a model of timm from being exported, as far as its configuration tells."""
    if not is_timm(config):
        yield ConfigProblem(
            f"{CONFIG} names no architecture of timm",
            "Name a folder that timm.models.save_for_hf wrote; a model of transformers is named as "
            "model.hf.",
            place=place,
        )
    counts = class_counts(config)
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{key} is {number}" for key, number in counts.items())
        yield ConfigProblem(
            f"{CONFIG} has different numbers of classes: {found}",
            "Save the model again with timm.models.save_for_hf.",
            place=place,
        )
    classes = next(iter(counts.values()), None)
    if classes == 0 and task == IMAGE_CLASSIFICATION:
        yield ConfigProblem(
            f"the model ({config['architecture']}) has no classes; it gives features",
            "--set model.task=feature-extraction",
            ("model", "task"),
        )
    names = config.get("label_names") or config.get("labels")
    if isinstance(names, list) and classes is not None and len(names) != classes:
        yield ConfigProblem(
            f"{CONFIG} has {count(len(names), 'name')} of labels for {classes} classes",
            f"Correct label_names in {CONFIG}, or leave them out.",
            place=place,
        )


def timm_weights_refusal(folder: Path) -> ConfigProblem | None:
    """What is wrong with the weights of a model of timm; None if nothing is, as headers tell."""
    if (folder / WEIGHTS).is_file():
        return _damage(folder / WEIGHTS)
    return timm_weights_missing(_names(folder), str(folder))


def timm_weights_missing(names: Collection[str], place: str) -> ConfigProblem | None:
    """The refusal of a folder or repository without weights that timm saved."""
    if WEIGHTS in names or TIMM_PICKLE in names:
        return None
    others = other_weights([*names])
    there = f"; {listed(others)} cannot be read" if others else ""
    return ConfigProblem(
        f"the model comes without its weights, as timm names them ({WEIGHTS}){there}",
        "Save them beside its configuration: "
        "timm.models.save_for_hf(model, FOLDER, safe_serialization=True)",
        place=place,
    )


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def prequantized_notes(spec: ExportSpec) -> Iterator[str]:
    """What becomes of weights that a checkpoint on this machine has quantized; see needs.py."""
    folder = folder_here(spec.hf) if spec.hf and spec.generation else None
    config = read_config(folder) if folder else None
    if folder and isinstance(config, dict):
        found = (
            read_prequantized(config, checkpoint_tensors(folder))
            if folder.is_dir()
            else gguf_layers(read_header(folder))
        )
        if found:
            yield from outlook_notes(found, spec.quantization)
