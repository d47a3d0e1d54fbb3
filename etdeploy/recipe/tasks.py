"""The tasks of models of transformers and timm, and which of them a configuration is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from etdeploy.recipe.hub_cache import CONFIG, cached_commit, read_object, snapshot

Modality = Literal["text", "image", "audio"]
TEXT_GENERATION = "text-generation"
FEATURE_EXTRACTION = "feature-extraction"
SPEECH_RECOGNITION = "automatic-speech-recognition"
TEXT_TO_TEXT = "text2text-generation"
IMAGE_CLASSIFICATION = "image-classification"
IMAGE_TO_TEXT = "image-text-to-text"


@dataclass(frozen=True)
class TaskFacts:
    """A task, named as on the Hugging Face hub.

    Attributes:
        modalities: What its models take; of feature-extraction, each model takes one of them.
        auto_classes: The classes of transformers that load its models, in the order to try; empty
            where the text follows a prompt.
        architectures: Ends of the names of its models' classes.
        generates: Whether its models give a text token by token. Of speech recognition, CTC models
            do not.
    """

    modalities: tuple[Modality, ...]
    auto_classes: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    generates: bool = False


# An architecture belongs to the first task whose ends fit it, unless `task_of` knows better.
TASKS: Mapping[str, TaskFacts] = {
    TEXT_GENERATION: TaskFacts(
        ("text",), architectures=("ForCausalLM", "LMHeadModel"), generates=True
    ),
    "fill-mask": TaskFacts(("text",), ("AutoModelForMaskedLM",), ("ForMaskedLM",)),
    "text-classification": TaskFacts(
        ("text",), ("AutoModelForSequenceClassification",), ("ForSequenceClassification",)
    ),
    "token-classification": TaskFacts(
        ("text",), ("AutoModelForTokenClassification",), ("ForTokenClassification",)
    ),
    IMAGE_CLASSIFICATION: TaskFacts(
        ("image",),
        ("AutoModelForImageClassification",),
        ("ForImageClassification", "ForImageClassificationWithTeacher"),
    ),
    "object-detection": TaskFacts(
        ("image",), ("AutoModelForObjectDetection",), ("ForObjectDetection",)
    ),
    "semantic-segmentation": TaskFacts(
        ("image",), ("AutoModelForSemanticSegmentation",), ("ForSemanticSegmentation",)
    ),
    "depth-estimation": TaskFacts(
        ("image",), ("AutoModelForDepthEstimation",), ("ForDepthEstimation",)
    ),
    SPEECH_RECOGNITION: TaskFacts(
        ("audio",), ("AutoModelForSpeechSeq2Seq", "AutoModelForCTC"), ("ForCTC",), generates=True
    ),
    "audio-classification": TaskFacts(
        ("audio",), ("AutoModelForAudioClassification",), ("ForAudioClassification",)
    ),
    TEXT_TO_TEXT: TaskFacts(("text",), ("AutoModelForSeq2SeqLM",), generates=True),
    IMAGE_TO_TEXT: TaskFacts(
        ("image", "text"), ("AutoModelForImageTextToText",), ("ForVision2Seq",), generates=True
    ),
    "text-to-speech": TaskFacts(
        ("text",),
        ("AutoModelForTextToWaveform", "AutoModelForTextToSpectrogram"),
        (
            "ForTextToSpeech",
            "VitsModel",
            "FastSpeech2ConformerWithHifiGan",
            "FastSpeech2ConformerModel",
        ),
    ),
    FEATURE_EXTRACTION: TaskFacts(("text", "image", "audio"), ("AutoModel",), ("Model",)),
}
# Keys that only configurations of models have which take audio.
_OF_AUDIO = ("num_mel_bins", "feat_extract_norm", "input_feat_per_channel", "audio_config")
_CTC = "ForCTC"
# The tasks of models of timm.
TIMM_TASKS = (IMAGE_CLASSIFICATION, FEATURE_EXTRACTION)
# timm's own names for where a model is, and for its repositories on the hub.
_TIMM_NAMES = (
    "hf-hub:", "hf_hub:", "local-dir:", "timm/", "https://huggingface.co/timm/",
)  # fmt: skip


def architectures(config: Mapping[str, Any]) -> list[str]:
    """The names of the classes that a `config.json` lists."""
    listed = config.get("architectures")
    return [str(name) for name in listed] if isinstance(listed, list) else []


def task_of(config: Mapping[str, Any]) -> str | None:
    """The task of the model that a `config.json` describes; None where that is not known."""
    name = next(iter(architectures(config)), "")
    takes_audio = any(key in config for key in _OF_AUDIO)
    if name.endswith("ForConditionalGeneration"):
        if "vision_config" in config:
            return IMAGE_TO_TEXT
        if takes_audio:
            return SPEECH_RECOGNITION
        return TEXT_TO_TEXT if config.get("is_encoder_decoder") else None
    if config.get("is_encoder_decoder") and name.endswith(("MTModel", "LMHeadModel")):
        return TEXT_TO_TEXT
    found = next((n for n, facts in TASKS.items() if name.endswith(facts.architectures)), None)
    return "audio-classification" if takes_audio and found == "text-classification" else found


def is_ctc(config: Mapping[str, Any]) -> bool:
    """Whether a model of speech recognition gives its text at once."""
    return any(name.endswith(_CTC) for name in architectures(config))


def is_timm(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is of a model of timm, as its `save_for_hf` writes it."""
    return isinstance(config.get("architecture"), str) and not config.get("model_type")


