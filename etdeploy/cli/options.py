"""The table of options that several verbs share, and what their values become."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from etdeploy.backends.schemes import DEFAULT_RECIPE, LANGUAGE_RECIPE
from etdeploy.core.errors import UsageError
from etdeploy.graph.options import DEFAULT_OUTPUT

if TYPE_CHECKING:
    from etdeploy.farm.report.source import Settings
    from etdeploy.history.location import HistoryLocation


F = TypeVar("F", bound=Callable[..., Any])
FARM_FILE = Path("farm.yaml")


def complete_recipe(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    from etdeploy.recipe.find import bundled_recipes, packaged_recipes

    known = (*bundled_recipes(), *packaged_recipes())
    names = [CompletionItem(n) for n in known if n.startswith(incomplete)]
    return [*names, CompletionItem(incomplete, type="file")]


def complete_device(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from etdeploy.devices.registry import device_names

    return [name for name in device_names() if name.startswith(incomplete)]


def _complete_target(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from etdeploy.targets.platforms import TARGETS

    return [t for t in TARGETS if t.startswith(incomplete)]


class _DeviceOption(click.Option):
    """Looks the kinds of devices up only when its help is shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from etdeploy.devices.registry import device_forms

        repeat = " Repeat it for several." if self.multiple else ""
        self.help = f"{', '.join(device_forms())}.{repeat}"
        return super().get_help_record(ctx)


_device = partial(
    click.option, show_default=True, metavar="DEVICE", cls=_DeviceOption,
    shell_complete=complete_device,
)  # fmt: skip
_recipe = partial(click.option, metavar="NAME|PATH", shell_complete=complete_recipe)
_RECIPE = "A bundled recipe by name, PACKAGE/NAME, or a YAML file."
_DEFAULT = f"[default: {DEFAULT_RECIPE}; {LANGUAGE_RECIPE} with a --model that generates text]"
_folder = partial(
    click.option, default=str(DEFAULT_OUTPUT), show_default=True, metavar="FOLDER",
    envvar="ETDEPLOY_OUTPUT_DIR", type=click.Path(path_type=Path, file_okay=False),
)  # fmt: skip


def _input(name: str, metavar: str, help: str) -> Callable[[Any], Any]:  # noqa: A002
    return click.option(name, metavar=metavar, multiple=True, callback=_single_input, help=help)


def _single_input(_: click.Context, option: click.Parameter, given: tuple[str, ...]) -> str | None:
    if len(given) > 1:
        raise UsageError(
            f"{option.opts[0]} is given {len(given)} times, but a program is for one input",
            remedy="Run the command once for each.",
        )
    return given[0] if given else None


