"""What `config.json` says of a model: whether it generates text, and how long it may be."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etdeploy.backends.schemes import DEFAULT_RECIPE
from etdeploy.core.commands import quoted
from etdeploy.export.hf.files import GENERATION_CONFIG, PIPELINE
from etdeploy.export.hf.gguf import GgufError, config_of, read_header
from etdeploy.export.hf.prequantized import ORIGINAL, check_settings
from etdeploy.export.hf.quantized_layers import UnreadableError
from etdeploy.recipe.hub_cache import CONFIG, cache_folder, read_object
from etdeploy.recipe.tasks import (
    FEATURE_EXTRACTION,
    TASKS,
    TEXT_GENERATION,
    architectures,
    config_here,
    has_cross_attention,
    has_encoder,
    is_ctc,
    is_timm,
    task_of,
)

# Why models whose task is supported are not, by the names of their classes.
_OTHER_SPEECH = {
    "SpeechT5ForTextToSpeech": "generates a spectrogram frame by frame, until it predicts its end",
    "VitsModel": "draws the durations of its tokens at random, and the length of its speech "
    "follows from them",
}
_ONLY = "model.hf takes models that predict the next token, named ...ForCausalLM"
# How transformers calls models that predict the next token.
_CAUSAL = ("ForCausalLM", "LMHeadModel")
FACTORY = (
    "Export it with a factory that returns (module, example_inputs), in a recipe without sections\n"
    "`generation`: model: {python: my_model.py:make}   docs/inputs.md says what it can return."
)
AGAIN = "Get the file again from where the model came; save_pretrained writes it, too."
# Layers that have no cache by position, as transformers names them, ...
_OTHER_LAYERS = ("recurrent", "chunked_attention")
# ... and keys of configurations of models whose states are not in transformers' caches, ...
_STATES = ("block_types", "rescale_every", "mlstm_block", "ssm_cfg")
# ... except those models that the export has the states of.
OWN_STATES = ("recurrent_gemma", "rwkv", "xlstm")
# The most positions, by the names that configs have for it.
_LONGEST = (
    "max_target_positions",
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "n_ctx",
)


def read_config(folder: Path) -> dict[str, Any] | ConfigProblem:
    """The content of a folder's `config.json`, or why there is none; of a GGUF file, its like."""
    if folder.is_file():
        return _gguf_config(folder)
    path = folder / CONFIG
    try:
        return read_object(path)
    except FileNotFoundError:
        if (folder / PIPELINE).is_file():
            return pipeline_refusal(str(folder))
        return ConfigProblem(
            f"there is no {CONFIG}, so this is not a model as transformers saves it",
            "Name the folder that save_pretrained wrote, or the id of a model on the hub.",
            place=str(folder),
        )
    except (OSError, ValueError) as error:
        return _unreadable(path, error)


def _gguf_config(path: Path) -> dict[str, Any] | ConfigProblem:
    try:
        return config_of(read_header(path))
    except GgufError as error:
        return ConfigProblem(error.message, error.remedy, place=str(path))
    except OSError as error:
        return _unreadable(path, error)


def stops_refusal(folder: Path) -> ConfigProblem | None:
    """What is wrong with the tokens that end a text; transformers passes over a damaged file."""
    path = folder / GENERATION_CONFIG
    try:
        found = read_object(path).get("eos_token_id")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return _unreadable(path, error)
    ids = found if isinstance(found, list) else [found]
    if found is None or all(type(each) is int for each in ids):
        return None
    return ConfigProblem(
        f"eos_token_id is {found!r}, and not the ids of tokens", AGAIN, place=str(path)
    )


def _unreadable(path: Path, error: OSError | ValueError) -> ConfigProblem:
    if isinstance(error, OSError):
        return ConfigProblem(f"the file cannot be read: {error.strerror}", place=str(path))
    return ConfigProblem(f"the file is damaged: {error}", AGAIN, place=str(path))


