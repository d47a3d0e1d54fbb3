"""The language model of a spec as the methods of a program that generates text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import lowering_of
from etdeploy.export.worker.expected.language import Eager, run_original, run_quantized
from etdeploy.export.worker.expected.text import activations
from etdeploy.export.worker.generation.methods import methods_for
from etdeploy.export.worker.generation.sources import generation_sources
from etdeploy.export.worker.loading.hf.load import TOKENIZER_FOLDER, LoadedModel, stop_ids
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.lowering.scales import Activations
from etdeploy.program.generation import Generation, attention_for
from etdeploy.recipe.model import ExportGeneration


@dataclass(frozen=True)
class LanguageModel:
    """A language model, ready to be exported.

    Attributes:
        sources: What each method is traced from.
        generation: How the program is called.
        loaded: The model itself.
        eager: What it gave before anything of it was changed; None as soon as that is in
            `generation`.
    """

    sources: dict[str, MethodSource]
    generation: Generation
    loaded: LoadedModel
    eager: Eager | None = None

    @property
    def longest(self) -> str:
        """The first of the methods that take the most tokens.

        All of them have the same layers, and a device is judged by its texts: it is enough to run
        this one, to see how far quantisation moves logits.
        """
        return max(self.generation.methods, key=lambda method: method.max_tokens).name

    def activations(self, spec: ExportSpec) -> Activations:
        """What its linear layers are given on the text that calibrates it."""
        if self.eager is None:
            return Activations()
        return activations(spec, self.loaded, self.eager.attention)

    def evaluated(
        self, spec: ExportSpec, modules: Mapping[str, torch.nn.Module], *, in_place: bool
    ) -> LanguageModel:
        """The same with the texts that a device has to give."""
        if self.eager is None:
            return self
        methods = self.generation.methods
        found = run_quantized(
            spec, self.eager, self.loaded.model, methods, modules, in_place=in_place
        )
        told = {"expected": found.texts, "evaluation": found.evaluation}
        loaded = replace(self.loaded, notes=(*self.loaded.notes, *found.notes))
        return LanguageModel(self.sources, self.generation.model_copy(update=told), loaded)


def original_texts(spec: ExportSpec, loaded: LoadedModel) -> Eager:
    """What a model gives before anything of it is changed."""
    asked = _asked(spec)
    methods = methods_for(
        asked.context,
        asked.prefill_tokens,
        attention=attention_for(asked, str(spec.backend))[0],
        fixed=lowering_of(spec).fixed_shapes,
    )
    return run_original(spec, loaded, methods)


def _asked(spec: ExportSpec) -> ExportGeneration:
    if spec.generation is None:
        raise ValueError("the spec names no language model")
    return spec.generation


def language_model(spec: ExportSpec, loaded: LoadedModel, eager: Eager) -> LanguageModel:
    """Makes the methods of a model."""
    asked = _asked(spec)
    made = generation_sources(
        loaded.model,
        context=asked.context,
        prefill_tokens=asked.prefill_tokens,
        path=asked.path,
        attention=attention_for(asked, str(spec.backend))[0],
        fixed=lowering_of(spec).fixed_shapes,
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
        attention=made.attention,
        rewind=made.rewind,
    )
    told = replace(loaded, notes=(*loaded.notes, *made.notes))
    return LanguageModel(made.sources, generation, told, eager)
