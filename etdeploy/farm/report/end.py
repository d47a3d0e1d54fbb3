"""The end of a night: its verdicts, its reports, and the user's command."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from etdeploy.core.errors import EtdeployError, Interrupted
from etdeploy.core.processes import process
from etdeploy.farm.report.forms import RequestedReports, write
from etdeploy.farm.report.model import (
    Coverage,
    FailureGroup,
    NightInfo,
    NightReport,
    load_alerts,
)
from etdeploy.farm.report.pages import write_dashboard
from etdeploy.farm.report.source import Settings, load_dashboard, load_report, load_snapshot
from etdeploy.farm.spec.model import LoadedFarm
from etdeploy.farm.verdicts.night import save_alerts, save_verdicts
from etdeploy.farm.verdicts.pair import PairVerdict, VerdictKind
from etdeploy.history.alerts import Alert, AlertGroup
from etdeploy.history.location import HistoryLocation
from etdeploy.report.formatting import finite

Tell = Callable[[str], None]
_COMMAND_S = 60.0
# Of the command's output, where it fails.
_MOST_LINES, _MOST_CHARACTERS = 5, 400


def judge_settings(loaded: LoadedFarm) -> Settings:
    """What a farm.yaml says about verdicts."""
    return Settings(loaded.farm, {label: each.path for label, each in loaded.recipes.items()})


def conclude(
    loaded: LoadedFarm,
    place: HistoryLocation,
    night: NightInfo,
    tell: Tell,
    wrote: Callable[[Path], None] = lambda _: None,
    *,
    is_over: bool = True,
    required_percent: float = 0.0,
) -> NightReport:
    """Judges a night, saves the verdicts, writes farm.yaml's reports, starts its `on_end` command.

    Args:
        loaded: The farm.yaml.
        place: The history, with the night's visits and records.
        night: Which.
        tell: Called with a message for each step that failed; none changes how the night ended.
        wrote: Called with the path of each report, for the dashboard that of its first page.
        is_over: Whether the night is over. The reports of a stopped one are written, no more.
        required_percent: How much of the expected pairs has to be judged.

    Raises:
        StoreError: The history cannot be read: no step was done.
        Interrupted: It was stopped.
    """
    from etdeploy.history.store.store import open_store

    settings = judge_settings(loaded)
    report = load_report(
        place, load_snapshot(place, night), settings, required_percent=required_percent
    )
    files: list[Path] = []
    alerts: list[AlertGroup] = []

    def save() -> None:
        with open_store(place) as store:
            save_verdicts(store, report.verdicts)
            save_alerts(store, report.verdicts, loaded.farm, night.id, night.started_at)
            alerts.extend(load_alerts(store, night, is_latest=True))

    def write_reports(requested: RequestedReports) -> None:
        for path in write(report, requested):
            files.append(path)
            wrote(path)

    def write_pages(folder: Path) -> None:
        files.append(write_dashboard(load_dashboard(place, settings, night.farm), folder))
        wrote(files[-1])

    if is_over and _try(save, "could not save the verdicts and alerts in the history", tell):
        report = report.model_copy(update={"alerts": tuple(alerts)})
    wanted = loaded.farm.reports
    for one in (
        RequestedReports(html=wanted.html),
        RequestedReports(markdown=wanted.markdown),
        RequestedReports(junit=wanted.junit),
    ):
        _try(partial(write_reports, one), "could not write a report", tell)
    if folder := wanted.dashboard:
        _try(partial(write_pages, folder), "could not update the dashboard", tell)
    command = loaded.farm.on_end
    if is_over and command and (why := run_command(command, summarize(report, files))):
        tell(f"on_end: {command[0]} {why}")
    return report


def _try(action: Callable[[], object], otherwise: str, tell: Tell) -> bool:
    try:
        action()
    except Interrupted:
        raise
    except (EtdeployError, OSError) as error:
        tell(f"{otherwise}: {error}")
        return False
    return True


def run_command(argv: Sequence[str], document: dict[str, Any]) -> str:
    """Runs a command with a JSON document on stdin; returns why it failed, or nothing."""
    try:
        with tempfile.TemporaryFile() as stream:
            stream.write(json.dumps(document).encode())
            stream.seek(0)
            done = process.run(process.Request(tuple(argv), stdin=stream, timeout_s=_COMMAND_S))
    except OSError as error:
        return f"cannot be started: {error.strerror or error}"
    if done.ok:
        return ""
    lines = (done.stderr or done.stdout).strip()[-_MOST_CHARACTERS:].splitlines()[-_MOST_LINES:]
    ended = f"failed with {done.signal_name or f'exit code {done.exit_code}'}"
    why = f"was stopped after {_COMMAND_S:.0f} s" if done.timed_out else ended
    return "\n  ".join([f"{why}:" if lines else why, *lines])


_BAD = (VerdictKind.REGRESSED, VerdictKind.SUSPECTED)


def summarize(report: NightReport, files: Sequence[Path]) -> dict[str, Any]:
    """The night as `farm report --json` prints it and the `on_end` command reads it."""
    document = {
        "farm": report.night.farm,
        "night": report.night.id,
        "started_at": report.night.started_at,
        "finished_at": report.night.finished_at,
        "headline": report.summary,
        "exit_code": report.exit_code,
        "coverage": coverage_json(report.coverage),
        "absent": [
            {"device": each.label, "identity": each.identity or None, "reason": each.absent}
            for each in report.devices
            if each.absent
        ],
        "totals": report.totals.model_dump(mode="json"),
        "worse": [_verdict(each) for each in report.verdicts if each.kind in _BAD],
        "alerts": [
            each.model_dump(mode="json", exclude={"alerts"})
            | {"alerts": [_alert(alert) for alert in each.alerts]}
            for each in report.alerts
        ],
        "failures": [_cause(each) for each in report.failures],
        "missed": [_cause(each) for each in report.missed],
        "quarantined": [
            {"identity": each.identity, "device": each.label, "reason": each.quarantined}
            for each in report.devices
            if each.quarantined
        ],
        "verdicts": [each.model_dump(mode="json") for each in report.verdicts],
        "devices": [each.model_dump(mode="json") for each in report.devices],
        "files": [str(path) for path in files],
    }
    # A ratio may be infinite, which JSON does not have.
    found: dict[str, Any] = finite(document)
    return found


def coverage_json(coverage: Coverage) -> dict[str, Any]:
    """How many of the expected pairs were judged, as JSON."""
    return {**coverage.model_dump(mode="json"), "percent": round(coverage.percent, 2)}


def _verdict(verdict: PairVerdict) -> dict[str, Any]:
    since = verdict.since
    return {
        "recipe": verdict.recipe,
        "device": verdict.device,
        "identity": verdict.identity,
        "verdict": str(verdict.kind),
        "acknowledged": verdict.acknowledged,
        "reason": verdict.reason,
        "since": since.started_at if since else None,
        "commits": since.commits if since else "",
        "remedy": verdict.remedy,
        "run_ids": list(verdict.run_ids),
    }


def _alert(alert: Alert) -> dict[str, Any]:
    derived = {
        "since": alert.since, "commits": alert.commits, "change_percent": alert.change_percent,
    }  # fmt: skip
    return alert.model_dump(mode="json") | derived


def _cause(cause: FailureGroup) -> dict[str, Any]:
    return {
        "kind": cause.kind,
        "message": cause.message,
        "remedy": cause.remedy,
        "visits": len(cause.places),
        "recipes": sorted({place.recipe for place in cause.places}),
        "devices": sorted({place.device for place in cause.places}),
    }
