"""The deployment recipe as frozen, typed values; `recipe/sections/` has its sections."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from etdeploy.backends.registry import find_backend
from etdeploy.backends.schemes import LINEAR_SCHEMES
from etdeploy.recipe import llm_config
from etdeploy.recipe.rules.common import LANGUAGE_MODELS, require
from etdeploy.recipe.rules.recipe import recipe_rules
from etdeploy.recipe.sections.app import App
from etdeploy.recipe.sections.base import Section
from etdeploy.recipe.sections.benchmark import Benchmark
from etdeploy.recipe.sections.export import Export
from etdeploy.recipe.sections.model import Model
from etdeploy.recipe.sections.runtime import Runtime
from etdeploy.recipe.tasks import (
    IMAGE_CLASSIFICATION,
    SPEECH_RECOGNITION,
    TASKS,
    TEXT_GENERATION,
    generates,
)


class Recipe(Section):
    """One deployment: model, export, runtime, benchmark."""

    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """A name for folders and reports; by default that of the file."""

    description: str | None = None
    """A one-sentence description."""

    extends: str | None = None
    """Another recipe that this one changes: a bundled name, a path relative to this file, or
    `package/name` for one that an installed package brings. Its name and description are not
    inherited."""

    model: Model
    """Where the model comes from."""

    export: Export = Export()
    """How the model becomes a program."""

    runtime: Runtime = Runtime()
    """What the runner is linked against."""

    benchmark: Benchmark = Benchmark()
    """What is measured."""

    app: App = App()
    """The sample app."""

    @model_validator(mode="before")
    @classmethod
    def _complete_for_language_models(cls, data: Any) -> Any:
        """Other models have no section `generation`, so that their records have no keys of it."""
        data = llm_config.complete(data) if isinstance(data, dict) else data
        model = data.get("model") if isinstance(data, dict) else None
        if isinstance(model, dict) and model.get("timm") is not None and not model.get("task"):
            return {**data, "model": {**model, "task": IMAGE_CLASSIFICATION}}
        if not isinstance(model, dict) or not any(
            model.get(s) is not None for s in LANGUAGE_MODELS
        ):
            return data
        task = model.get("task") or TEXT_GENERATION
        data = {**data, "model": {**model, "task": task}}
        if task not in _GENERATIVE:
            return data
        sections = {name: _with_generation(data.get(name)) for name in ("export", "benchmark")}
        return {**data, **sections}

    @model_validator(mode="after")
    def _rules(self) -> Recipe:
        sections = {name: getattr(self, name) for name in ("model", "export", "benchmark")}
        require(recipe_rules({n: s.model_dump(exclude_unset=True) for n, s in sections.items()}))
        return self

    @property
    def is_language_model(self) -> bool:
        """Whether the model generates text token by token, from any input."""
        return generates(self.model.task, self.export.generation)

    @property
    def has_other_exporter(self) -> bool:
        """Whether etdeploy does not export the program, which alone shows if it generates text."""
        return self.model.program is not None or self.export.llm_config is not None

    @property
    def embeddings(self) -> str | None:
        """How tables of embeddings are quantized; None where they stay in floats.

        By default to 8 bits beside the quantized layers of a language model: its table is then a
        large part of the file, and only looked up, which costs no time.
        """
        export, backend = self.export, find_backend(self.export.backend)
        if export.embeddings:
            return None if export.embeddings == "none" else export.embeddings
        if not self.is_language_model or export.quantization not in LINEAR_SCHEMES:
            return None
        return "8w" if backend and "8w" in backend.embeddings else None


# Of speech recognition, only the model's configuration tells; `complete_task` reads it.
_GENERATIVE = tuple(n for n, facts in TASKS.items() if facts.generates and n != SPEECH_RECOGNITION)


def _with_generation(section: Any) -> Any:
    """A section with `generation`, which has its defaults; unchanged unless it is a mapping."""
    if section is None:
        return {"generation": {}}
    if not isinstance(section, dict) or section.get("generation") is not None:
        return section
    return {**section, "generation": {}}
