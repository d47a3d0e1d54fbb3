"""A run record from everything that a measurement gave; nothing is read or run here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any

import etdeploy
from etdeploy.backends.values import Simulated
from etdeploy.bench.conditions import load_average_disturbance, run_disturbances
from etdeploy.bench.generation_request import logit_ids_of
from etdeploy.bench.generation_workload import (
    GenerationWorkload,
    counted_runs,
    decode_ids,
    encoded_input,
    make_points,
    make_workload,
)
from etdeploy.bench.notes import (
    app_notes,
    cooldown_notes,
    generation_notes,
    measurement_notes,
    method_notes,
    simulation_note,
    size_notes,
    sustained_notes,
    workload_notes,
)
from etdeploy.bench.outputs import Checks, check_text
from etdeploy.bench.passes import MEMORY, PROFILE, SUSTAINED, TEXT, TIMING
from etdeploy.bench.records.generation import DraftRecord, TextGeneration
from etdeploy.bench.records.outputs import (
    RewritesRecord,
    TextCheck,
    UndelegatedOperator,
    UndelegatedTime,
)
from etdeploy.bench.records.performance import (
    Disturbance,
    Memory,
    MemoryPoint,
    Sustained,
    WeightsKind,
)
from etdeploy.bench.records.record import (
    DeviceRecord,
    Inference,
    PassRecord,
    ProgramRecord,
    RecipeRecord,
    RunnerRecord,
    RunRecord,
)
from etdeploy.bench.run_pass import PassResult, Results
from etdeploy.bench.starts import StartSeries, select_starts, size_records, thread_records
from etdeploy.bench.sustained import make_sustained
from etdeploy.bench.threads import ThreadCounts
from etdeploy.devices.base import DeviceState
from etdeploy.export.methods import require_method, values_of_method
from etdeploy.program.folder import IDLE, REWRITES, Provenance, load_provenance
from etdeploy.program.generation import Draft
from etdeploy.program.model import Method, Operator, Program
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.recipe.paths import relative_path, relative_paths
from etdeploy.recipe.sections.benchmark import Tolerance
from etdeploy.runner.etdump import Kernel, TraceSummary
from etdeploy.runner.generation import GenerationResults
from etdeploy.runner.model import BuiltRunner
from etdeploy.runner.protocol import RunnerMemory, RunnerResults


@dataclass(frozen=True)
class Revision:
    """A commit; `dirty` when files below the folder differ from it or are not in it."""

    commit: str | None
    dirty: bool | None


@dataclass(frozen=True)
class Subject:
    """A program with its recipe and runner.

    `provenance` is that of the measured method. `work` is None for inferences, and `app_files`, the
    paths in an app's bundle, for a runner.
    """

    loaded: LoadedRecipe
    program_folder: Path
    program: Program
    provenance: Provenance
    runner: BuiltRunner
    simulated: Simulated | None = None
    work: GenerationWorkload | None = None
    app_files: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls,
        loaded: LoadedRecipe,
        program_folder: Path,
        program: Program,
        runner: BuiltRunner,
        simulated: Simulated | None = None,
        draft: Draft | None = None,
    ) -> Subject:
        """What a recipe measures of a program; `draft` is the one that it names."""
        provenance = load_provenance(program_folder)
        if provenance.generation:
            work = make_workload(
                loaded, provenance.generation, program_folder, simulated=simulated is not None,
                draft=draft,
            )  # fmt: skip
            if work.method in provenance.methods:
                provenance = provenance.of(work.method)
            update = {"method": work.method, "generation": work.generation}
            provenance = provenance.model_copy(update=update)
            return cls(loaded, program_folder, program, provenance, runner, simulated, work)
        method = loaded.recipe.benchmark.method
        if method:
            require_method(method, [m.name for m in program.methods], str(loaded.path))
        provenance = values_of_method(provenance, method, str(loaded.path))
        return cls(loaded, program_folder, program, provenance, runner, simulated)

    @property
    def method(self) -> Method:
        """The measured method."""
        return next(m for m in self.program.methods if m.name == self.provenance.method)


def assemble(
    subject: Subject,
    device: DeviceRecord,
    results: Results,
    threads: ThreadCounts,
    checks: Checks,
    revision: Revision,
    started: datetime,
    run_id: str,
    files: Mapping[str, str],
    interleaved_with: str | None = None,
) -> RunRecord:
    """The run record."""
    timing = results[TIMING].results
    series = select_starts(results, results[TIMING].step.size)
    workload = (
        _generation(subject, subject.work, series, results)
        if subject.work
        else _inference(subject, series, results, checks, _sustained(results, device.after))
    )
    memory = _memory(subject, results)
    samples = tuple(s for key, r in results.items() for s in r.observation.samples(key))
    about_methods = method_notes(
        subject.method.name,
        [method.name for method in subject.program.methods],
        chosen=subject.work is not None or subject.loaded.recipe.benchmark.method is not None,
    )
    return RunRecord(
        run_id=run_id,
        started_at=started.isoformat(timespec="seconds"),
        workload=workload,
        load_ms=series.load_ms,
        verify_ms=series.verify_ms,
        peak_rss_bytes=memory.peak_rss_bytes if memory else None,
        memory=memory,
        device=device.model_copy(update={"during": samples}),
        program=_program(subject),
        runner=_runner(subject.runner, timing, threads),
        recipe=_recipe(subject.loaded, revision),
        versions=_versions(subject, timing),
        passes={name: _pass(result) for name, result in results.items()},
        files=dict(files),
        disturbances=() if subject.simulated else find_disturbances(series, device),
        interleaved_with=interleaved_with,
        simulated=subject.simulated,
        notes=(
            *about_methods,
            *subject.provenance.notes,
            *workload_notes(workload),
            *_notes_on_times(subject, series, device, results, checks, threads),
            *_notes_on_workload(subject, workload),
        ),
    )


def _notes_on_workload(subject: Subject, workload: Inference | TextGeneration) -> Iterator[str]:
    if isinstance(workload, TextGeneration):
        has_tokenizer = bool(subject.work and subject.work.generation.tokenizer)
        yield from generation_notes(workload, has_tokenizer=has_tokenizer)
    elif workload.sustained:
        yield from sustained_notes(workload.sustained)


def _notes_on_times(
    subject: Subject,
    series: StartSeries,
    device: DeviceRecord,
    results: Results,
    checks: Checks,
    threads: ThreadCounts,
) -> Iterator[str]:
    if subject.simulated:
        yield simulation_note(subject.simulated)
        return
    yield from measurement_notes(
        series, device, subject.runner.loader is not None, of_tokens=subject.work is not None
    )
    yield from size_notes(results, checks)
    yield from threads.notes
    if subject.app_files is not None:
        generation = subject.work.generation if subject.work else None
        yield from app_notes(subject.loaded.recipe.benchmark, generation, subject.runner.target)
    yield from cooldown_notes(results, subject.loaded.recipe.benchmark.cooldown)


def find_disturbances(series: StartSeries, device: DeviceRecord) -> tuple[Disturbance, ...]:
    """What disturbed the run as a whole."""
    found = run_disturbances([result.disturbances for result in series.passes])
    known = [result.results.processors for result in series.passes]
    if any(processors and processors.busy_s is not None for processors in known):
        return found
    return (*found, *load_average_disturbance(device.before, device.facts.cpu_count))


def _generation(
    subject: Subject, work: GenerationWorkload, series: StartSeries, results: Results
) -> TextGeneration:
    starts = [each.generated for each in series.passes if each.generated]
    points = make_points(work, starts, subject.program_folder)
    return TextGeneration(
        points=points,
        sampling=work.sampling,
        prompt=work.prompt,
        texts=tuple(
            check_texts(
                subject.provenance,
                results[TEXT].generated if TEXT in results else None,
                subject.loaded.recipe.benchmark.tolerance,
                subject.program_folder,
            )
        ),
        evaluation=work.generation.evaluation,
        first_ttft_ms=series.first_inference_ms,
        huge_page_bytes=min(start.generation.huge_page_bytes for start in starts),
        runs=series.starts,
        spread=series.spread,
        methods=results[PROFILE].methods if PROFILE in results else (),
        encoder=encoded_input(work, starts, points[0]),
        draft=DraftRecord.model_validate(work.draft, from_attributes=True) if work.draft else None,
    )


def _inference(
    subject: Subject,
    series: StartSeries,
    results: Results,
    checks: Checks,
    sustained: Sustained | None,
) -> Inference:
    return Inference(
        latency_ms=series.latency,
        first_inference_ms=series.first_inference_ms,
        outputs=next(iter(checks.values())),
        outputs_compared=bool(subject.provenance.expected),
        sizes=size_records(results, checks, subject.provenance),
        sustained=sustained,
        runs=series.starts,
        spread=series.spread,
        threads=thread_records(results),
        outside=_outside(subject, results),
    )


def _outside(subject: Subject, results: Results) -> UndelegatedTime | None:
    executed = results[PROFILE].executed if PROFILE in results else None
    if executed is None or subject.simulated:
        return None
    return find_undelegated(executed, subject.method.operators, subject.provenance.details)


def _sustained(results: Results, idle: DeviceState) -> Sustained | None:
    """The sustained pass; the device is idle before it."""
    work = results[SUSTAINED].results.sustained if SUSTAINED in results else None
    if work is None:
        return None
    result = results[SUSTAINED]
    return make_sustained(
        work,
        [(each.seconds, each.state) for each in result.states],
        idle=result.observation.before or idle,
        cooldown=result.observation.cooldown,
        disturbances=result.disturbances,
        ended_early=result.ended_early,
    )


def _memory(subject: Subject, results: Results) -> Memory | None:
    if MEMORY not in results:
        return None
    return make_memory(results[MEMORY].results, subject.program, subject.method)


def _versions(subject: Subject, timing: RunnerResults) -> dict[str, str]:
    return {
        **subject.provenance.versions,
        "etdeploy": etdeploy.__version__,
        "executorch of the runner": timing.executorch_version,
    }


def _pass(result: PassResult) -> PassRecord:
    work = result.results.sustained
    return PassRecord(
        warmup=result.results.warmup,
        iterations=work.inferences if work else len(result.results.samples_ms),
        seconds=result.seconds,
    )


def _runner(runner: BuiltRunner, timing: RunnerResults, threads: ThreadCounts) -> RunnerRecord:
    return RunnerRecord(
        sha256=runner.sha256,
        target=runner.target,
        portable=runner.loader is not None,
        executorch_version=timing.executorch_version,
        threads=timing.threads,
        threads_reason=threads.reason,
        size_bytes=runner.size_bytes,
        provider=runner.provider,
        revision=runner.revision,
        options=runner.options,
        app=runner.app,
    )


def _program(subject: Subject) -> ProgramRecord:
    method = subject.method
    return ProgramRecord(
        sha256=subject.program.sha256,
        size_bytes=subject.program.size_bytes,
        method=method.name,
        operators=subject.program.operators,
        backends=subject.program.backend_ids,
        operator_calls=method.operators,
        delegates=method.delegates,
        source=subject.provenance.source,
        backend=subject.provenance.backend,
        quantization=subject.provenance.quantization,
        rewrites=_rewrites(subject.provenance),
        quantization_loss=() if subject.work else subject.provenance.quantization_loss,
    )


def _rewrites(provenance: Provenance) -> RewritesRecord | None:
    details = {**(provenance.details.get(REWRITES) or {})}
    if not details:
        return None
    details.pop(IDLE, None)
    # Only the file's name, because records are sent to others.
    left = [{**each, "file": each["file"] and Path(each["file"]).name} for each in details["left"]]
    return RewritesRecord.model_validate({**details, "left": left})


def _recipe(loaded: LoadedRecipe, revision: Revision) -> RecipeRecord:
    folder = loaded.path.parent
    return RecipeRecord(
        name=loaded.name,
        file=loaded.path.name,
        files={relative_path(path, folder): sha256 for path, sha256 in loaded.files},
        git_revision=revision.commit,
        git_dirty=revision.dirty,
        content=relative_paths(loaded.recipe.model_dump(mode="json"), folder),
    )


def check_texts(
    provenance: Provenance,
    results: GenerationResults | None,
    tolerance: Tolerance,
    program_folder: Path,
) -> Iterator[TextCheck]:
    """Compare each text with the model's."""
    generation = provenance.generation
    if generation is None or results is None:
        return
    ids = logit_ids_of(generation)
    for i, expected in enumerate(generation.expected):
        [run] = counted_runs(results, i)
        yield check_text(
            f"text_{i}",
            run.token_ids,
            expected,
            provenance.quantization,
            tolerance,
            logits=[dict(zip(ids, logits, strict=True)) for logits in run.logits],
            prompt=decode_ids(expected.prompt_ids, generation, program_folder),
            text=decode_ids(run.token_ids, generation, program_folder),
        )


