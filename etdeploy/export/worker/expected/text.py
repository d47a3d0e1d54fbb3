"""The text of a recipe on which a model is evaluated."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from etdeploy.core.console import count
from etdeploy.export.hf.evaluated import EVALUATE, no_tokenizer, read_excerpt
from etdeploy.export.hf.refusal import Refusal
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.expected.evaluation import windows
from etdeploy.export.worker.failures import exception_text, fail
from etdeploy.export.worker.loading.hf.load import LoadedModel


@dataclass(frozen=True)
class EvaluationText:
    """A text, ready to be evaluated.

    Attributes:
        file: Its name.
        sha256: Of what is evaluated.
        parts: Its tokens, in parts that the cache has room for.
        whole: Whether that is all of it.
    """

    file: str
    sha256: str
    parts: tuple[tuple[int, ...], ...]
    whole: bool

    @property
    def tokens(self) -> int:
        """How many are predicted: of each part all but the first."""
        return sum(len(part) - 1 for part in self.parts)

    @property
    def note(self) -> str | None:
        """A sentence where the text was cut."""
        if self.whole:
            return None
        return (
            f"Of {self.file}, the first {count(self.tokens, 'token')} were evaluated; more with "
            "--set export.generation.evaluate_tokens=NUMBER"
        )


def evaluation_text(spec: ExportSpec, loaded: LoadedModel) -> EvaluationText | None:
    """The text that the spec names; None where it names none.

    Raises:
        WorkerError: It cannot be read, or the model has no tokenizer for it, or there is no token
            with others before it.
    """
    asked = spec.generation
    if asked is None or asked.evaluate is None:
        return None
    place, path = spec.place(*EVALUATE), Path(asked.evaluate)
    if loaded.tokenizer.loaded is None:
        refusal = no_tokenizer(path, "the model has no tokenizer that can be loaded")
        raise fail("evaluation", refusal.message, remedy=refusal.remedy, file=place)
    excerpt = read_excerpt(path, asked.evaluate_tokens)
    if isinstance(excerpt, Refusal):
        raise fail("evaluation", excerpt.message, remedy=excerpt.remedy, file=place)
    ids = _tokens(loaded, excerpt.text, path.name, place)
    bos = loaded.tokenizer.bos_id
    kept = ids[: asked.evaluate_tokens + 1]
    parts = windows(kept, asked.context, bos)
    if not parts:
        raise fail(
            "evaluation",
            f"{path.name} has a single token, and a token is predicted from those before it",
            remedy="Name a file with some hundred words.",
            file=place,
        )
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()
    return EvaluationText(path.name, digest, parts, excerpt.whole and len(kept) == len(ids))


def _tokens(loaded: LoadedModel, text: str, name: str, place: str) -> tuple[int, ...]:
    try:
        ids = tuple(int(i) for i in loaded.tokenizer.loaded(text)["input_ids"])
    except Exception as error:  # of its own code
        raise fail(
            "evaluation",
            f"the model's tokenizer does not take {name}: {exception_text(error)}",
            file=place,
        ) from error
    beyond = [i for i in ids if i >= loaded.vocabulary]
    if beyond:
        raise fail(
            "evaluation",
            f"the model's tokenizer gives the token {beyond[0]} for {name}, and the model has only "
            f"{loaded.vocabulary:,}",
            remedy="Use the model's own tokenizer, as it was published.",
            file=place,
        )
    return ids
