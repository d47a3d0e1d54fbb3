"""The results of each size of a recipe, from its passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from etdeploy.backends.registry import find_backend
from etdeploy.bench.notes import sample_notes
from etdeploy.bench.outputs.compare import Expectation, compare_outputs
from etdeploy.bench.passes import Pass, PassResult
from etdeploy.bench.records.record import OutputCheck, SizeRecord
from etdeploy.bench.statistics import summarize
from etdeploy.program.folder import InputSet, Provenance, TensorFile
from etdeploy.recipe.model import Tolerance

# The checks of each size by its name, in the order of the recipe; one without a name has no sizes.
Checks = Mapping[str, tuple[OutputCheck, ...]]


def compare_sizes(
    planned: Sequence[Pass],
    results: Mapping[str, PassResult],
    here: Path,
    program_folder: Path,
    provenance: Provenance,
    tolerance: Tolerance,
) -> Checks:
    """Compares the outputs of every timing pass with those that are expected at its size."""
    # Of the program's quantisation, which is the same at every size.
    steps = tuple(known.scale if known else None for known in provenance.output_quantization)
    return {
        step.size: compare_outputs(
            results[step.key].results.outputs,
            here / step.outputs_folder,
            Expectation(
                provenance.measured[step.size].expected,
                program_folder,
                _judged_as(provenance),
                tolerance,
                steps,
            ),
        )
        for step in planned
        if step.outputs
    }


def _judged_as(provenance: Provenance) -> str | None:
    """The scheme whose tolerances hold: a backend may compute in fewer bits than it was given."""
    backend = find_backend(provenance.backend) if provenance.backend else None
    scheme = provenance.quantization
    return backend.judged_as.get(scheme, scheme) if backend and scheme else scheme


def size_records(
    results: Mapping[str, PassResult], checks: Checks, provenance: Provenance
) -> tuple[SizeRecord, ...]:
    """The record of every size that the recipe names; none for a recipe without."""
    return tuple(
        _record(provenance.measured[name], results, checks[name], suffix)
        for name, suffix in _suffixes(checks)
    )


def size_notes(results: Mapping[str, PassResult], checks: Checks) -> Iterator[str]:
    """Notes about the samples of further sizes."""
    for name, suffix in _suffixes(checks):
        timing = results[f"timing{suffix}"].results
        for note in sample_notes(summarize(timing.samples_ms), timing.warmup) if suffix else ():
            yield f"At {name}: {note[0].lower()}{note[1:]}"


def _suffixes(checks: Checks) -> Iterator[tuple[str, str]]:
    """Sizes by name, with the suffix of their passes' keys."""
    for index, name in enumerate(checks):
        if name:
            yield name, f"-{name}" if index else ""


def _record(
    made: InputSet,
    results: Mapping[str, PassResult],
    outputs: tuple[OutputCheck, ...],
    suffix: str,
) -> SizeRecord:
    timing = results[f"timing{suffix}"].results
    memory = results.get(f"memory{suffix}")
    return SizeRecord(
        name=made.name,
        sizes=made.sizes,
        shapes={
            value.name or f"input_{index}": value.shape
            for index, value in enumerate(made.inputs)
            if isinstance(value, TensorFile)
        },
        latency_ms=summarize(timing.samples_ms),
        first_inference_ms=timing.first_inference_ms,
        peak_rss_bytes=(memory.results.peak_rss_bytes or None) if memory else None,
        outputs=outputs,
    )
