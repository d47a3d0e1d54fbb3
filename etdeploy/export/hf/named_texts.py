"""The texts of a recipe that a language model reads at export, as they are read without PyTorch."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from etdeploy.backends.schemes import GPTQ, STATIC_SCHEMES
from etdeploy.export.hf.config import ConfigProblem
from etdeploy.export.spec import BUNDLED_TEXTS, ExportSpec
from etdeploy.recipe.paths import CALIBRATION, EVALUATE

# Of the text that calibrates, for the ranges of activations, and for the mean of a layer's squared
# inputs: of SmolLM2-135M-Instruct, 512 tokens have a larger divergence, and 2,048 the same.
_RANGE_TOKENS, _SCALE_TOKENS = 2048, 1024
# For how inputs vary together, with GPTQ: twice as many take nearly twice as long and gain nothing.
MOST_READ = 4096
# Hardly any token has more bytes; of a longer file, the rest is not read.
_BYTES_OF_TOKEN = 64


@dataclass(frozen=True)
class NamedText:
    """A file with a text, of which so many tokens count at most; `key` of the recipe names it."""

    path: Path
    tokens: int
    key: tuple[str, ...]

    @property
    def is_bundled(self) -> bool:
        """Whether it is etdeploy's; a model that cannot read it is exported all the same."""
        return str(self.path) in BUNDLED_TEXTS


def evaluated_text(spec: ExportSpec) -> NamedText | None:
    """The text on which the model is evaluated."""
    asked = spec.generation
    if asked is None or asked.evaluate is None:
        return None
    return NamedText(Path(asked.evaluate), asked.evaluate_tokens + 1, EVALUATE)


def calibration_text(spec: ExportSpec) -> NamedText | None:
    """The text whose activations decide about the scales of weights."""
    if spec.calibration_text is None:
        return None
    asked, generation = spec.calibration_prompts, spec.generation
    tokens = _RANGE_TOKENS if spec.quantization in STATIC_SCHEMES else _SCALE_TOKENS
    if spec.rounding == GPTQ:
        tokens = MOST_READ
    if isinstance(asked, int) and generation:
        tokens = asked * generation.prefill_tokens
    return NamedText(Path(spec.calibration_text), tokens, CALIBRATION)


def named_texts(spec: ExportSpec) -> Iterator[NamedText]:
    yield from filter(None, (evaluated_text(spec), calibration_text(spec)))


@dataclass(frozen=True)
class Excerpt:
    """The beginning of a text, which has the tokens that count; `whole` if it is all of it."""

    text: str
    whole: bool


def no_tokenizer(text: NamedText, why: str) -> ConfigProblem:
    """The refusal of a text for which there is no tokenizer."""
    key = ".".join(text.key)
    return ConfigProblem(
        f"{text.path.name} cannot be split into tokens: {why}",
        f"Put the model's tokenizer into its folder, or leave {key} out.",
        key=text.key,
    )


def read_excerpt(named: NamedText) -> Excerpt | ConfigProblem:
    """The beginning of a text, or why it cannot be read."""
    path, key = named.path, named.key
    limit = named.tokens * _BYTES_OF_TOKEN
    try:
        with path.open("rb") as stream:
            content = stream.read(limit + 1)
    except OSError as error:
        return ConfigProblem(f"{path} cannot be read: {error.strerror}", key=key)
    whole = len(content) <= limit
    try:
        # Where the text is cut, without a last character of which a part is missing.
        text = getincrementaldecoder("utf-8-sig")().decode(content[:limit], final=whole)
    except UnicodeDecodeError as error:
        return ConfigProblem(
            f"{path} is not text in UTF-8: byte {error.start:,} fits no character",
            "Save it as UTF-8, or name another file.",
            key=key,
        )
    if not text.strip():
        return ConfigProblem(f"{path} has no text", "Name a file with some hundred words.", key=key)
    return Excerpt(text, whole)
