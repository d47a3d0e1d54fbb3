"""The number of a visit, as its line says it."""

from __future__ import annotations

from pathlib import Path

from etdeploy.core.errors import EtdeployError
from etdeploy.farm.model import Ending


def figure_of(ending: Ending) -> str:
    """The number that the attempt's record is known by; empty where there is none to read."""
    from etdeploy.bench.records.stored import load_run
    from etdeploy.history.entry import disturbance_of
    from etdeploy.report.terminal.summary import figure

    if ending.record is None:
        return ""
    try:
        record = load_run(Path(ending.record)).record
    except EtdeployError:  # the night tells that
        return ""
    disturbed = " (disturbed)" if disturbance_of(record) else ""
    return f"{figure(record)}{disturbed}"


def folders_of(records: list[str]) -> list[str]:
    """The folders of a night in which these `record.json` are, each in a folder of its run."""
    return sorted({str(Path(record).parent.parent) for record in records})
