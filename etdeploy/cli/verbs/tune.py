"""etdeploy tune."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from etdeploy.cli.options import options
from etdeploy.core import console
from etdeploy.core.errors import DeviceError, EtdeployError, Interrupted, JobsError, UsageError
from etdeploy.graph.options import JobOptions, job_options

if TYPE_CHECKING:
    from etdeploy.report.document import Block
    from etdeploy.tune.result import TuneResult
    from etdeploy.tune.run import CommonBest, TuneRequest
    from etdeploy.tune.tuner import Tuned, Tuner

_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h)")
_SECONDS = {"s": 1, "min": 60, "h": 3600}
_PAGE, _JSON = "tune.html", "tune.json"
_RESULT = "--result"
_BUDGET = "30min"


@click.command()
@options("recipe", "set", "model", "text", "image", "audio", "context", "devices", "target")
@click.option(
    "--minimize",
    metavar="METRIC",
    default="latency",
    show_default=True,
    help="latency (of a language model the time per token), ttft, load, peak_memory, size or "
    "energy.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="METRIC=VALUE",
    help="What the result may not exceed, e.g. peak_memory=300MB, size=50MB, error=1e-2, "
    "perplexity=+2%. Repeatable.",
)
@click.option(
    "--budget",
    metavar="TIME",
    default=_BUDGET,
    show_default=True,
    help="The time for each device, exports included, e.g. 90s, 30min or 2h; none for no limit.",
)
@click.option(
    "--fix", "fixed", multiple=True, metavar="KEY",
    help="Leave a key as it is. The comment `# fixed` on its line in the recipe does the same.",
)  # fmt: skip
@click.option(
    "--vary", "varied", multiple=True, metavar="KEY=A,B",
    help="Try these values of a key, in place of those that etdeploy would try. Repeatable.",
)  # fmt: skip
@click.option(
    "--result",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where the best recipe goes.  [default: NAME-tuned.yaml; with another number if that is "
    "a file of yours]",
)
@click.option("--plan", "plans", is_flag=True, help="Show what would be tried, and try nothing.")
@click.option("--again", is_flag=True, help="Forget what earlier searches measured.")
@options("output", "json", "quiet")
def tune(
    minimize: str,
    limits: tuple[str, ...],
    budget: str,
    fixed: tuple[str, ...],
    varied: tuple[str, ...],
    file: Path | None,
    plans: bool,
    again: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Search the settings of a recipe that are best on a device.

    Backends, schemes, rewrites, threads, and of language models attention and cache are varied.
    Programs are exported once, combinations are measured in turns, and the best recipe is written
    with the reason for each value. The same command continues a search that was stopped.

    With several devices, each gets its best recipe, and there is one for all of them.
    """
    from etdeploy.recipe.load import load_recipe
    from etdeploy.tune.recipe_file import recipe_file
    from etdeploy.tune.run import TuneRequest, fixed_keys, make_goal
    from etdeploy.tune.space import parse_varied

    named = job_options(**values)
    loaded = load_recipe(named.recipes[0], named.overrides)
    goal = make_goal(loaded, minimize, limits, parse_budget(budget))
    if file is not None:
        recipe_file(_RESULT).require_free(file)
    tried = parse_varied(varied)
    request = TuneRequest(
        loaded, goal, fixed_keys(loaded, fixed, tried), tried, named.output,
        named.target, again, named.quiet,
    )  # fmt: skip
    search = _Search(named, request, file)
    if plans:
        search.plan(as_json)
    else:
        search.run(as_json)


def parse_budget(text: str) -> float:
    """Seconds of a time like `90s`, `30min` or `2h`; infinite for `none`."""
    if text.strip().lower() == "none":
        return float("inf")
    match = _TIME.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(
            f"{text!r} is not a time",
            place="--budget",
            remedy="Write a number with s, min or h, such as --budget 30min, or none.",
        )
    return float(match[1]) * _SECONDS[match[2]]