def pipeline_refusal(place: str) -> ConfigProblem:
    """The refusal of what the library diffusers saved, at a folder or as an id."""
    return ConfigProblem(
        f"this is a pipeline of diffusers ({PIPELINE}), which generates no text; {_ONLY}",
        FACTORY,
        place=place,
    )


def config_refusals(
    config: Mapping[str, Any], place: str, context: int, task: str | None = None
) -> Iterator[ConfigProblem]:
    """What keeps a model from being exported, as far as its configuration tells.

    Without a task, the model is to generate text.
    """
    if is_timm(config):
        yield ConfigProblem(
            f"the model ({config['architecture']}) is of timm, and not of transformers",
            f"In place of model.hf or --model: --set {quoted(f'model.timm={place}')}",
            place=place,
        )
    if not config.get("model_type") and "auto_map" not in config:
        yield ConfigProblem(
            f"{CONFIG} names no model_type, so the kind of model is unknown", AGAIN, place=place
        )
    if task not in (None, TEXT_GENERATION):
        yield from _of_task(config, place, str(task), generates=context > 0)
        yield from _of_context(config, context)
        return
    yield from _of_architecture(config, place)
    yield from _of_layers(config, place)
    try:
        check_settings(config)
    except UnreadableError as error:
        yield ConfigProblem(str(error), ORIGINAL, place=place)
    yield from _of_context(config, context)


