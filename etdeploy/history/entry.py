"""What the history knows of a record without reading it again."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from etdeploy.bench.records.stored import LAST, StoredRun, find_run, parse_record
from etdeploy.core import console
from etdeploy.core.errors import EtdeployError, StoreError, UsageError
from etdeploy.core.processes.process import run_git
from etdeploy.core.values import StrEnum
from etdeploy.history.location import HistoryLocation, resolve_location
from etdeploy.history.series import Series, read_metrics, series_from

if TYPE_CHECKING:
    from etdeploy.bench.records.record import RunRecord


class Judgement(StrEnum):
    """What `etdeploy check` found of a run."""

    PASSED = "passed"
    REGRESSED = "regressed"


@dataclass(frozen=True)
class HistoryEntry:
    """A run in the history.

    Attributes:
        run_id: Names it.
        series: Those that it can be compared with.
        started_at: In UTC, ISO 8601, so that the order of the texts is that of the times.
        program: SHA-256 of the `.pte` file.
        versions: Of the tools, with the checkout of the runner and `DEVICE_STATE`, where they are
            known.
        git_revision: Commit of the recipe's folder.
        git_dirty: Whether it had changes that were not committed.
        disturbed: Why its times are unfit for a comparison; empty where they are fit.
        simulated: Whether a simulator computed it: then it has no metrics.
        outputs_ok: Whether its outputs were right; None where there was nothing to compare with.
        spread_percent: Between its starts.
        starts: Of the runner, in the timing pass.
        metrics: Its numbers, by name.
        judgement: Of the last check of it.
    """

    run_id: str
    series: str
    started_at: str
    program: str
    versions: dict[str, str]
    git_revision: str | None
    git_dirty: bool | None
    disturbed: str
    simulated: bool
    outputs_ok: bool | None
    spread_percent: float | None
    starts: int
    metrics: dict[str, float]
    judgement: Judgement | None = None

    @property
    def fit(self) -> bool:
        """Whether its numbers can be compared with others'."""
        return not self.disturbed and not self.simulated and self.outputs_ok is not False


def entry_from(record: RunRecord) -> tuple[HistoryEntry, Series]:
    """A record as the history knows it, with its series."""
    series, workload = series_from(record), record.workload
    return (
        HistoryEntry(
            run_id=record.run_id,
            series=series.key,
            started_at=utc(record.started_at),
            program=record.program.sha256,
            versions={**record.versions, **_environment(record)},
            git_revision=record.recipe.git_revision,
            git_dirty=record.recipe.git_dirty,
            disturbed=describe_disturbance(record),
            simulated=record.simulated is not None,
            outputs_ok=_outputs_ok(record),
            spread_percent=workload.spread.between_percent,
            starts=len(workload.runs),
            metrics=read_metrics(record),
        ),
        series,
    )


# Not every device reports these, and the history lacks them for its earliest runs.
DEVICE_STATE = (
    "system",
    "system build",
    "emulator",
    "frequency governor",
    "power saving",
    "usable processors",
    "processor quota",
)
CHECKOUT = "checkout of the runner"


def _environment(record: RunRecord) -> dict[str, str]:
    """What may change numbers besides tools and the program, by name."""
    facts, state = record.device.facts, record.device.before
    governors = sorted({each.governor for each in state.clusters if each.governor})
    found = (
        facts.os,
        facts.fingerprint,
        facts.emulator,
        ", ".join(governors),
        {True: "on", False: "off", None: None}[state.power_saving],
        None if state.usable_cpus is None else str(len(state.usable_cpus)),
        None if state.cpu_quota is None else f"{state.cpu_quota:g}",
        record.runner.revision,
    )
    named = zip((*DEVICE_STATE, CHECKOUT), found, strict=True)
    return {name: value for name, value in named if value}


def describe_disturbance(record: RunRecord) -> str:
    """What disturbed a run as a whole, or more than half of its starts; empty for nothing.

    A median over the starts forgives it if fewer were disturbed.
    """
    from etdeploy.bench.records.performance import SLOWING

    whole = [each.text for each in record.disturbances if each.kind in SLOWING]
    if whole:
        return " ".join(whole)  # each is a sentence
    runs = record.workload.runs
    slowed = [[each for each in run.disturbances if each.kind in SLOWING] for run in runs]
    texts = [found[0].text for found in slowed if found]
    return texts[0] if len(texts) * 2 > len(runs) else ""


def utc(started_at: str) -> str:
    """A record's date and time in UTC, always in the same form; as it is where it is not a date."""
    try:
        time = datetime.fromisoformat(started_at.replace("Z", "+00:00"))
    except ValueError:
        return started_at
    time = time if time.tzinfo else time.replace(tzinfo=timezone.utc)
    return time.astimezone(timezone.utc).isoformat(timespec="seconds")


def _outputs_ok(record: RunRecord) -> bool | None:
    """As `etdeploy run` judges them: an output that cannot be compared is not a wrong one."""
    checks = record.workload.all_outputs
    if not record.workload.outputs_compared or not checks:
        return None
    return all(check.within_tolerance is not False for check in checks)


# As for runs in a folder: shorter ends of ids are more likely a mistake than meant.
_SHORTEST = 4


