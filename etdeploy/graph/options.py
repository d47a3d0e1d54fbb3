"""Which recipes run on which devices, and how: what a command line or a caller of the API names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etdeploy.backends.schemes import DEFAULT_RECIPE
from etdeploy.core.errors import UsageError

if TYPE_CHECKING:
    from etdeploy.graph.job import AppOptions
    from etdeploy.program.tokenizer import Speech
    from etdeploy.recipe.load import Overrides

DEFAULT_OUTPUT = Path("etdeploy-out")


@dataclass(frozen=True)
class JobOptions:
    """The recipes and devices that a command line names, and how to run them.

    Attributes:
        devices: None for a target alone.
        heavy: How many exports and builds may run at once.
        app: Set if apps run the programs.
        speech: What a language model has to understand; None if nobody talks with it.
        measures: Whether the program may be measured.
    """

    recipes: tuple[str, ...]
    overrides: Overrides = ()
    devices: tuple[str | None, ...] = (None,)
    target: str | None = None
    output: Path = DEFAULT_OUTPUT
    measure_again: bool = False
    quiet: bool = False
    fail_fast: bool = False
    heavy: int | None = None
    app: AppOptions | None = None
    speech: Speech | None = None
    measures: bool = True

    @property
    def single(self) -> bool:
        """Whether one recipe on one device is named: then results have another form."""
        return len(self.recipes) == 1 and len(self.devices) == 1


def job_options(
    *,
    overrides: tuple[str, ...],
    recipe: str | None = None,
    device: str | None = None,
    recipes: tuple[str, ...] = (),
    model: str | None = None,
    text: str | None = None,
    image: str | None = None,
    audio: str | None = None,
    lora: str | None = None,
    speculate: str | None = None,
    context: int | None = None,
    runs: int | None = None,
    launched: str | None = None,
    archive: Path | None = None,
    needs_device: bool = True,
    downloads: bool = True,
    otherwise: str = DEFAULT_RECIPE,
    **others: Any,
) -> JobOptions:
    """Return the job options for values of the table's options.

    --model, --text, --image, --audio, --lora, --speculate, --context and --runs are overrides that
    win over --set. A verb that needs no device contacts none if there is a --target. With
    `downloads`, the configuration of a model that is not on this machine is downloaded. `otherwise`
    is the recipe where neither a recipe nor a model is named.
    """
    from etdeploy.recipe import load, paths

    shortcuts = (
        (load.MODEL_OPTION, model), (load.TEXT_OPTION, text), (load.IMAGE_OPTION, image),
        (load.AUDIO_OPTION, audio), (load.LORA_OPTION, lora), (load.CONTEXT_OPTION, context),
        (load.SPECULATE_OPTION, speculate),
        ("benchmark.runs=", runs),
    )  # fmt: skip
    named = (f"{prefix}{value}" for prefix, value in shortcuts if value is not None)
    if downloads and model and (in_hub := paths.hub_model(model)):
        from etdeploy.export.hf.config import download_config

        download_config(*in_hub)
    others["recipes"] = recipes or (recipe or load.default_recipe(model, otherwise),)
    if device is not None:
        others["devices"] = (device,)
    if not needs_device and others.get("target"):
        others["devices"] = (None,)
    if archive and launched == "runner":
        raise UsageError(
            "--app cannot be combined with --as runner", remedy="Leave out one of the two."
        )
    if archive or launched == "app":
        from etdeploy.graph.job import AppOptions

        others["app"] = AppOptions(archive.resolve() if archive else None)
    return JobOptions(overrides=(*overrides, *named), **others)