def _language_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a model of several modalities that is the language model."""
    part = config.get("text_config")
    return part if isinstance(part, Mapping) else config


def _of_context(config: Mapping[str, Any], context: int) -> Iterator[ConfigProblem]:
    longest = longest_context(config)
    if longest and context > longest:
        yield ConfigProblem(
            f"the model has {longest} positions, so its context cannot be {context}",
            f"--set export.generation.context={longest}   (after --context: --context {longest})",
            ("export", "generation", "context"),
        )


def longest_context(config: Mapping[str, Any]) -> int | None:
    """The most positions of a model; None where its configuration sets no limit."""
    language = _language_config(config)
    found = (language.get(name) for name in _LONGEST)
    return next((size for size in found if isinstance(size, int) and size > 0), None)


def vocabulary_of(config: Mapping[str, Any]) -> int | None:
    """How many tokens a language model has; None where it does not say."""
    found = _language_config(config).get("vocab_size")
    return found if isinstance(found, int) else None


def foreign_code(config: Mapping[str, Any]) -> str | None:
    """Another repository whose code the configuration names: `ORG/NAME--module.Class`."""
    return next((c.partition("--")[0] for c in _classes(config) if "--" in c), None)


def code_files(config: Mapping[str, Any]) -> set[str]:
    """The files of code that the configuration names: `modeling.py` for `modeling.MyModel`."""
    return {f"{c.partition('.')[0]}.py" for c in _classes(config) if "--" not in c}


def _classes(config: Mapping[str, Any]) -> list[str]:
    named = config.get("auto_map")
    values = named.values() if isinstance(named, Mapping) else ()
    texts = (text for v in values for text in (v if isinstance(v, list) else [v]))
    return [text for text in texts if isinstance(text, str)]


def _of_task(
    config: Mapping[str, Any], place: str, task: str, *, generates: bool
) -> Iterator[ConfigProblem]:
    found = task_of(config)
    if generates and is_ctc(config):
        yield ConfigProblem(
            f"{_name(config)} gives its text at once, so nothing is generated token by token",
            f"Leave out the sections `generation`, or name a recipe without: -r {DEFAULT_RECIPE}",
            ("export", "generation"),
        )
    is_split = bool(config.get("is_encoder_decoder")) == has_cross_attention(task)
    if found not in (None, task) and task != FEATURE_EXTRACTION:
        yield ConfigProblem(
            f"{_name(config)} is for the task {found}, not {task}",
            f"--set model.task={found}",
            ("model", "task"),
        )
    elif TASKS[task].generates and not is_ctc(config) and not is_split:
        yield ConfigProblem(
            f"{_name(config)} is of the task {task}, whose models are supported if they are "
            + (
                "an encoder with a decoder that attends to it (Whisper, T5)"
                if has_cross_attention(task)
                else "a language model that takes an image as embeddings (LLaVA, SmolVLM)"
            ),
            FACTORY,
            place=place,
        )
    if reason := _OTHER_SPEECH.get(next(iter(architectures(config)), "")):
        yield ConfigProblem(
            f"{_name(config)} {reason}; of the models for text-to-speech, those of "
            "FastSpeech2Conformer are supported",
            FACTORY,
            place=place,
        )
    if config.get("quantization_config"):
        yield ConfigProblem(
            "the checkpoint is quantized, which is supported for models that generate text only",
            "Name the model that it was made from; export.quantization quantizes it.",
            place=place,
        )


def _of_architecture(config: Mapping[str, Any], place: str) -> Iterator[ConfigProblem]:
    names, name, remedy = architectures(config), _name(config), FACTORY
    found = task_of(config)
    if config.get("is_encoder_decoder") and has_encoder(found):
        text = f"{name} is an encoder with a decoder, for the task {found}"
        remedy = f"--set model.task={found}"
    elif config.get("is_encoder_decoder"):
        text = f"{name} is an encoder with a decoder; {_ONLY}"
    elif not names or any(each.endswith(_CAUSAL) for each in names):
        return
    elif "vision_config" in config or "audio_config" in config:
        text = f"{name} takes more than text; {_ONLY}"
    else:
        text = f"{name} generates no text; {_ONLY}"
        if found:
            text = f"{name} generates no text: it is for the task {found}"
            remedy = f"--recipe {DEFAULT_RECIPE} --set model.task={found}"
    yield ConfigProblem(text, remedy, place=place)


def _of_layers(config: Mapping[str, Any], place: str) -> Iterator[ConfigProblem]:
    listed = config.get("layer_types")
    kinds = [str(kind) for kind in listed] if isinstance(listed, list) else []
    other = next((kind for kind in kinds if kind in _OTHER_LAYERS), None)
    if other:
        what = f"has layers of the kind {other}"
    elif config.get("model_type") in OWN_STATES:
        return
    elif any(config.get(key) is not None for key in _STATES):
        what = "keeps its state in a form that only its own code knows"
    else:
        return
    yield ConfigProblem(
        f"{_name(config)} {what}; model.hf takes models whose layers are full or sliding "
        "attention, short convolutions, or have one recurrent state",
        FACTORY,
        place=place,
    )


def _name(config: Mapping[str, Any]) -> str:
    named = ", ".join(architectures(config))
    return named or str(config.get("model_type", "a model of an unknown type"))


@dataclass(frozen=True)
class ConfigProblem:
    """What is wrong with a `place`, a file or folder, or else with a `key` of the recipe."""

    message: str
    remedy: str | None = None
    key: tuple[str, ...] = ("model", "hf")
    place: str | None = None


def download_config(model: str, revision: str) -> None:
    """Downloads the `config.json` of a model of the hub, unless it is in the cache.

    The task, and so the default recipe, follow from it. A failure is ignored: the export asks the
    hub again, and reports it.
    """
    if config_here(model, revision) is not None or _is_offline():
        return
    try:
        from huggingface_hub import HfApi
    except ImportError:
        return  # the export names the extra to install
    api, cache = HfApi(library_name="etdeploy"), cache_folder()
    # huggingface_hub documents only a part of what it and its HTTP client raise.
    with suppress(Exception):
        commit = api.resolve_revision(model, revision=revision, cache_dir=cache).resolved
        api.hf_hub_download(model, CONFIG, revision=commit, cache_dir=cache)


def _is_offline() -> bool:
    """Whether huggingface_hub is offline, without importing it, which takes half a second."""
    set_to = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value.upper() in {"1", "ON", "YES", "TRUE"} for value in set_to)