def find_recorded_run(text: str, output: Path, place: HistoryLocation | None) -> StoredRun:
    """The run that `text` names, in the output folder or else in the history.

    Args:
        text: As for `find_run`.
        output: The folder for run records.
        place: The history; None without one.

    Returns:
        The run. If only its record is left, its folder is one in `output` that does not exist, and
        a warning says so.

    Raises:
        UsageError: There is no such run, or several fit.
    """
    try:
        return find_run(text, output)
    except UsageError:
        if text == LAST or len(text) < _SHORTEST or place is None:
            raise
        found = _in_history(text, output, place)
        if found is None:
            raise
        return found


def find_run_anywhere(text: str, output: Path) -> StoredRun:
    """The same with the user's history, which is looked for only if the folder is gone.

    Raises:
        UsageError: There is no such run, or several fit.
    """
    try:
        return find_run(text, output)
    except UsageError:
        try:
            place = resolve_location()
        except StoreError as error:
            console.warn(f"the run was not looked for in the history: {error}")
            place = None
        return find_recorded_run(text, output, place)


def _in_history(text: str, output: Path, place: HistoryLocation) -> StoredRun | None:
    if place.file and not place.file.is_file():
        return None
    from etdeploy.history.store.store import open_store

    try:
        with open_store(place, read_only=True) as store:
            ids = [name for name in store.ids(text) if text == name or name.endswith(text)]
            ids = [text] if text in ids else ids
            content = store.content(ids[0]) if len(ids) == 1 else None
    except EtdeployError as error:
        console.warn(f"the run was not looked for in the history: {error}")
        return None
    if len(ids) > 1:
        raise UsageError(
            f"{len(ids)} runs in the history have an id that ends with {text!r}",
            place=place.shown,
            remedy="Name one of them:\n" + "\n".join(ids),
        )
    if not ids:
        return None
    if content is None:
        raise UsageError(
            f"only the numbers of {ids[0]} are left: its record was deleted from the history "
            "(`etdeploy history prune`), and its folder is gone",
            place=place.shown,
            remedy="Name a later run, or measure again: etdeploy run",
        )
    record = parse_record(json.dumps(content), f"{place.shown}: {ids[0]}")
    console.warn(
        f"only the record of {record.run_id} is left, in the history: its folder is not in "
        f"{output}, and with it the outputs and the trace"
    )
    return StoredRun(output / record.run_id, record)


def commit_range(old: str | None, new: str | None) -> str:
    """`OLD..NEW` for git; empty where a revision is unknown or both are the same."""
    return f"{old[:12]}..{new[:12]}" if old and new and old != new else ""


@dataclass(frozen=True)
class CommitLinks:
    """Where commits are shown on the web.

    Attributes:
        commit: The address of a commit, with `{id}`; empty where it is not known.
        compare: That of all commits between two, with `{old}` and `{new}`.
        known: The commits that the repository has.
    """

    commit: str = ""
    compare: str = ""
    known: frozenset[str] = frozenset()


_COMMIT = re.compile(r"[0-9a-f]{40}")
# Of one command line.
_MOST_COMMITS = 500
# By a word in the name of the host; GitHub, Gitea and Forgejo have those of all others.
_PATHS = {
    "gitlab": ("/-/commit/{id}", "/-/compare/{old}...{new}"),
    "bitbucket": ("/commits/{id}", "/branches/compare/{new}..{old}"),
    "": ("/commit/{id}", "/compare/{old}...{new}"),
}


def find_commit_links(repository: Path, revisions: Collection[str]) -> CommitLinks:
    """Where the commits of a repository are on the web, by the address of its remote `origin`.

    Args:
        repository: A folder in it; links are empty where it is none, or has no such remote.
        revisions: Commits, of which another repository may have some.
    """
    asked = sorted(each for each in revisions if _COMMIT.fullmatch(each))
    origin = run_git(repository, "remote", "get-url", "origin") if asked else None
    address = web_address(origin or "")
    if not address:
        return CommitLinks()
    known: set[str] = set()
    for start in range(0, len(asked), _MOST_COMMITS):
        some = asked[start : start + _MOST_COMMITS]
        found = run_git(repository, "rev-list", "--no-walk", "--ignore-missing", *some)
        known |= set((found or "").split())
    host = urlsplit(address).hostname or ""
    commit, compare = next(paths for word, paths in _PATHS.items() if word in host)
    return CommitLinks(address + commit, address + compare, frozenset(known & set(asked)))


def web_address(remote: str) -> str:
    """The page of a repository by the address of a git remote; empty for one without a page.

    `git@HOST:OWNER/NAME.git`, `ssh://` and `https://` are understood; names, passwords and tokens
    in the address, and the port of ssh, are left out.
    """
    remote = remote.strip()
    scp = re.fullmatch(r"(?:[^@/\s]+@)?([^:/@\s]+):(?!//)(\S+)", remote)
    try:
        parts = urlsplit(f"ssh://{scp[1]}/{scp[2]}" if scp else remote)
        port = parts.port
    except ValueError:
        return ""
    host, path = parts.hostname or "", parts.path.strip("/").removesuffix(".git").rstrip("/")
    is_web = parts.scheme in ("http", "https")
    # Without a dot, it is a name from somebody's ~/.ssh/config, or a drive.
    if not path or not (is_web or (parts.scheme in ("ssh", "git+ssh", "git") and "." in host)):
        return ""
    if not re.fullmatch(r"[A-Za-z0-9.-]+", host):
        return ""
    scheme = "http" if parts.scheme == "http" else "https"
    place = f"{host}:{port}" if is_web and port else host
    return f"{scheme}://{place}/{quote(unquote(path))}"
