"""A night in JSON, for whoever is told and for scripts."""

from __future__ import annotations

from typing import Any

from etdeploy.farm.report.model import Cause, NightReport
from etdeploy.farm.verdicts.model import Verdict, VerdictKind

_BAD = (VerdictKind.REGRESSED, VerdictKind.SUSPECTED)


def summary_of(report: NightReport) -> dict[str, Any]:
    """The summary: totals, what became worse, causes of failures, and the exit code."""
    return {
        "farm": report.night.farm,
        "night": report.night.id,
        "started_at": report.night.started_at,
        "finished_at": report.night.finished_at,
        "headline": report.headline,
        "exit_code": report.exit_code,
        "totals": report.totals.model_dump(mode="json"),
        "worse": [_verdict(each) for each in report.verdicts if each.kind in _BAD],
        "failures": [_cause(each) for each in report.failures],
        "missed": [_cause(each) for each in report.missed],
        "quarantined": [
            {"identity": each.identity, "device": each.label, "reason": each.quarantined}
            for each in report.devices
            if each.quarantined
        ],
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    since = verdict.since
    return {
        "recipe": verdict.recipe,
        "device": verdict.device,
        "identity": verdict.identity,
        "verdict": str(verdict.kind),
        "reason": verdict.reason,
        "since": since.started_at if since else None,
        "commits": since.commits if since else "",
        "remedy": verdict.remedy,
        "run_ids": list(verdict.run_ids),
    }


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "kind": cause.kind,
        "message": cause.message,
        "remedy": cause.remedy,
        "visits": len(cause.places),
        "recipes": sorted({place.recipe for place in cause.places}),
        "devices": sorted({place.device for place in cause.places}),
    }