def class_counts(config: Mapping[str, Any]) -> dict[str, int]:
    """The numbers of classes that a model of timm has by its `config.json`, by their keys."""
    sections = {"": config, "model_args.": config.get("model_args")}
    sections["pretrained_cfg."] = config.get("pretrained_cfg")
    return {
        f"{name}num_classes": section["num_classes"]
        for name, section in sections.items()
        if isinstance(section, Mapping) and isinstance(section.get("num_classes"), int)
    }


def timm_task(config: Mapping[str, Any]) -> str:
    """The task of a model of timm; one without classes gives features."""
    count = next(iter(class_counts(config).values()), None)
    return FEATURE_EXTRACTION if count == 0 else IMAGE_CLASSIFICATION


def names_timm(model: str) -> bool:
    """Whether what --model names is of timm: by its name, or by its configuration if that is here.

    A folder is named by its absolute path.
    """
    return model.startswith(_TIMM_NAMES) or is_timm(config_here(model) or {})


def config_here(model: str, revision: str = "main") -> Mapping[str, Any] | None:
    """The `config.json` of a folder, or of a model that the hub's cache has; None without one."""
    try:
        if Path(model).is_absolute():
            return read_object(Path(model, CONFIG))
        commit = cached_commit(model, revision)
        return read_object(snapshot(model, commit) / CONFIG) if commit else None
    except (OSError, ValueError):
        return None  # the export says what is wrong with it


def generates(task: object, generation: object) -> bool:
    """Whether a model of a task generates text token by token.

    Of speech recognition, CTC models do not; their recipes have no `export.generation`.
    """
    facts = TASKS.get(str(task))
    is_set = task != SPEECH_RECOGNITION or generation is not None
    return bool(facts and facts.generates and is_set)


def has_encoder(task: str | None) -> bool:
    """Whether text that models of a task generate follows from an input and no prompt."""
    return has_cross_attention(task) or task == IMAGE_TO_TEXT


def has_cross_attention(task: str | None) -> bool:
    """Whether the decoder of such models attends to the outputs of the encoder."""
    return task in (SPEECH_RECOGNITION, TEXT_TO_TEXT)


def complete_task(data: Any) -> None:
    """Adds the task of the model that a recipe's data name, where they do not say it.

    It is that of the model's configuration, and text generation where none is on this machine.
    """
    model = data.get("model") if isinstance(data, dict) else None
    if not isinstance(model, dict):
        return
    if isinstance(model.get("timm"), str) and model.get("task") is None:
        named = config_here(model["timm"], str(model.get("revision") or "main"))
        model["task"] = timm_task(named or {})
    if not isinstance(model.get("hf"), str):
        return
    config = config_here(model["hf"], str(model.get("revision") or "main")) or {}
    if model.get("task") is None:
        model["task"] = task_of(config) or TEXT_GENERATION
    if model["task"] == SPEECH_RECOGNITION and not is_ctc(config):
        for name in ("export", "benchmark"):
            section = data.setdefault(name, {})
            if isinstance(section, dict) and section.get("generation") is None:
                section["generation"] = {}
