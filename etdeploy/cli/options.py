"""Options that several verbs have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from etdeploy.backends.schemes import DEFAULT_RECIPE
from etdeploy.core.errors import UsageError

if TYPE_CHECKING:
    from etdeploy.farm.report.source import Settings
    from etdeploy.graph.job import AppOptions
    from etdeploy.history.location import HistoryLocation
    from etdeploy.program.tokenizer import Speech


F = TypeVar("F", bound=Callable[..., Any])


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


def recipe_options(function: F) -> F:
    """--recipe and --set."""
    function = click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Change one value of the recipe, e.g. --set benchmark.iterations=200. Repeatable.",
    )(function)
    return click.option(
        "-r",
        "--recipe",
        default=DEFAULT_RECIPE,
        show_default=True,
        metavar="NAME|PATH",
        shell_complete=complete_recipe,
        help="A bundled recipe by name, PACKAGE/NAME, or a YAML file.",
    )(function)


class _DeviceOption(click.Option):
    """Names the kinds of devices in its help, which only then have to be looked up."""

    again = ""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from etdeploy.devices.registry import device_forms

        self.help = f"{', '.join(device_forms())}.{self.again}"
        return super().get_help_record(ctx)


class _DevicesOption(_DeviceOption):
    """The same for an option that may be repeated."""

    again = " Repeat it for several."


def recipes_options(function: F) -> F:
    """--recipe, which may be repeated, and --set."""
    function = click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Change one value of every recipe, e.g. --set benchmark.iterations=200. Repeatable.",
    )(function)
    return click.option(
        "-r",
        "--recipe",
        "recipes",
        multiple=True,
        default=(DEFAULT_RECIPE,),
        show_default=True,
        metavar="NAME|PATH",
        shell_complete=complete_recipe,
        help="A bundled recipe by name, or a YAML file. Repeat it for several.",
    )(function)


def devices_option(function: F) -> F:
    """--device, which may be repeated."""
    return click.option(
        "-d",
        "--device",
        "devices",
        multiple=True,
        default=("host",),
        show_default=True,
        metavar="DEVICE",
        cls=_DevicesOption,
        shell_complete=complete_device,
    )(function)


def many_options(function: F) -> F:
    """--fail-fast and --jobs, for several recipes or devices."""
    function = click.option(
        "-j",
        "--jobs",
        "heavy",
        type=click.IntRange(min=1),
        metavar="N",
        help="With several recipes: how many exports and builds may run at once. By default as "
        "many as this machine's cores and memory allow, 4 at most.",
    )(function)
    return click.option(
        "--fail-fast/--keep-going",
        default=False,
        help="With several recipes or devices: stop all at the first failure, or let the others "
        "go on (the default).",
    )(function)


def runs_option(function: F) -> F:
    """--runs."""
    return click.option(
        "--runs",
        type=click.IntRange(min=1, max=1000),
        metavar="N",
        help="Start the runner N times for the timing, instead of the recipe's benchmark.runs.",
    )(function)


def model_options(function: F) -> F:
    """--model and --context, which are among the overrides then."""

    @click.option(
        "--model",
        metavar="ID|FOLDER",
        help="A language model instead of the recipe's model: its id on the Hugging Face hub, or "
        "a folder with its config.json and safetensors.",
    )
    @click.option(
        "--context",
        type=click.IntRange(min=1),
        metavar="N",
        help="Export a language model for texts of so many tokens, the prompt included; by default "
        "as many as the recipe says.",
    )
    @functools.wraps(function)
    def with_model(
        *args: Any,
        model: str | None,
        context: int | None,
        overrides: tuple[str, ...],
        **options: Any,
    ) -> Any:
        from etdeploy.recipe.load import CONTEXT_OPTION, MODEL_OPTION

        given = ((MODEL_OPTION, model), (CONTEXT_OPTION, context))
        named = tuple(f"{option}{value}" for option, value in given if value is not None)
        return function(*args, overrides=(*overrides, *named), **options)

    return cast(F, with_model)


def with_runs(overrides: tuple[str, ...], runs: int | None) -> tuple[str, ...]:
    """What `--set` gave, and `--runs`, which counts for more."""
    return overrides if runs is None else (*overrides, f"benchmark.runs={runs}")


def as_option(function: F) -> F:
    """--as and --app, which become `app`."""

    @click.option(
        "--as",
        "launched",
        type=click.Choice(["runner", "app"]),
        help="What runs the program on a phone: a runner, or the sample app that etdeploy app "
        "writes.  [default: runner]",
    )
    @click.option(
        "--app",
        "archive",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        metavar="FILE",
        help="With --as app: an .apk or .ipa of a project of etdeploy app, which you have built.",
    )
    @functools.wraps(function)
    def with_app(*args: Any, launched: str | None, archive: Path | None, **options: Any) -> Any:
        from etdeploy.graph.job import AppOptions

        if archive and launched == "runner":
            raise UsageError(
                "--app names an app, and --as runner asks for none",
                remedy="Leave out one of the two",
            )
        app = launched == "app" or archive is not None
        given = archive.resolve() if archive else None
        return function(*args, app=AppOptions(given) if app else None, **options)

    return cast(F, with_app)


def device_option(function: F) -> F:
    """--device."""
    return click.option(
        "-d",
        "--device",
        default="host",
        show_default=True,
        metavar="DEVICE",
        cls=_DeviceOption,
        shell_complete=complete_device,
    )(function)


def target_option(function: F) -> F:
    """--target."""
    return click.option(
        "-t",
        "--target",
        default=None,
        metavar="TARGET",
        shell_complete=_complete_target,
        help="Build for this target, e.g. linux-aarch64-musl; by default for the device's own.",
    )(function)


def output_option(function: F) -> F:
    """--output."""
    return click.option(
        "-o",
        "--output",
        default="etdeploy-out",
        show_default=True,
        metavar="FOLDER",
        envvar="ETDEPLOY_OUTPUT_DIR",
        type=click.Path(path_type=Path, file_okay=False),
        help="Where run records and outputs go.",
    )(function)


def runs_in_option(function: F) -> F:
    """--runs-in, for verbs that take a run by its id or `last`."""
    return click.option(
        "--runs-in",
        default="etdeploy-out",
        show_default=True,
        metavar="FOLDER",
        envvar="ETDEPLOY_OUTPUT_DIR",
        type=click.Path(path_type=Path, file_okay=False),
        help="Where run records are: the --output of `etdeploy run`.",
    )(function)


def store_option(function: F) -> F:
    """--store."""
    return click.option(
        "--store",
        metavar="URL|FILE",
        help="The history: a SQLite file, or postgresql://USER@HOST/DATABASE. By default what "
        "ETDEPLOY_STORE names, else a file in the user's data folder.",
    )(function)


def farm_option(function: F) -> F:
    """--farm, for what uses a farm.yaml's history and rules."""
    return click.option(
        "-f",
        "--farm",
        "file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The farm.yaml; by default that of this folder, if there is one.",
    )(function)