# For fewer, other allocations would decide.
_LEAST_WEIGHTS_BYTES = 1 << 20


# Share of the weights. Packed weights can be half as large as in the file, and with several
# delegates only some of them may be copied.
_COPIED = 0.25


# The kernel maps pages around a used one, and the file has more than weights.
_IN_FILE = 0.1


def make_memory(results: RunnerResults, program: Program, method: Method) -> Memory:
    """The memory pass as the record has it."""
    peak_rss_bytes = results.peak_rss_bytes or None
    read = results.memory
    if read is None:
        return Memory(peak_rss_bytes=peak_rss_bytes, planned_bytes=method.planned_memory_bytes)
    return Memory(
        peak_rss_bytes=peak_rss_bytes,
        peak_pss_bytes=read.peak_pss_bytes,
        peak_footprint_bytes=read.peak_footprint_bytes,
        before_load_rss_bytes=read.before_load.rss_bytes,
        after_load_rss_bytes=read.after_load.rss_bytes,
        planned_bytes=method.planned_memory_bytes,
        program_resident_bytes=read.program_resident_bytes,
        weights=_weights(read, method.planned_memory_bytes, weights_bytes(program, method)),
        points=tuple(
            MemoryPoint(seconds=seconds, rss_bytes=rss, pss_bytes=pss)
            for seconds, rss, pss in read.points
        ),
    )


