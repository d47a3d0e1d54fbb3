"""The language model of a spec as the methods of a program that generates text."""

from __future__ import annotations

from dataclasses import dataclass

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.generation.sources import generation_sources
from etdeploy.export.worker.loading.hf.fetch import Tell
from etdeploy.export.worker.loading.hf.load import LoadedModel, load_model
from etdeploy.export.worker.loading.hf.tokenizer import TOKENIZER_FOLDER, stop_ids
from etdeploy.export.worker.loading.source import Source
from etdeploy.program.generation import Generation


@dataclass(frozen=True)
class LanguageModel:
    """A language model, ready to be exported.

    Attributes:
        sources: What each method is traced from.
        generation: How the program is called.
        loaded: The model itself.
    """

    sources: dict[str, Source]
    generation: Generation
    loaded: LoadedModel


def load_language_model(spec: ExportSpec, tell: Tell) -> LanguageModel:
    """Loads the model and makes its methods.

    Raises:
        WorkerError: It cannot be got or loaded, or is none that can be exported.
        OSError: It does not fit on the disk.
    """
    loaded = load_model(spec, tell)
    asked = spec.generation
    if asked is None:
        raise ValueError("the spec names no language model")
    made = generation_sources(
        loaded.model, context=asked.context, prefill_tokens=asked.prefill_tokens, path=asked.path
    )
    tokenizer, vocabulary = loaded.tokenizer, loaded.vocabulary
    generation = Generation(
        methods=made.methods,
        vocabulary=vocabulary,
        context=asked.context,
        stop_ids=stop_ids(loaded.model, tokenizer, vocabulary),
        bos_id=tokenizer.bos_id,
        tokenizer=TOKENIZER_FOLDER if tokenizer.folder else None,
        model=spec.source,
        revision=loaded.checkpoint.commit,
        path=made.path,
        path_reason=made.path_reason,
    )
    return LanguageModel(made.sources, generation, loaded)