@dataclass(frozen=True)
class _Search:
    """One command line: the recipe, its devices, and where the result goes."""

    named: JobOptions
    request: TuneRequest
    file: Path | None

    def plan(self, as_json: bool) -> None:
        """Show the space of each device and what a search would take."""
        from etdeploy.report.terminal import render

        shown = []
        for device, tuner in self._open():
            space = tuner.make_space(tuner.journal.found.layers or ())
            if as_json:
                shown.append({
                    "device": device,
                    "combinations": len(space.candidates),
                    "programs": space.programs,
                    "measured": len(tuner.journal.found.figures),
                    "knobs": [knob.model_dump(mode="json") for knob in space.knobs],
                    "left_out": [each.model_dump(mode="json") for each in space.left_out],
                })  # fmt: skip
            else:
                console.result("\n" + render(list(_plan(device, tuner)), console.width()))
        if as_json:
            console.result_json(shown[0] if self.named.single else shown)

    def run(self, as_json: bool) -> None:
        """Search on every device, and write the results."""
        from etdeploy.graph.invocation import keep_small
        from etdeploy.tune.result import require_result

        with ExitStack() as stack:
            tuners = dict(self._open(stack))
            found, errors = self._search(tuners)
            results = [self._finish(device, tuners, found) for device in found]
            common = None if errors else self._common(tuners, found)
            for tuner in list(tuners.values())[:1]:
                keep_small(tuner.bench.workspace, self.request.quiet)
        if as_json:
            pages = [result.model_dump(mode="json") for result in results]
            both = {"devices": pages, "common": _common_json(common)}
            console.result_json(pages[0] if self.named.single else both)
        else:
            self._show(results, common)
        if errors:
            raise _joined(errors, len(tuners))
        for each in found.values():
            require_result(each)

    def _search(
        self, tuners: Mapping[str, Tuner]
    ) -> tuple[dict[str, Tuned], dict[str, EtdeployError]]:
        """Search on one device after the other; of several, one that fails does not end it."""
        found: dict[str, Tuned] = {}
        errors: dict[str, EtdeployError] = {}
        for device, tuner in tuners.items():
            try:
                with _continuing(device):
                    found[device] = tuner.run()
            except Interrupted:
                raise
            except EtdeployError as error:
                if self.named.single:
                    raise
                errors[device] = error
                console.message(f"{device}: {error}")
        return found, errors

    def _open(self, stack: ExitStack | None = None) -> Iterator[tuple[str, Tuner]]:
        from etdeploy.cache.workspace import Workspace
        from etdeploy.tune.run import open_tuner

        with ExitStack() as own:
            used = stack or own
            workspace = Workspace.opened()
            used.enter_context(workspace.in_use())
            opened: list[Tuner] = []
            for device in dict.fromkeys(filter(None, self.named.devices)):
                tell = self._tell(device)
                opened.append(
                    used.enter_context(open_tuner(self.request, device, workspace, tell, opened))
                )
                yield device, opened[-1]

    def _tell(self, device: str) -> Any:
        prefix = "" if self.named.single else f"{device}: "

        def tell(text: str) -> None:
            if not self.request.quiet:
                console.message(f"{prefix}{text}")

        return tell

    def _finish(
        self, device: str, tuners: Mapping[str, Tuner], found: Mapping[str, Tuned]
    ) -> TuneResult:
        """Write the recipe, the page and the JSON of one device."""
        from etdeploy.tune.result import tune_result

        tuner, tuned = tuners[device], found[device]
        result = tune_result(tuned, self.request.loaded.name, tuner.bench.device.device.name)
        suffix = "" if self.named.single else f"-{_slug(device)}"
        return self._write(result, tuner, self._path(suffix))

    def _write(self, result: TuneResult, tuner: Tuner, path: Path) -> TuneResult:
        from etdeploy.core.files.basic import write_atomic
        from etdeploy.report.html import render
        from etdeploy.tune.page import tune_page
        from etdeploy.tune.recipe_file import TunedRecipe, write_recipe

        files = {}
        if result.best is not None:
            tuned = tuner.bench.changed(result.best.changes)
            recipe = TunedRecipe(
                self.named.recipes[0], self.named.overrides, tuner.bench.base, tuned, result
            )
            files["recipe"] = str(write_recipe(recipe, path, _RESULT))
        folder = tuner.bench.output
        folder.mkdir(parents=True, exist_ok=True)
        files |= {"page": str(folder / _PAGE), "json": str(folder / _JSON)}
        result = result.model_copy(update={"files": files})
        write_atomic(folder / _PAGE, render(tune_page(result)))
        result.save(folder / _JSON)
        return result

    def _path(self, suffix: str) -> Path:
        from etdeploy.tune.recipe_file import free_name

        if self.file is not None:
            return self.file.with_stem(f"{self.file.stem}{suffix}") if suffix else self.file
        return free_name(Path(f"{self.request.loaded.name}-tuned{suffix}.yaml"))

    def _common(self, tuners: Mapping[str, Tuner], found: Mapping[str, Tuned]) -> CommonBest | None:
        """The best of all devices; None for a single one, or where none was measured on all."""
        from etdeploy.tune.run import common_best, measure_for_common

        if len(tuners) < 2:
            return None
        leading = [
            each.space.candidates[number].key
            for each in found.values()
            for number in each.ranking.order[:2]
        ]
        for device, tuner in tuners.items():
            with _continuing(device):
                measure_for_common(tuner, found[device], list(dict.fromkeys(leading)))
        common = common_best(found)
        if common is not None:
            self._write_common(common, tuners, found)
        return common

    def _write_common(
        self, common: CommonBest, tuners: Mapping[str, Tuner], found: Mapping[str, Tuned]
    ) -> None:
        from etdeploy.tune.recipe_file import TunedRecipe, write_recipe
        from etdeploy.tune.result import tune_result

        device, tuner = next(iter(tuners.items()))
        tuned = found[device]
        [number] = [n for n, c in enumerate(tuned.space.candidates) if c.key == common.key]
        tuned.best, tuned.comparisons = number, []
        tuned.preference = f"its largest loss is the smallest of all: {_regrets(common)}"
        result = tune_result(tuned, self.request.loaded.name, ", ".join(tuners))
        best = tuner.bench.changed(dict(tuned.space.candidates[number].changes))
        recipe = TunedRecipe(
            self.named.recipes[0], self.named.overrides, tuner.bench.base, best, result
        )
        path = write_recipe(recipe, self._path("-common"), _RESULT)
        console.message(f"recipe for all devices: {path}")

    def _show(self, results: Sequence[TuneResult], common: CommonBest | None) -> None:
        from etdeploy.report.terminal import render
        from etdeploy.tune.page import tune_text

        for result in results:
            head = "" if self.named.single else f"{result.device}\n"
            text = render(list(tune_text(result)), console.width())
            console.result(f"\n{head}{text}")
        if common:
            console.result(f"\nbest for all devices: {common.label}\n  {_regrets(common)}")
        elif len(results) > 1:
            console.result("\nno combination was measured on all devices within the limits")


