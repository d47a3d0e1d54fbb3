"""A run whose record is kept although its last pass did not come to its end."""

from __future__ import annotations

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.stored import StoredRun
from etdeploy.core.errors import RunError


def require_whole(run: StoredRun) -> None:
    """Raises unless the sustained pass, if there is one, lasted for its time.

    Args:
        run: With its record.

    Raises:
        RunError: It ended early; what it did until then is in the record.
    """
    workload = run.record.workload
    sustained = None if isinstance(workload, TextGeneration) else workload.sustained
    if sustained is None or sustained.ended_early is None:
        return
    raise RunError(
        f"{sustained.ended_early}. It had worked for {sustained.seconds:.0f} s: the record has "
        "what was measured until then",
        place=run.record.device.facts.name,
        remedy="Measure again, with `run --again`, or for a shorter time: "
        f"--set benchmark.sustained_s={max(1, int(sustained.seconds / 2))}",
        log=run.path("log"),
    )