def json_option(function: F) -> F:
    """--json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(
        function
    )


def quiet_option(function: F) -> F:
    """--quiet."""
    return click.option("-q", "--quiet", is_flag=True, help="Show no progress, only the result.")(
        function
    )


DEFAULT_OUTPUT = Path("etdeploy-out")


@dataclass(frozen=True)
class JobOptions:
    """What the command line names.

    Attributes:
        heavy: How many exports and builds may run at once.
        app: Set if apps run the programs.
        speech: What a language model has to understand; None if nobody talks with it.
        measures: Whether the program may be measured.
    """

    recipes: tuple[str, ...]
    overrides: tuple[str, ...] = ()
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
        """Whether just one recipe on one device is named: then results have another form."""
        return len(self.recipes) == 1 and len(self.devices) == 1


USUAL = Path("farm.yaml")


@dataclass(frozen=True)
class NamedFarm:
    """A farm's settings, its history, and its name; without a farm.yaml any farm's."""

    settings: Settings
    place: HistoryLocation
    name: str | None


def named_farm(file: Path | None, store: str | None) -> NamedFarm:
    """The farm.yaml that is named, else the one of the working folder, else its defaults."""
    from etdeploy.farm.report.end import judge_settings
    from etdeploy.farm.report.source import Settings
    from etdeploy.farm.spec.load import load_farm
    from etdeploy.farm.spec.model import Farm
    from etdeploy.history.location import required_place

    if file is None and not USUAL.is_file():
        plain = Farm(name="farm", groups={}, pairs=(), results=Path())
        return NamedFarm(Settings(plain), required_place(store), None)
    if file is not None and file.is_dir():
        raise UsageError("this is a folder", place=str(file), remedy="Name a farm.yaml.")
    loaded = load_farm(file or USUAL)
    place = required_place(store or loaded.farm.store)
    return NamedFarm(judge_settings(loaded), place, loaded.farm.name)