def _slug(device: str) -> str:
    from etdeploy.graph.job import slug

    return slug(device)


def _regrets(common: CommonBest) -> str:
    parts = [f"{100 * regret:.1f} % on {device}" for device, regret in common.regrets.items()]
    return f"it takes longer than each device's own best by {', '.join(parts)}"


def _common_json(common: CommonBest | None) -> dict[str, Any] | None:
    if common is None:
        return None
    return {"label": common.label, "changes": common.key, "regrets": dict(common.regrets)}


def _joined(errors: Mapping[str, EtdeployError], devices: int) -> JobsError:
    """What failed on which device, with the exit code of the worst."""
    lines = [f"  {device}: {error.message}" for device, error in errors.items()]
    worst = max(errors.values(), key=lambda error: error.exit_code)
    return JobsError("\n".join([f"{len(errors)} of {devices} devices failed", *lines]), worst)


@contextmanager
def _continuing(device: str) -> Iterator[None]:
    """Name the command that continues the search, in the error of a device that is lost."""
    try:
        yield
    except DeviceError as error:
        command = shlex.join(["etdeploy", *sys.argv[1:]])
        again = f"What was measured is kept. Connect {device}, and continue: {command}"
        error.remedy = f"{error.remedy}\n{again}" if error.remedy else again
        raise


def _plan(device: str, tuner: Tuner) -> Iterator[Block]:
    """The space of a device for a terminal, and what a search would take."""
    from etdeploy.bench.units import long_time
    from etdeploy.report.document import Text, code, table
    from etdeploy.tune.page import knobs_table

    space = tuner.make_space(tuner.journal.found.layers or ())
    yield knobs_table(space.knobs)
    if space.left_out:
        rows = [[code(each.key), each.reason] for each in space.left_out]
        yield table("Not varied", ("not varied", "why"), rows)
    known = tuner.journal.found
    export_s, measure_s = tuner.export_s, tuner.measure_s
    yield Text(
        f"{device}: {console.count(len(space.candidates), 'combination')} of "
        f"{console.count(space.programs, 'program')}; {len(known.figures)} measured before. One "
        f"export takes about {long_time(export_s)}, a measurement {long_time(measure_s)}; all "
        f"would take {long_time(space.programs * export_s + len(space.candidates) * measure_s)}, "
        f"and a search usually needs a tenth to a quarter of it."
    )
