"""The results of each size of a recipe, from its passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from etdeploy.backends.registry import find_backend
from etdeploy.bench.notes import start_notes
from etdeploy.bench.outputs.compare import Expectation, compare_outputs
from etdeploy.bench.passes import PassResult, Results
from etdeploy.bench.records.outputs import OutputCheck
from etdeploy.bench.records.record import SizeRecord
from etdeploy.bench.timing.series import series_of
from etdeploy.program.folder import InputSet, Provenance, TensorFile
from etdeploy.recipe.model import Tolerance

# The checks of each size by its name, in the order of the recipe; one without a name has no sizes.
Checks = Mapping[str, tuple[OutputCheck, ...]]


def compare_sizes(
    results: Results,
    here: Path,
    program_folder: Path,
    provenance: Provenance,
    tolerance: Tolerance,
) -> Checks:
    """Compares the outputs of every pass that wrote some with those expected at its size.

    Of a sweep of threads, that is the one with the chosen number.
    """
    return {
        result.step.size: _compare(result, here, program_folder, provenance, tolerance)
        for result in results.values()
        if result.outputs and not result.step.swept
    }


def compare_threads(
    results: Results,
    here: Path,
    program_folder: Path,
    provenance: Provenance,
    tolerance: Tolerance,
) -> Mapping[int, tuple[OutputCheck, ...]]:
    """Compares the outputs with each number of threads of a sweep."""
    return {
        result.step.threads: _compare(result, here, program_folder, provenance, tolerance)
        for result in results.values()
        if result.outputs and result.step.swept
    }


def _compare(
    result: PassResult,
    here: Path,
    program_folder: Path,
    provenance: Provenance,
    tolerance: Tolerance,
) -> tuple[OutputCheck, ...]:
    # Of the program's quantisation, which is the same at every size.
    steps = tuple(known.scale if known else None for known in provenance.output_quantization)
    return compare_outputs(
        result.results.outputs,
        here / result.step.outputs_folder,
        Expectation(
            provenance.measured[result.step.size].expected,
            program_folder,
            judged_as(provenance),
            tolerance,
            steps,
        ),
    )


def judged_as(provenance: Provenance) -> str | None:
    """The scheme whose tolerances hold: a backend may compute in fewer bits than it was given."""
    backend = find_backend(provenance.backend) if provenance.backend else None
    scheme = provenance.quantization
    return backend.judged_as.get(scheme, scheme) if backend and scheme else scheme


def size_records(
    results: Results, checks: Checks, provenance: Provenance
) -> tuple[SizeRecord, ...]:
    """The record of every size that the recipe names; none for a recipe without."""
    return tuple(
        _record(provenance.measured[name], results, outputs)
        for name, outputs in checks.items()
        if name
    )


def size_notes(results: Results, checks: Checks) -> Iterator[str]:
    """Notes about the samples of further sizes."""
    for name in list(checks)[1:]:
        for note in start_notes(series_of(results, name)):
            yield f"At {name}: {note[0].lower()}{note[1:]}"


def _record(made: InputSet, results: Results, outputs: tuple[OutputCheck, ...]) -> SizeRecord:
    series = series_of(results, made.name)
    memory = [r for r in results.values() if (r.step.name, r.step.size) == ("memory", made.name)]
    return SizeRecord(
        name=made.name,
        sizes=made.sizes,
        shapes={
            value.name or f"input_{index}": value.shape
            for index, value in enumerate(made.inputs)
            if isinstance(value, TensorFile)
        },
        latency_ms=series.latency,
        first_inference_ms=series.first_inference_ms,
        peak_rss_bytes=(memory[0].results.peak_rss_bytes or None) if memory else None,
        outputs=outputs,
        runs=series.starts,
        spread=series.spread,
    )
