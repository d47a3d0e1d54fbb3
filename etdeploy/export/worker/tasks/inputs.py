"""The user's input, as tensors made by the model's own processor."""

from __future__ import annotations

import math
import time
import wave
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from etdeploy.core.console import count
from etdeploy.export.hf.files import PROCESSOR_FILES, TOKENIZER_FILES, has_tokenizer
from etdeploy.export.spec import TaskInput
from etdeploy.export.worker.failures import WorkerError, exception_text, fail
from etdeploy.program.task import ImagePreprocessing, SpeechPreprocessing
from etdeploy.recipe.hub_cache import CONFIG, read_object
from etdeploy.recipe.tasks import FEATURE_EXTRACTION, IMAGE_TO_TEXT, TASKS, Modality

PROCESSOR_FOLDER = "processor"
# The labels of a model of timm, in place of a processor.
LABELS = "labels.json"
# The input image, beside the processor.
INPUT_IMAGE = "input.png"
_SENTENCE = "The quick brown fox jumps over the lazy dog."
_MASKED_SENTENCE = "The quick brown {mask} jumps over the lazy dog."
_QUESTION = "What is in this image?"
# As models of several families write it; each reads its own.
_MASKS = ("[MASK]", "<mask>")
# Of random pixels and samples.
_HEIGHT, _WIDTH, _SECONDS = 480, 640, 2
# What the model computes itself for one whole input: all positions count, and all are of one text.
_IMPLIED = ("attention_mask", "token_type_ids", "pixel_mask", "special_tokens_mask")
_FULL_SCALE = {1: 2**7, 2: 2**15, 3: 2**23, 4: 2**31}
_WAV = "Convert it: ffmpeg -i INPUT -ac 1 -ar {rate} -c:a pcm_s16le OUTPUT.wav"
_DAMAGE = (OSError, ValueError, SyntaxError, EOFError)


@dataclass(frozen=True)
class Processor:
    """What transformers loads for a task: a tokenizer, an image processor, a feature extractor.

    Attributes:
        folder: With its files and the model's configuration.
        modality: What it reads.
        reads: The object that makes tensors of it.
        tokenizer: That reads and writes text; None where the model has none.
        settings: Of an image processor, where `reads` is of timm.
    """

    folder: Path
    task: str
    modality: Modality
    reads: Any
    tokenizer: Any = None
    settings: Mapping[str, Any] | None = None

    @property
    def sampling_rate(self) -> int:
        """In samples for each second, of a model that hears."""
        return int(getattr(self.reads, "sampling_rate", 16_000))


@dataclass(frozen=True)
class TaskTensors:
    """A model's inputs by the names of its parameters.

    Attributes:
        is_real: Whether they are made of the user's input or of the default text.
        took_ms: Of the processor, without reading files.
        content: The text, the image or the samples.
    """

    values: Mapping[str, torch.Tensor]
    is_real: bool
    took_ms: float
    content: Any


@dataclass(frozen=True)
class ImageQuestion:
    """An image, and the text that the model continues: the question, as a chat writes it."""

    image: Any
    text: str


def question_of(processor: Processor, given: str | None) -> str:
    """The prompt of a vision-language model: its chat template with an image and the question."""
    question = _QUESTION if given is None else given
    if not question.strip():
        raise fail("inputs", "the text is empty", file="benchmark.input.text")
    reads = processor.reads
    image = getattr(reads, "image_token", None)
    if isinstance(image, str) and image in question:
        raise fail(
            "inputs",
            f"the text has the token {image}, which stands for an image: the model is given one "
            "image, and its processor adds the token",
            remedy=f"Leave {image} out of the text.",
            file="benchmark.input.text",
        )
    if not getattr(reads, "chat_template", None):
        return f"{image}\n{question}"
    content = [{"type": "image"}, {"type": "text", "text": question}]
    try:
        prompt: str = reads.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
    except Exception as error:  # of the model's template
        raise fail(
            "checkpoint",
            f"the chat template raised {exception_text(error)}",
            remedy="Get its files again from where the model came.",
            file=str(processor.folder),
        ) from error
    return prompt


def processor_files(folder: Path) -> dict[str, Path]:
    """The files that a processor is loaded from, by their names, with the configuration."""
    names = (CONFIG, *PROCESSOR_FILES, *TOKENIZER_FILES)
    return {name: folder / name for name in names if (folder / name).is_file()}