def weights_bytes(program: Program, method: Method) -> int:
    """Size of the constants and of the data of the method's delegates, which is mostly weights."""
    return program.constant_bytes + sum(d.size_bytes for d in method.delegates)


def _weights(read: RunnerMemory, planned_bytes: int, size_bytes: int) -> WeightsKind | None:
    """Whether the weights are in pages of the file or in memory that was allocated for them.

    Only allocations while the method is loaded count, because delegates allocate activations later.
    The planned memory is subtracted: ExecuTorch's Module allocates it while loading and sets it to
    zero, so that all of it is resident (extension/module/module.cpp of 1.5.1).
    """
    before, after = read.before_load.anonymous_bytes, read.after_load.anonymous_bytes
    resident = read.program_resident_bytes
    if size_bytes < _LEAST_WEIGHTS_BYTES or before is None or after is None or resident is None:
        return None
    copied = after - before - planned_bytes >= _COPIED * size_bytes
    in_file = resident >= _IN_FILE * size_bytes
    if copied and in_file:
        return WeightsKind.BOTH
    if copied:
        return WeightsKind.LOADED
    return WeightsKind.MAPPED if in_file else None


_MOST = 10


def find_undelegated(
    executed: TraceSummary, operators: Sequence[Operator], details: Mapping[str, Any]
) -> UndelegatedTime:
    """The time outside of delegates, with the slowest operators and why no backend took them."""
    known: Sequence[Mapping[str, Any]] = details.get("delegation", {}).get("outside", ())
    names = {each.name.partition("::")[2]: each.name for each in operators}
    slowest = sorted(executed.kernels, key=lambda kernel: -kernel.ms)[:_MOST]
    return UndelegatedTime(
        share=executed.outside,
        operators=tuple(
            _operator(kernel, names.get(kernel.name, kernel.name), executed, known)
            for kernel in slowest
        ),
    )


def _operator(
    kernel: Kernel, name: str, executed: TraceSummary, known: Sequence[Mapping[str, Any]]
) -> UndelegatedOperator:
    # Out variants have another overload name.
    same = [each for each in known if each["operator"] == name.partition(".")[0]]
    return UndelegatedOperator(
        name=name,
        calls=round(kernel.calls / max(1, executed.calls)),
        share=min(1.0, kernel.ms / executed.total_ms) if executed.total_ms else 0.0,
        modules=_distinct(module for each in same for module in each.get("modules", ())),
        places=_distinct(_place(each) for each in same),
        reasons=_distinct(each["reason"] for each in same),
    )


def _place(each: Mapping[str, Any]) -> str:
    # Only the file's name, because records are sent to others.
    return f"{PurePath(each['file']).name}:{each['line']}" if each["file"] else ""


def _distinct(texts: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))
