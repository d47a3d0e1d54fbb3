"""The texts of a recipe as tokens: what the model is evaluated on, and what calibrates it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from etdeploy.core.console import count
from etdeploy.export.hf.config import ConfigProblem
from etdeploy.export.hf.named_texts import (
    NamedText,
    calibration_text,
    evaluated_text,
    no_tokenizer,
    read_excerpt,
)
from etdeploy.export.protocol import FailureKind
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import WorkerError, exception_text, fail
from etdeploy.export.worker.language.forward import windows
from etdeploy.export.worker.language.load import LoadedModel
from etdeploy.recipe.paths import CALIBRATION

# Tokens of the calibration text that are read at once.
CALIBRATION_WINDOW = 512
# Tokens that are read together, each from an empty cache.
Parts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class TokenizedText:
    """A text, ready to be read by the model: its tokens, in parts that the cache has room for.

    `sha256` is of what is read; `whole` if that is all of the file.
    """

    file: str
    sha256: str
    parts: Parts
    whole: bool

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return sum(map(len, self.parts))

    @property
    def predicted(self) -> int:
        """How many tokens are predicted: of each part all but the first."""
        return sum(len(part) - 1 for part in self.parts)

    @property
    def cut_note(self) -> str | None:
        """A sentence where an evaluated text was cut."""
        if self.whole:
            return None
        return (
            f"Of {self.file}, the first {count(self.predicted, 'token')} were evaluated; more with "
            "--set export.generation.evaluate_tokens=NUMBER"
        )


def evaluation_parts(spec: ExportSpec, loaded: LoadedModel) -> TokenizedText | None:
    """The text on which the model is evaluated; None for none."""
    context = spec.generation.context if spec.generation else 0
    return _readable(spec, loaded, evaluated_text(spec), context, "evaluation")


def calibration_parts(spec: ExportSpec, loaded: LoadedModel) -> TokenizedText | None:
    """The text and the prompts that calibrate the model; None for none."""
    context = spec.generation.context if spec.generation else 0
    asked = spec.calibration_prompts
    if isinstance(asked, int) and spec.generation:
        room = min(context, spec.generation.prefill_tokens)
        text = _readable(spec, loaded, calibration_text(spec), room, "calibration")
        return text and _sections(text, asked, room)
    room = min(context, CALIBRATION_WINDOW)
    text = _readable(spec, loaded, calibration_text(spec), room, "calibration")
    if not isinstance(asked, tuple):
        return text
    return _with_prompts(text, _prompt_parts(spec, loaded, asked, context))


def _sections(text: TokenizedText, asked: int, length: int) -> TokenizedText:
    """The first parts of a text; says so where it has fewer."""
    if (found := len(text.parts)) >= asked:
        return replace(text, parts=text.parts[:asked])
    few = f"{count(found, 'section')} of up to {length} tokens, not the {asked} of "
    return replace(text, file=f"{text.file} ({few}export.calibration.prompts)")


def _with_prompts(text: TokenizedText | None, prompts: Parts) -> TokenizedText:
    named = count(len(prompts), "prompt")
    if text is None:
        return TokenizedText(named, _digest(prompts), prompts, whole=True)
    parts = (*text.parts, *prompts)
    return TokenizedText(f"{text.file} and {named}", _digest(parts), parts, text.whole)


def _prompt_parts(
    spec: ExportSpec, loaded: LoadedModel, prompts: Sequence[str], context: int
) -> Parts:
    """The tokens of each prompt, which the cache has room for."""
    place = spec.place(*CALIBRATION)
    if loaded.tokenizer.loaded is None:
        raise fail(
            "calibration",
            "the prompts of export.calibration cannot be split into tokens: the model has no "
            "tokenizer that can be loaded",
            remedy="Put the model's tokenizer into its folder, or leave export.calibration out.",
            file=place,
        )
    found = []
    for number, prompt in enumerate(prompts):
        name = f"prompt {number} of export.calibration (the first is 0)"
        ids = _tokens(loaded, prompt, name, place, "calibration")
        if not 0 < len(ids) <= context:
            raise fail(
                "calibration",
                f"{name} has {count(len(ids), 'token')}, and export.generation.context has room "
                f"for 1 to {context:,}",
                remedy="Shorten it, or name a file with a long text as export.calibration.text.",
                file=place,
            )
        found.append(ids)
    return tuple(found)


def _readable(
    spec: ExportSpec, loaded: LoadedModel, named: NamedText | None, room: int, kind: FailureKind
) -> TokenizedText | None:
    """The text; None where it is none, or one of etdeploy's that the model cannot read."""
    if named is None:
        return None
    try:
        return _tokenized(spec, loaded, named, room, kind)
    except WorkerError:
        if named.is_bundled:
            return None
        raise


def _tokenized(
    spec: ExportSpec, loaded: LoadedModel, named: NamedText, room: int, kind: FailureKind
) -> TokenizedText:
    place, name = spec.place(*named.key), named.path.name
    excerpt = (
        no_tokenizer(named, "the model has no tokenizer that can be loaded")
        if loaded.tokenizer.loaded is None
        else read_excerpt(named)
    )
    if isinstance(excerpt, ConfigProblem):
        raise fail(kind, excerpt.message, remedy=excerpt.remedy, file=place)
    ids = _tokens(loaded, excerpt.text, name, place, kind)
    kept = ids[: named.tokens]
    parts = windows(kept, room, loaded.tokenizer.bos_id)
    if not parts:
        raise fail(
            kind,
            f"{name} has a single token, and a token is predicted from those before it",
            remedy="Name a file with some hundred words.",
            file=place,
        )
    return TokenizedText(name, _digest(parts), parts, excerpt.whole and len(kept) == len(ids))


def _digest(parts: Parts) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _tokens(
    loaded: LoadedModel, text: str, name: str, place: str, kind: FailureKind
) -> tuple[int, ...]:
    try:
        ids = tuple(int(i) for i in loaded.tokenizer.loaded(text)["input_ids"])
    except Exception as error:  # of the tokenizer's code
        raise fail(
            kind,
            f"the model's tokenizer does not take {name}: {exception_text(error)}",
            file=place,
        ) from error
    beyond = [i for i in ids if i >= loaded.vocabulary]
    if beyond:
        raise fail(
            kind,
            f"the model's tokenizer gives the token {beyond[0]} for {name}, and the model has only "
            f"{loaded.vocabulary:,}",
            remedy="Use the model's own tokenizer, as it was published.",
            file=place,
        )
    return ids