def load_processor(folder: Path, task: str) -> Processor:
    """The processor of a checkpoint, or of a program folder's copy of it."""
    import transformers

    modality = _modality(folder, task)
    if task == IMAGE_TO_TEXT:
        return _image_text_processor(folder)
    tokenizer = None
    if has_tokenizer(folder):
        tokenizer = _loaded(transformers.AutoTokenizer, folder, "tokenizer")
    kinds = {"image": "AutoImageProcessor", "audio": "AutoFeatureExtractor"}
    if modality == "text":
        if tokenizer is None:
            raise _missing(folder, "tokenizer", "tokenizer.json")
        return Processor(folder, task, modality, tokenizer, tokenizer)
    if not any((folder / name).is_file() for name in PROCESSOR_FILES):
        what = "image processor" if modality == "image" else "feature extractor"
        raise _missing(folder, what, PROCESSOR_FILES[0])
    reads = _loaded(getattr(transformers, kinds[modality]), folder, kinds[modality])
    return Processor(folder, task, modality, reads, tokenizer)


def _image_text_processor(folder: Path) -> Processor:
    """That of a vision-language model, which puts an image's tokens among those of a text."""
    import transformers

    if not has_tokenizer(folder):
        raise _missing(folder, "tokenizer", "tokenizer.json")
    if not any((folder / name).is_file() for name in PROCESSOR_FILES):
        raise _missing(folder, "processor", PROCESSOR_FILES[1])
    reads = _loaded(transformers.AutoProcessor, folder, "processor")
    if not hasattr(reads, "image_processor"):
        raise _missing(folder, "image processor", PROCESSOR_FILES[0])
    return Processor(folder, IMAGE_TO_TEXT, "image", reads, reads.tokenizer)


def _modality(folder: Path, task: str) -> Modality:
    takes = TASKS[task].modalities
    if task != FEATURE_EXTRACTION:
        return takes[0]
    try:
        settings = read_object(folder / PROCESSOR_FILES[0])
    except (OSError, ValueError):
        return "text"
    if "image_processor_type" in settings or "image_mean" in settings:
        return "image"
    return "audio" if "sampling_rate" in settings else "text"


def _loaded(kind: Any, folder: Path, what: str) -> Any:
    try:
        return kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # of the library's code, or of a package that is not installed
        raise fail(
            "checkpoint",
            f"the {what} cannot be loaded: {exception_text(error)}",
            remedy="Install the package that it names."
            if isinstance(error, ImportError)
            else "Get its files again from where the model came; the log has the traceback.",
            file=str(folder),
        ) from error


def _missing(folder: Path, what: str, name: str) -> WorkerError:
    return fail(
        "checkpoint",
        f"the model comes without its {what} ({name})",
        remedy="Save it beside the model: processor.save_pretrained(FOLDER)",
        file=str(folder),
    )


def task_tensors(processor: Processor, given: TaskInput, longest: int | None) -> TaskTensors:
    """The model's inputs for the user's input, or else for a default text or random values.

    Args:
        processor: Of the model.
        given: By the user.
        longest: The most tokens of a text; None without a limit.
    """
    read: Callable[[], tuple[Any, bool]] = {
        "text": lambda: (_text(processor, given.text), True),
        "image": lambda: _image(given.image),
        "audio": lambda: _audio(given.audio, processor.sampling_rate),
    }[processor.modality]
    content, is_real = read()
    if processor.task == IMAGE_TO_TEXT:
        content = ImageQuestion(content, question_of(processor, given.text))
    started = time.perf_counter()
    try:
        made = _processed(processor, content)
    except Exception as error:
        raise fail(
            "inputs",
            f"the model's processor raised {exception_text(error)}",
            file=_place(processor),
        ) from error
    took_ms = 1000 * (time.perf_counter() - started)
    implied = _IMPLIED if processor.task != IMAGE_TO_TEXT else _IMPLIED[:1]
    values = {k: v for k, v in made.items() if isinstance(v, torch.Tensor) and k not in implied}
    if processor.modality == "text":
        _require_length(values, longest)
    return TaskTensors(values, is_real, took_ms, content)


def random_input_note(processor: Processor, inputs: TaskTensors) -> str | None:
    """A sentence where the input is random; None for the user's."""
    if inputs.is_real:
        return None
    kind = processor.modality
    return (
        f"The {'pixels' if kind == 'image' else 'samples'} of the input are random: errors that "
        f"real ones would show stay hidden. Give one: --{kind} FILE"
    )


def _place(processor: Processor) -> str:
    return f"benchmark.input.{processor.modality}"


def _processed(processor: Processor, content: Any) -> Mapping[str, Any]:
    if processor.modality == "audio":
        rate = processor.sampling_rate
        made: Mapping[str, Any] = processor.reads(content, sampling_rate=rate, return_tensors="pt")
    elif isinstance(content, ImageQuestion):
        made = processor.reads(text=content.text, images=[content.image], return_tensors="pt")
    elif processor.modality == "image":
        made = processor.reads(images=content, return_tensors="pt")
    else:
        made = processor.reads(content, return_tensors="pt")
    return made