OPTIONS: dict[str, Callable[[Any], Any]] = {
    "recipe": _recipe("-r", "--recipe", help=f"{_RECIPE}  {_DEFAULT}"),
    "language-recipe": _recipe(
        "-r", "--recipe",
        help=f"{_RECIPE}  [default: {LANGUAGE_RECIPE}; {DEFAULT_RECIPE} with a --model that gives "
        "something other than text]",
    ),
    "recipes": _recipe(
        "-r", "--recipe", "recipes", multiple=True,
        help=f"{_RECIPE} Repeat it for several.  {_DEFAULT}",
    ),
    "set": click.option(
        "--set", "overrides", multiple=True, metavar="KEY=VALUE",
        help="Override a key of the recipe, e.g. --set benchmark.iterations=200. Repeatable.",
    ),
    "model": click.option(
        "--model", metavar="ID|FOLDER|FILE.gguf",
        help="A model of transformers or timm instead of the recipe's model: its id on the Hugging "
        "Face hub, a folder with its config.json and safetensors, or a GGUF file, which may also "
        "be ORG/NAME/FILE.gguf on the hub. Or a finished program (.pte), or Meta's checkpoint "
        "(.pth).",
    ),
    "text": _input("--text", "TEXT", "Input text of a model of transformers."),
    "image": _input("--image", "FILE", "Input image of a model of transformers or timm."),
    "audio": _input("--audio", "FILE.wav", "Input audio of a model of transformers."),
    "lora": click.option(
        "--lora", metavar="NAME",
        help="The adapter of a language model, by its name in model.lora.",
    ),
    "speculate": click.option(
        "--speculate", metavar="none|lookup|model:DRAFT",
        help="Speculative decoding, with the same text: lookup proposes what followed the last "
        "tokens when they were in the text before, model:DRAFT what the program of a smaller model "
        "generates. By default the recipe's.",
    ),
    "context": click.option(
        "--context", type=click.IntRange(min=1), metavar="N",
        help="The context length of a language model in tokens, including the prompt. By default "
        "the recipe's.",
    ),
    "device": _device("-d", "--device", default="host"),
    "devices": _device("-d", "--device", "devices", multiple=True, default=("host",)),
    "target": click.option(
        "-t", "--target", metavar="TARGET", shell_complete=_complete_target,
        help="Build for this target, e.g. linux-aarch64-musl. By default the device's own.",
    ),
    "output": _folder("-o", "--output", help="The folder for run records and outputs."),
    "as": click.option(
        "--as", "launched", type=click.Choice(["runner", "app"]),
        help="Run the program in a command-line runner, or in the sample app that etdeploy app "
        "writes.  [default: runner]",
    ),
    "app": click.option(
        "--app", "archive", metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        help="Run the program in this .apk or .ipa, which you built from a project of etdeploy "
        "app. Implies --as app.",
    ),
    "runs": click.option(
        "--runs", type=click.IntRange(min=1, max=1000), metavar="N",
        help="Start the runner N times for the timing, instead of the recipe's benchmark.runs.",
    ),
    "fail-fast": click.option(
        "--fail-fast/--keep-going", default=False,
        help="With several recipes or devices: stop at the first failure, or continue with the "
        "others (the default).",
    ),
    "jobs": click.option(
        "-j", "--jobs", "heavy", type=click.IntRange(min=1), metavar="N",
        help="With several recipes: how many exports and builds may run at once. By default as "
        "many as this machine's cores and memory allow, at most 4.",
    ),
    "runs-in": _folder(
        "--runs-in", help="The folder with run records: the --output of `etdeploy run`."
    ),
    "store": click.option(
        "--store", metavar="URL|FILE",
        help="The history: a SQLite file, or postgresql://USER@HOST/DATABASE. By default "
        "ETDEPLOY_STORE, else a file in your data folder.",
    ),
    "farm": click.option(
        "-f", "--farm", "file", type=click.Path(path_type=Path), metavar="FILE",
        help="The farm.yaml. By default the one in this folder, if there is one.",
    ),
    "require-coverage": click.option(
        "--require-coverage", type=click.FloatRange(0, 100), default=0.0, metavar="PERCENT",
        help="Exit with 6 if fewer of the expected pairs of a recipe and a device were judged.",
    ),
    "json": click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text."),
    "quiet": click.option(
        "-q", "--quiet", is_flag=True, help="Show no progress, only the result."
    ),
}  # fmt: skip


def options(*names: str) -> Callable[[F], F]:
    """Give a command these options of the table, in this order."""

    def add(function: F) -> F:
        for name in reversed(names):
            function = OPTIONS[name](function)
        return function

    return add


@dataclass(frozen=True)
class NamedFarm:
    """A farm's settings, its history, and its name; without a farm.yaml any farm's."""

    settings: Settings
    place: HistoryLocation
    name: str | None


def named_farm(file: Path | None, store: str | None) -> NamedFarm:
    """Load the farm.yaml that is named, else that of the working folder, else defaults."""
    from etdeploy.farm.report.end import judge_settings
    from etdeploy.farm.report.source import Settings
    from etdeploy.farm.spec.load import load_farm
    from etdeploy.farm.spec.model import Farm
    from etdeploy.history.location import require_location

    if file is None and not FARM_FILE.is_file():
        plain = Farm(name="farm", groups={}, pairs=(), results=Path())
        return NamedFarm(Settings(plain), require_location(store), None)
    if file is not None and file.is_dir():
        raise UsageError("this is a folder", place=str(file), remedy="Name a farm.yaml.")
    loaded = load_farm(file or FARM_FILE)
    place = require_location(store or loaded.farm.store)
    return NamedFarm(judge_settings(loaded), place, loaded.farm.name)


def require_metric(metric: str | None) -> None:
    """Raise UsageError for the name of a metric that does not exist."""
    from difflib import get_close_matches

    from etdeploy.history.series import TITLES, base_metric

    if metric is None or base_metric(metric) in TITLES:
        return
    near = get_close_matches(metric, TITLES, n=1)
    raise UsageError(
        f"there is no metric {metric!r}" + (f": did you mean {near[0]}?" if near else ""),
        place="--metric",
        remedy=f"The metrics are {', '.join(TITLES)}.",
    )
