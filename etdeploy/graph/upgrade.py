"""Two releases of ExecuTorch side by side: environments, runs in both, and what changed.

Each release has a separate environment, made by uv in the cache, with this release of etdeploy
and the extras that are installed here. The runs take turns, A B B A, so that drift of the device
affects both alike.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from etdeploy import __version__
from etdeploy.bench.records.stored import FOLDER_KEY, StoredRun, load_run
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.compare.model import Verdict
from etdeploy.compare.runs import compare_runs
from etdeploy.core.errors import BuildError, RunError, UsageError
from etdeploy.core.files.basic import working_folder
from etdeploy.core.files.locks import exclusive
from etdeploy.core.hashing import digest_json
from etdeploy.core.processes import process
from etdeploy.core.values import Progress, Value
from etdeploy.export.cache import installed_version
from etdeploy.export.spec import TESTED_VERSIONS
from etdeploy.history.location import VARIABLE as STORE_VARIABLE
from etdeploy.program.folder import Provenance
from etdeploy.provider.wheel import VERSION_VARIABLE

# Extras that neither an export nor a run needs.
_NOT_NEEDED = frozenset({"dev", "docs", "farm", "ios", "postgres"})
_ROUNDS = 2
_TAIL_CHARACTERS = 2_000


@dataclass(frozen=True)
class Release:
    """A release of ExecuTorch, with the PyTorch that it was made for."""

    executorch: str
    torch: str

    @property
    def overrides(self) -> tuple[str, ...]:
        """Requirements in place of any other of these packages; torchvision is of one torch."""
        minor = Version(self.torch).minor
        return (
            f"executorch=={self.executorch}",
            f"torch=={self.torch}",
            f"torchvision==0.{minor + 15}.*",
        )


class UpgradeChange(Value):
    """A value that differs between the releases, or was measured with both.

    Attributes:
        part: `program`, `time`, `memory`, `outputs`, `plan` or `versions`.
        name: Of the value, with its unit.
        before: With the first release; None where it has none.
        after: With the second.
    """

    part: str
    name: str
    before: str | int | float | None
    after: str | int | float | None


class UpgradeReport(Value):
    """What another release of ExecuTorch changes for a recipe on a device.

    Attributes:
        recipe: Its name.
        device: What the programs ran on.
        before: The first release.
        after: The second.
        verdict: On the time; `no difference found` if the rounds disagree, `not comparable` if one
            round is.
        ratios: Of each round, of the second release's time to the first's; None where the runs
            cannot be compared.
        reasons: Of the verdict of each round.
        changes: Sizes, times and errors of both, and options and versions that differ.
        records: The folders of all runs, by round, that of the first release first.
    """

    recipe: str
    device: str
    before: str
    after: str
    verdict: Verdict
    ratios: tuple[float | None, ...]
    reasons: tuple[str, ...]
    changes: tuple[UpgradeChange, ...]
    records: tuple[str, ...]


def named_releases(executorch: Sequence[str], torch: Sequence[str]) -> tuple[Release, ...]:
    """The releases that the command line names.

    Raises:
        UsageError: One is not a version, both are the same, or the PyTorch of one is unknown.
    """
    for version in (*executorch, *torch):
        try:
            Version(version)
        except InvalidVersion as error:
            raise UsageError(
                f"{version!r} is not a version", remedy="Write it as in: --executorch 1.5.0 1.5.1"
            ) from error
    if not torch:
        torch = [_torch_of(version) for version in executorch]
    found = tuple(Release(*pair) for pair in zip(executorch, torch, strict=True))
    if found[0] == found[1]:
        raise UsageError(
            f"both releases are ExecuTorch {executorch[0]}", remedy="Name two: --executorch A B"
        )
    return found


def _torch_of(version: str) -> str:
    """The tested PyTorch for a release of the tested minor version; wheels do not say theirs."""
    tested = Version(TESTED_VERSIONS["executorch"])
    if Version(version).release[:2] != tested.release[:2]:
        raise UsageError(
            f"the PyTorch that ExecuTorch {version} was built for is not known: its wheel does not "
            "name it",
            place="--executorch",
            remedy="Name both as its release notes do: --torch A B, "
            f"for {tested.major}.{tested.minor} {TESTED_VERSIONS['torch']}",
        )
    return TESTED_VERSIONS["torch"]


def obtain_environment(
    release: Release, workspace: Workspace, progress: Progress, log: Path
) -> Path:
    """The Python of a release's environment, which uv makes unless the cache has it.

    Raises:
        BuildError: uv is not installed, or cannot install the packages.
    """
    wanted = _own_requirement()
    key = digest_json([wanted, release.overrides, sys.version, __version__])[:12]
    name = f"executorch-{release.executorch}-{key}"
    folder = workspace.folder(CacheKind.BUILDS) / name
    python = folder / "bin" / "python"
    with exclusive(
        workspace.lock_path(CacheKind.BUILDS, name), f"the environment {name}", progress
    ):
        complete = folder / "etdeploy-complete"
        if not complete.is_file():
            shutil.rmtree(folder, ignore_errors=True)
            _make_environment(release, folder, wanted, progress, log)
            complete.touch()
    return python


def _make_environment(
    release: Release, folder: Path, wanted: Sequence[str], progress: Progress, log: Path
) -> None:
    uv = shutil.which("uv")
    if uv is None:
        raise BuildError(
            "uv is not installed, which makes an environment for each release",
            remedy="pip install uv",
        )
    progress(f"installing ExecuTorch {release.executorch} and torch {release.torch}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    with working_folder(folder.parent, ".overrides-") as work:
        overrides = work / "overrides.txt"
        overrides.write_text("\n".join(release.overrides) + "\n")
        python = str(folder / "bin" / "python")
        for argv in (
            (uv, "venv", "--quiet", "--python", version, str(folder)),
            (uv, "pip", "install", "--python", python, "--overrides", str(overrides), *wanted),
        ):
            outcome = process.run(process.Request(argv, log=log))
            if not outcome.ok:
                raise BuildError(
                    f"uv cannot install ExecuTorch {release.executorch} with torch {release.torch}:"
                    f"\n{outcome.stderr[-_TAIL_CHARACTERS:].strip()}",
                    remedy="Name releases that the package index has, with Python "
                    f"{version}: pip index versions executorch",
                    log=log,
                )


def _own_requirement() -> tuple[str, ...]:
    """This release of etdeploy as pip installs it, with the extras that are complete here."""
    own = importlib.metadata.distribution("etdeploy")
    known = own.metadata.get_all("Provides-Extra") or ()
    extras = ",".join(e for e in known if e not in _NOT_NEEDED and _is_complete(e))
    origin = json.loads(own.read_text("direct_url.json") or "{}")
    if not origin:
        return (f"etdeploy[{extras}]=={own.version}",)
    local = str(origin["url"]).removeprefix("file://")
    if origin.get("dir_info", {}).get("editable"):
        return ("--editable", f"{local}[{extras}]")
    return (f"etdeploy[{extras}] @ {origin['url']}",)


def _is_complete(extra: str) -> bool:
    """Whether everything that an extra needs on this machine is installed, in any version."""
    needed = [Requirement(text) for text in importlib.metadata.requires("etdeploy") or ()]
    own = [
        each
        for each in needed
        if each.marker
        and each.marker.evaluate({"extra": extra})
        and not each.marker.evaluate({"extra": ""})
    ]
    return bool(own) and all(installed_version(each.name) for each in own)


def measure_both(
    pythons: Mapping[Release, Path],
    arguments: Sequence[str],
    output: Path,
    progress: Progress,
    log: Path,
) -> tuple[tuple[StoredRun, StoredRun], ...]:
    """Runs a recipe with both releases in turns, and gives the pairs of runs.

    Args:
        pythons: Of the environments, the first release first.
        arguments: Of `etdeploy run`: the recipe, the device and what overrides them.
        output: Gets a folder of run records for each release.
        progress: Called before each run.
        log: Gets what the runs print.

    Raises:
        RunError: A run fails; the message has its own.
    """
    rounds = []
    for number in range(_ROUNDS):
        order = list(pythons.items())
        found = {
            release: _measured(release, python, arguments, output, number, progress, log)
            for release, python in (order if number % 2 == 0 else reversed(order))
        }
        before, after = (found[release] for release in pythons)
        rounds.append((before, after))
    return tuple(rounds)


def _measured(
    release: Release,
    python: Path,
    arguments: Sequence[str],
    output: Path,
    number: int,
    progress: Progress,
    log: Path,
) -> StoredRun:
    progress(f"ExecuTorch {release.executorch}, run {number + 1} of {_ROUNDS}")
    folder = output / f"executorch-{release.executorch}"
    argv = (str(python), "-m", "etdeploy", "bench", *arguments, "-o", str(folder), "--json", "-q")
    # Runs with other releases do not belong in the recipe's history.
    env = {STORE_VARIABLE: "none", VERSION_VARIABLE: release.executorch}
    outcome = process.run(process.Request(argv, env=env, log=log))
    try:
        return load_run(Path(json.loads(outcome.stdout)[FOLDER_KEY]))
    except (ValueError, KeyError, TypeError) as error:
        own = outcome.stderr[-_TAIL_CHARACTERS:].strip()
        raise RunError(
            f"with ExecuTorch {release.executorch}, the run failed:\n{own}", log=log
        ) from error


def upgrade_report(
    releases: Sequence[Release], rounds: Sequence[tuple[StoredRun, StoredRun]]
) -> UpgradeReport:
    """What changes from the first release to the second."""
    compared = [compare_runs(before, after) for before, after in rounds]
    verdicts = {each.verdict for each in compared}
    if Verdict.NOT_COMPARABLE in verdicts:
        verdict = Verdict.NOT_COMPARABLE
    else:
        verdict = verdicts.pop() if len(verdicts) == 1 else Verdict.NO_DIFFERENCE
    before, after = rounds[0]
    return UpgradeReport(
        recipe=before.record.recipe.name,
        device=before.record.device.facts.name,
        before=releases[0].executorch,
        after=releases[1].executorch,
        verdict=verdict,
        ratios=tuple(each.ratio.median if each.ratio else None for each in compared),
        reasons=tuple(each.reason for each in compared),
        changes=tuple(_changes(before, after)),
        records=tuple(str(run.folder) for pair in rounds for run in pair),
    )


def _changes(before: StoredRun, after: StoredRun) -> Iterator[UpgradeChange]:
    """Every measured value, and of the rest what differs."""
    values = [dict(_values(run)) for run in (before, after)]
    for part, name in dict.fromkeys([*values[0], *values[1]]):
        found = [each.get((part, name)) for each in values]
        if found[0] != found[1] or part not in ("plan", "versions"):
            yield UpgradeChange(part=part, name=name, before=found[0], after=found[1])


def _values(run: StoredRun) -> Iterator[tuple[tuple[str, str], str | int | float | None]]:
    record = run.record
    program = record.program
    yield ("program", "size [bytes]"), program.size_bytes
    yield ("program", "delegated partitions"), len(program.delegates)
    yield ("program", "operator calls outside"), sum(each.calls for each in program.operator_calls)
    if (exported := _export_seconds(run)) is not None:
        yield ("time", "export [s]"), exported
    yield (
        ("time", f"{record.workload.metric.removesuffix('_ms')} [ms]"),
        record.workload.timed.median,
    )
    yield ("time", "load [ms]"), record.load_ms
    yield ("memory", "peak [bytes]"), record.peak_rss_bytes
    for output in record.workload.all_outputs:
        yield ("outputs", f"{output.name}: largest error"), output.max_abs_error
    yield ("plan", "provider"), str(record.runner.provider)
    for name, value in record.runner.options.items():
        yield ("plan", name), value
    for name, version in record.versions.items():
        yield ("versions", name), version


def _export_seconds(run: StoredRun) -> float | None:
    path = run.path("export")
    made = Provenance.load_or_none(path) if path else None
    return round(sum(made.seconds.values()), 1) if made else None