def _text(processor: Processor, given: str | None) -> str:
    if given is not None and not given.strip():
        raise fail("inputs", "the text is empty", file=_place(processor))
    mask = processor.tokenizer.mask_token if processor.task == "fill-mask" else None
    if processor.task != "fill-mask":
        text = given or _SENTENCE
    elif mask is None:
        raise fail("checkpoint", "the model's tokenizer has no mask", file=str(processor.folder))
    else:
        text = given or _MASKED_SENTENCE.format(mask=mask)
        for other in _MASKS:
            text = text.replace(other, mask)
        if mask not in text:
            raise fail(
                "inputs",
                f"the text has no mask to fill: {text[:60]!r}",
                remedy=f"Write {mask} in place of a word.",
                file=_place(processor),
            )
    return text


def _require_length(values: Mapping[str, torch.Tensor], longest: int | None) -> None:
    tokens = next(iter(values.values())).shape[1]
    if longest is not None and tokens > longest:
        raise fail(
            "inputs",
            f"the text has {count(tokens, 'token')}, and the model takes {longest} at most",
            remedy="Give a shorter text.",
            file="benchmark.input.text",
        )


def _image(path: str | None) -> tuple[Any, bool]:
    """An image in RGB, rotated as its EXIF data say."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    if path is None:
        pixels = np.random.default_rng(0).integers(0, 256, (_HEIGHT, _WIDTH, 3), np.uint8)
        return Image.fromarray(pixels), False
    try:
        with Image.open(path) as opened:
            upright = ImageOps.exif_transpose(opened)
            return _rgb(upright), True
    except (*_DAMAGE, Image.DecompressionBombError) as error:
        is_other = isinstance(error, UnidentifiedImageError)
        raise fail(
            "inputs",
            "the file is not an image, or of a format that Pillow does not know"
            if is_other
            else f"the image cannot be read: {exception_text(error)}",
            remedy="Give a PNG or JPEG file.",
            file=path,
        ) from error


def _rgb(image: Any) -> Any:
    """With white behind what is transparent, and 16 bits scaled to 8."""
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image, dtype=np.float64)
        top = 65535 if values.max() > 255 else 255
        image = Image.fromarray((values * (255 / top)).clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        behind = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(behind, image)
    return image.convert("RGB")


def _audio(path: str | None, rate: int) -> tuple[np.ndarray[Any, Any], bool]:
    """Samples from -1 to 1, of one channel at the model's rate."""
    if path is None:
        return np.random.default_rng(0).normal(0, 0.1, rate * _SECONDS).astype(np.float32), False
    try:
        with wave.open(path, "rb") as opened:
            width, channels = opened.getsampwidth(), opened.getnchannels()
            own, data = opened.getframerate(), opened.readframes(opened.getnframes())
    except (*_DAMAGE, wave.Error) as error:
        raise fail(
            "inputs",
            f"the audio file cannot be read: {exception_text(error)}",
            remedy=_WAV.format(rate=rate),
            file=path,
        ) from error
    samples = _samples(data, width).reshape(-1, channels).mean(axis=1)
    if not samples.size:
        raise fail("inputs", "the audio file is empty", file=path)
    if own != rate:
        from scipy.signal import resample_poly

        divisor = math.gcd(own, rate)
        samples = resample_poly(samples, rate // divisor, own // divisor)
    return samples.astype(np.float32), True


def _samples(data: bytes, width: int) -> np.ndarray[Any, Any]:
    if width == 1:  # without a sign
        return (np.frombuffer(data, np.uint8).astype(np.float64) - 128) / 128
    if width == 3:
        parts = np.frombuffer(data, np.uint8).reshape(-1, 3).astype(np.int32)
        values = parts[:, 0] | parts[:, 1] << 8 | parts[:, 2] << 16
        values = values - ((values & 0x800000) << 1)
    else:
        values = np.frombuffer(data, f"<i{width}")
    return values.astype(np.float64) / _FULL_SCALE[width]


# A picture without repetitions, of which resizing and cropping show: its height and width.
_PROBE = (97, 131)
# Of 255 levels. Pillow and torchvision round differently.
_MOST_LEVELS = 4.0
_MOST_OF_SAMPLES = 1e-3
_FILTERS = {2: "bilinear", 3: "bicubic"}
_SIZE_KEYS = ("height", "width", "shortest_edge", "longest_edge", "max_height", "max_width")
_CONVNEXT_EXACT = 384


def image_preprocessing(
    processor: Processor, values: Mapping[str, torch.Tensor]
) -> tuple[ImagePreprocessing | None, str | None]:
    """How an app makes the model's input of an image; or None, and the reason.

    What the processor's settings say is tried on a picture and compared with what the processor
    gives: a step that is not known here leaves another picture.
    """
    ((name, value),) = values.items() if len(values) == 1 else (("", torch.zeros(0)),)
    if value.dim() != 4 or value.shape[:2] != (1, 3):
        return None, "the model takes more than one image in RGB"
    try:
        settings = processor.settings or _image_settings(processor.reads)
        found = ImagePreprocessing(
            input=name, height=value.shape[2], width=value.shape[3], **settings
        )
    except (TypeError, ValueError):
        return None, "its image processor has settings that apps do not know"
    probe = _probe()
    made = _processed(processor, probe)[name][0].permute(1, 2, 0).numpy()
    difference = np.abs(made - apply_to_image(found, probe)) * np.array(found.std) / found.scale
    if difference.max() > _MOST_LEVELS:
        return None, (
            "its image processor does more to an image than resize, crop and normalize it, which "
            f"is what apps do (a difference of {difference.max():.0f} in 255)"
        )
    return found, None


def _probe() -> Any:
    from PIL import Image

    rows, columns = (np.linspace(0, 1, size) for size in _PROBE)
    y, x = np.meshgrid(rows, columns, indexing="ij")
    pixels = np.stack([x, y, (x * x + y) / 2], axis=-1) * 255
    return Image.fromarray(pixels.astype(np.uint8))


def apply_to_image(how: ImagePreprocessing, image: Any) -> np.ndarray[Any, Any]:
    """The input for an image in RGB, of shape (height, width, channels), as apps make it."""
    from PIL import Image

    if how.shortest_edge is None:
        size = (how.resize_width or image.width, how.resize_height or image.height)
    else:
        short = min(image.size)
        size = (
            how.shortest_edge * image.width // short,
            how.shortest_edge * image.height // short,
        )
    resampling = getattr(Image.Resampling, how.filter.upper())
    resized = image if size == image.size else image.resize(size, resampling)
    left, top = (size[0] - how.width) // 2, (size[1] - how.height) // 2
    cropped = resized.crop((left, top, left + how.width, top + how.height))
    return (np.asarray(cropped, np.float32) * how.scale - how.mean) / how.std


def _image_settings(reads: Any) -> dict[str, Any]:
    """Fields of ImagePreprocessing from the attributes of an image processor."""

    def flag(name: str) -> bool:
        return bool(getattr(reads, name, False))

    def size_of(name: str) -> dict[str, int]:
        given = getattr(reads, name, None)
        values = given if isinstance(given, Mapping) else vars(given) if given else {}
        return {key: values[key] for key in _SIZE_KEYS if values.get(key)}

    found: dict[str, Any] = {}
    if flag("do_resize"):
        found |= _resizing(size_of("size"), getattr(reads, "crop_pct", None))
        found["filter"] = _FILTERS.get(int(getattr(reads, "resample", None) or 0))
    found["scale"] = float(reads.rescale_factor) if flag("do_rescale") else 1.0
    if flag("do_normalize"):
        found |= {"mean": tuple(reads.image_mean), "std": tuple(reads.image_std)}
    return found


def _resizing(size: Mapping[str, int], crop_pct: float | None) -> dict[str, int]:
    if set(size) == {"height", "width"}:
        return {"resize_height": size["height"], "resize_width": size["width"]}
    if set(size) != {"shortest_edge"}:
        raise ValueError(f"unknown sizes {sorted(size)}")
    edge = size["shortest_edge"]
    if crop_pct is None:
        return {"shortest_edge": edge}
    # As ConvNextImageProcessor does.
    if edge >= _CONVNEXT_EXACT:
        return {"resize_height": edge, "resize_width": edge}
    return {"shortest_edge": int(edge / crop_pct)}


def speech_preprocessing(
    processor: Processor, values: Mapping[str, torch.Tensor]
) -> tuple[SpeechPreprocessing | None, str | None]:
    """How an app makes the model's input of recorded speech; or None, and the reason."""
    ((name, value),) = values.items() if len(values) == 1 else (("", torch.zeros(0)),)
    if value.dim() != 2:
        return None, "its input is not a waveform, but what a feature extractor makes of one"
    found = SpeechPreprocessing(
        input=name,
        samples=value.shape[1],
        rate=processor.sampling_rate,
        normalize=bool(getattr(processor.reads, "do_normalize", False)),
    )
    probe = np.sin(np.arange(found.samples) * 0.05).astype(np.float32) * 0.2 + 0.1
    made = _processed(processor, probe)[name][0].numpy()
    if made.shape != probe.shape or np.abs(made - apply_to_speech(found, probe)).max() > (
        _MOST_OF_SAMPLES
    ):
        return None, "its feature extractor does more to a waveform than normalize it"
    return found, None


def apply_to_speech(
    how: SpeechPreprocessing, samples: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """The input for samples, as apps make it."""
    if not how.normalize:
        return samples
    centered = samples - samples.mean()
    normalized: np.ndarray[Any, Any] = centered / np.sqrt(samples.var() + how.epsilon)
    return normalized
