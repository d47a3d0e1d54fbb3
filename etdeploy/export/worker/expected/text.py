"""The texts of a recipe as tokens: what the model is evaluated on, and what calibrates it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from etdeploy.core.console import count
from etdeploy.export.hf.named_texts import (
    NamedText,
    calibration_text,
    evaluated_text,
    no_tokenizer,
    read_excerpt,
)
from etdeploy.export.hf.refusal import Refusal
from etdeploy.export.protocol import FailureKind
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.expected.evaluation import windows
from etdeploy.export.worker.failures import WorkerError, exception_text, fail
from etdeploy.export.worker.loading.hf.load import LoadedModel

# Tokens of the calibration text that are read at once.
_CALIBRATION_WINDOW = 512


@dataclass(frozen=True)
class TokenizedText:
    """A text, ready to be read by the model.

    Attributes:
        file: Its name.
        sha256: Of what is read.
        parts: Its tokens, in parts that the cache has room for.
        whole: Whether that is all of it.
    """

    file: str
    sha256: str
    parts: tuple[tuple[int, ...], ...]
    whole: bool

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
    """The text on which the model is evaluated; None for none.

    Raises:
        WorkerError: It cannot be read, or the model has no tokenizer for it, or there is no token
            with others before it.
    """
    context = spec.generation.context if spec.generation else 0
    return _readable(spec, loaded, evaluated_text(spec), context, "evaluation")


def calibration_parts(spec: ExportSpec, loaded: LoadedModel) -> TokenizedText | None:
    """The text that calibrates the model; None for none.

    Raises:
        WorkerError: As of `evaluation_parts`.
    """
    context = spec.generation.context if spec.generation else 0
    room = min(context, _CALIBRATION_WINDOW)
    return _readable(spec, loaded, calibration_text(spec), room, "calibration")


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
    if isinstance(excerpt, Refusal):
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
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()
    return TokenizedText(name, digest, parts, excerpt.whole and len(kept) == len(ids))


def _tokens(
    loaded: LoadedModel, text: str, name: str, place: str, kind: FailureKind
) -> tuple[int, ...]:
    try:
        ids = tuple(int(i) for i in loaded.tokenizer.loaded(text)["input_ids"])
    except Exception as error:  # of its own code
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
