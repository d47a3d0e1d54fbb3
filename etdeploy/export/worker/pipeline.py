"""The steps of an export: load, quantize, trace, lower, write."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from etdeploy.backends.registry import backend_named
from etdeploy.backends.rewrites import CHANNELS_LAST
from etdeploy.backends.schemes import DYNAMIC_SCHEMES, FLOAT_SCHEMES
from etdeploy.export.diagnostics import OTHER_OPERATORS
from etdeploy.export.diff import LOGIT_NOISE, SENSITIVITY, more_exact_scheme
from etdeploy.export.hf.memory import (
    PeakMemory,
    machine_memory,
    memory_details,
    own_bytes,
    unloaded_note,
)
from etdeploy.export.needs import may_replace_parts
from etdeploy.export.protocol import ModelSources
from etdeploy.export.spec import ExportSpec, first_method
from etdeploy.export.worker.backends.base import Traced, lowering_of
from etdeploy.export.worker.background import (
    BackgroundLostError,
    ForkedComputation,
    Starter,
    at_once,
    can_fork,
    when_needed,
)
from etdeploy.export.worker.failures import WorkerError, failure_at, name_method
from etdeploy.export.worker.loading.recorder import FileRecorder
from etdeploy.export.worker.loading.source import (
    MethodSource,
    load_sources,
    prepare,
    with_calibration,
)
from etdeploy.export.worker.lowering.calibration import loss_notes
from etdeploy.export.worker.lowering.delegation import delegation
from etdeploy.export.worker.lowering.lower import emit, lower, partitioned, shortens
from etdeploy.export.worker.lowering.lower_failures import (
    ProgramProblem,
    convolved_outside,
    load_check,
    operator_place,
)
from etdeploy.export.worker.lowering.quantize import Quantized, quantize
from etdeploy.export.worker.lowering.rowwise import dequantized_by_rows, evaluated_bytes
from etdeploy.export.worker.lowering.scales import Activations
from etdeploy.export.worker.lowering.stored import StoredWeight
from etdeploy.export.worker.lowering.weight_files import (
    WeightFiles,
    data_held_once,
    temporary_files,
    trim_heap,
)
from etdeploy.export.worker.lowering.weights import shared_weight_bytes
from etdeploy.export.worker.result import (
    Lowered,
    LoweredMethod,
    provenance_of,
    write_methods,
    write_program,
)
from etdeploy.export.worker.rewrites.base import Log
from etdeploy.export.worker.rewrites.gain import dropped, rewrite_record
from etdeploy.export.worker.rewrites.images import inputs_by_pixel, order_notes
from etdeploy.export.worker.rewrites.order import (
    copied_program,
    idle_rewrites,
    rewritten_to_lower,
)
from etdeploy.export.worker.tracing.dims import check_numbers, recurrence_notes
from etdeploy.export.worker.tracing.modes import in_either_mode
from etdeploy.export.worker.tracing.sizes import SizedCall, sized_calls
from etdeploy.export.worker.tracing.structure import shapes_of_graph
from etdeploy.export.worker.tracing.tensors import (
    Values,
    flat_inputs,
    laid_out,
    lay_out_weights,
    losses,
    run_eagerly,
)
from etdeploy.export.worker.tracing.trace import trace, use_known_operators
from etdeploy.program.finished import constants_for
from etdeploy.program.folder import EXPORT_INFO, FORWARD, MEMORY, PROGRAM_FILE, PROGRAM_INFO
from etdeploy.program.inspect import inspect_file
from etdeploy.program.quality import OutputLoss

if TYPE_CHECKING:  # imports transformers
    from etdeploy.export.worker.diff.instrument import WrittenGraph
    from etdeploy.export.worker.diff.switchable import Switchable
    from etdeploy.export.worker.language.eager import EvaluatedTexts
    from etdeploy.export.worker.language.layer_copies import LayerCopies
    from etdeploy.export.worker.language.model import LanguageModel
    from etdeploy.export.worker.tasks.load import TaskModel

Tell = Callable[[str, float], None]
Around = Callable[[str], AbstractContextManager[None]]
Made = TypeVar("Made")


@dataclass
class Steps:
    """Times each step and reports the progress of the export.

    `files` takes weights that are larger than the memory; None where they have to be held. `forks`
    is whether the model may be run beside the process that traces and lowers it.
    """

    tell: Tell
    files: WeightFiles | None = None
    forks: bool = True
    seconds: dict[str, float] = field(default_factory=dict)
    _inner_s: list[float] = field(default_factory=lambda: [0.0])

    @contextmanager
    def step(self, name: str, text: str, fraction: float) -> Iterator[None]:
        """One step, which begins when `fraction` of the work is done.

        A step inside another one counts by itself.
        """
        self.tell(text, fraction)
        started = time.monotonic()
        self._inner_s.append(0.0)
        try:
            yield
        finally:
            took_s = time.monotonic() - started
            own_s = took_s - self._inner_s.pop()
            self._inner_s[-1] += took_s
            self.seconds[name] = round(self.seconds.get(name, 0.0) + own_s, 3)


@dataclass(frozen=True)
class Outputs:
    """What a method gives eagerly, if it was run, and how far quantization has moved that."""

    values: Values | None = None
    losses: tuple[OutputLoss, ...] = ()


@dataclass(frozen=True)
class EvaluatedModule:
    """A method's module, quantized where the scheme quantizes before lowering.

    `outputs` gives, or computes, what it gives eagerly; to be called once. `switchable` is the same
    module with quantizations that can be left out, to measure what they cost.
    """

    module: torch.nn.Module
    outputs: Callable[[], Outputs]
    details: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    switchable: Switchable | None = None


@dataclass(frozen=True)
class LayerFacts:
    """What is known of a language model's linear layers, beside their weights, by their `id()`.

    `files` stores the quantized weights; None if they fit in memory.
    """

    activations: Activations = field(default_factory=Activations)
    stored: Mapping[int, StoredWeight] = field(default_factory=dict)
    files: WeightFiles | None = None


# What the modules of the methods give, and the texts of a language model.
Evaluated = Callable[[], "tuple[dict[str, Outputs], EvaluatedTexts | None]"]
# The inputs of a recipe's sizes, and the outputs for each.
Sized = tuple[tuple[SizedCall, ...], tuple[Values, ...]]


def run(spec: ExportSpec, folder: Path, tell: Tell, recorder: FileRecorder) -> ModelSources:
    """Fills the program folder."""
    with temporary_files(folder.with_name(f"{folder.name}.weights")) as files, PeakMemory() as peak:
        return _run(spec, folder, Steps(tell, files), recorder, peak)


def _run(
    spec: ExportSpec, folder: Path, steps: Steps, recorder: FileRecorder, peak: PeakMemory
) -> ModelSources:
    if spec.exported:
        _import_executorch(steps)  # the file may hold operators that ExecuTorch registers
    lowered, retraced = _export_evaluated(spec, folder, steps, recorder)
    with steps.step("write", "writing the values", 0.98):
        written = write_methods(folder, lowered)
        if lowered.graph:
            lowered.graph.write(folder)
    sources = recorder.sources()
    made = provenance_of(spec, folder, lowered, written, retraced)
    language = lowered.language
    if (model := language.loaded if language else lowered.task) and spec.hf:
        model.write(folder)
        sources = sources.model_copy(update={"commit": model.commit})
    if language:
        memory = {MEMORY: memory_details(language.loaded.memory, peak.bytes())}
        made = made.model_copy(update={"details": {**made.details, **memory}})
    made.model_copy(
        update={"code_files": sources.files, "seconds": steps.seconds},
    ).save(folder / EXPORT_INFO)
    return sources


def _export_evaluated(
    spec: ExportSpec, folder: Path, steps: Steps, recorder: FileRecorder
) -> tuple[Lowered, str | None]:
    """The program, written and tried, and what the model gives that it was made from."""
    try:
        lowered, retraced = _export_runnable(spec, folder, steps, recorder)
        # What another process may compute meanwhile comes last.
        inspected = inspect_file(folder / PROGRAM_FILE)
        inspected.save(folder / PROGRAM_INFO)
        lowered = replace(lowered, inspected=inspected)
        texts = steps.step("texts", "generating texts with the model to export", 0.96)
        with texts if lowered.language else nullcontext():
            return lowered.evaluated(), retraced
    except BackgroundLostError:
        steps.forks = False
        steps.tell("exporting again in one process: the system killed the other one", 0.1)
        return _export_evaluated(spec, folder, steps, recorder)


def _export_runnable(
    spec: ExportSpec, folder: Path, steps: Steps, recorder: FileRecorder
) -> tuple[Lowered, str | None]:
    """The program, written and tried; a second one in ExecuTorch's own way if the first fails."""
    problem = None
    try:
        lowered, retraced = _lower_in_working_mode(spec, steps, recorder)
    except WorkerError as error:
        # With other rewrites, the graph has other nodes to observe.
        can_change = (spec.rewrites or shortens(spec)) and not spec.observation
        if error.failure.kind != "lowering" or not can_change:
            raise
        problem = f"the first attempt failed: {error.failure.message}"
    if problem is None:
        with steps.step("write", "writing the program", 0.92):
            lowered = write_program(spec, folder, lowered)
        with steps.step("try", "running the program once", 0.94):
            lowered, wrong = _tried(spec, folder / PROGRAM_FILE, lowered)
        if wrong is None:
            return lowered, retraced
        if spec.observation or not (lowered.rewrites.get("applied") or shortens(spec)):
            raise _unusable(wrong, lowered)
        problem = f"ExecuTorch does not load the first program: {wrong.reason}"
        if wrong.loaded:
            problem = (
                "the first program fails when it runs with the example inputs: " + wrong.reason
            )
        del lowered
    # Here, where the exception no longer holds what was made.
    steps.tell("exporting again without rewrites and patches of the lowering", 0.1)
    plain = spec.model_copy(update={"rewrites": (), "shortened": False})
    lowered, retraced = _export_runnable(plain, folder, steps, recorder)
    return replace(lowered, rewrites=dropped(spec.rewrites, problem)), retraced


def _tried(
    spec: ExportSpec, program: Path, lowered: Lowered
) -> tuple[Lowered, ProgramProblem | None]:
    """What is wrong with the program; where it is not loaded, a note says why."""
    language = lowered.language
    note = unloaded_note(program) if language and language.loaded.files else None
    if note:
        return replace(lowered, notes=(*lowered.notes, note)), None
    methods = {name: method.traced for name, method in lowered.methods.items()}
    convolved = {name: method.convolved for name, method in lowered.methods.items()}
    return lowered, load_check(spec, program, methods, convolved)


def _unusable(wrong: ProgramProblem, lowered: Lowered) -> WorkerError:
    how = "fails when it runs with the example inputs" if wrong.loaded else "does not load"
    kernel = f", in the kernel of {wrong.operator}" if wrong.operator else ""
    return WorkerError(
        failure_at(
            operator_place(wrong.operator, lowered.graphs),
            "lowering",
            f"the program was lowered, but {how}{kernel}: {wrong.reason}",
            operator=wrong.operator,
            remedy=OTHER_OPERATORS,
        )
    )


def _lower_in_working_mode(
    spec: ExportSpec, steps: Steps, recorder: FileRecorder
) -> tuple[Lowered, str | None]:
    """The lowered model, and a sentence where that took torch.export's other mode."""
    if spec.exported or spec.hf:  # the file, or the model's methods, say how they are traced
        return _lowered(spec, steps, recorder), None
    return in_either_mode(
        spec,
        # Loaded again each time: a failed trace may leave its stand-ins for tensors in objects of
        # the model.
        lambda chosen: _lowered(chosen, steps, recorder),
        lambda text: steps.tell(text, 0.1),
    )


def _load(
    spec: ExportSpec, steps: Steps, recorder: FileRecorder
) -> tuple[LanguageModel | None, TaskModel | None, dict[str, MethodSource], dict[str, Values]]:
    """The model, its methods, and the inputs of these."""
    with steps.step("load", f"loading {spec.source}", 0.1), recorder.recording():
        language = _language_model(spec, steps, recorder)
        task = _task_model(spec, steps, recorder)
        if language:
            sources = language.observed(spec) if spec.observation else language.sources
        else:
            own = with_calibration(spec, {FORWARD: task.source}) if task else load_sources(spec)
            sources = _in_order(spec, own)
        for weight in (w for source in sources.values() for w in source.module.parameters()):
            # Passes compute a delegate's results anew where something can be trained.
            weight.requires_grad_(False)
        inputs = _for_each(
            sources, lambda name: flat_inputs(sources[name].module, sources[name].inputs)
        )
        if language and (encoder := language.generation.encoder):  # gives those of the others
            inputs = {name: [] for name in inputs} | {encoder.method: language.encoder_inputs()}
    return language, task, sources, inputs


def _lowered(spec: ExportSpec, steps: Steps, recorder: FileRecorder) -> Lowered:
    language, task, sources, inputs = _load(spec, steps, recorder)
    log = Log(spec.rewrites)
    if CHANNELS_LAST in log.names:
        sources = _for_each(sources, lambda name: _by_pixel(sources[name], log))
    shared_bytes = shared_weight_bytes(source.module for source in sources.values())
    _import_executorch(steps)  # after the factory, so that its mistakes show sooner
    weights = LayerFacts()
    if language:
        with steps.step("calibrate", "measuring activations", 0.35):
            loaded = language.loaded
            weights = LayerFacts(language.activations(spec), loaded.stored_weights(), loaded.files)
        if spec.observation:  # no text is generated: the program is that of one call
            language = None
    with steps.step("quantize", _quantize_text(spec), 0.4), recorder.recording():
        run = (language.longest,) if language else tuple(sources)
        # A language model is judged by its texts: nothing waits for how far its outputs moved.
        start = _start(steps, language.loaded.model) if language else at_once
        evaluates = language is not None and language.evaluates
        models = _quantized(spec, sources, run, log, weights, start, compares=not evaluates)
        models = _with_sensitivity(spec, _with_noise(spec, models, sources), sources, steps)
    if language:
        trim_heap()  # before another process is forked, and the model is lowered
    evaluated = _evaluated(spec, language, models, steps)

    def trace_all(around: Around = lambda _: nullcontext()) -> dict[str, Traced]:
        def one(name: str) -> Traced:
            with around(name):
                return _traced(spec, sources[name], models[name], log)

        return _for_each(sources, one)

    copies = _layer_copies(spec, sources, models)
    with steps.step("export", "tracing with torch.export", 0.6):
        traced = copies.traced(trace_all) if copies else trace_all()
    traced, graph = _observed(spec, traced, inputs, steps)
    with recorder.recording():
        sized = _at_sizes(spec, traced, steps)
    programs = [method.original or method.program for method in traced.values()]
    unrolled = [note for program in programs for note in recurrence_notes(program)]
    for note in unrolled:
        steps.tell(note, 0.65)  # now, since it is about how long the next step takes
    with (
        steps.step("lower", f"lowering to {spec.backend}", 0.7),
        data_held_once(weights.files) if language else nullcontext(),
    ):
        lowering = partial(lower, spec)
        if copies:
            edge, traced = copies.lowered(traced, trace_all, lowering)
        else:
            edge = lowering(traced)
        counts = {name: delegation(edge, name) for name in traced}
        constants = constants_for(language.generation) if language else {}
        program = emit(spec, edge, traced, constants)
    rewrites = _rewrites(spec, traced, counts, log, steps, compares=not (unrolled or graph))
    methods = {
        name: _method(
            traced[name],
            inputs[name],
            models[name],
            sized.get(name),
            counts[name],
            edge.exported_program(name),
        )
        for name in sources
    }
    return Lowered(
        methods,
        program,
        shared_bytes,
        language,
        task,
        rewrites=rewrites,
        etrecord=spec.etrecord,
        notes=copies.notes if copies else (),
        graph=graph,
        evaluate=partial(_with_outputs, evaluated),
    )


def _observes(spec: ExportSpec) -> bool:
    """Whether the program returns values of nodes, each of which is to be found in its graph."""
    return spec.observation is not None and spec.observation.nodes != ()


def _observed(
    spec: ExportSpec, traced: dict[str, Traced], inputs: Mapping[str, Values], steps: Steps
) -> tuple[dict[str, Traced], WrittenGraph | None]:
    """The methods, of which the measured one returns the values that the spec observes."""
    if not _observes(spec):
        return traced, None
    from etdeploy.export.worker.diff.instrument import WrittenGraph, instrumented
    from etdeploy.export.worker.diff.rewrites import rewrite_error

    name = spec.method or first_method(tuple(traced))
    observing = steps.step("observe", "choosing the values to observe", 0.65)
    with observing, name_method(name, traced):
        made, graph = instrumented(spec, name, traced[name])
        error = rewrite_error(spec, traced[name], inputs[name])
    graph = graph.model_copy(update={"rewrite_error": error})
    # The lowering changes its graph in place.
    return {**traced, name: made}, WrittenGraph(copied_program(made.program), graph)


def _layer_copies(
    spec: ExportSpec, sources: Mapping[str, MethodSource], models: Mapping[str, EvaluatedModule]
) -> LayerCopies | None:
    """The methods whose layers are copies of a few; None where each layer is traced anyway."""
    is_text = all(source.is_text for source in sources.values())
    can_copy = lowering_of(spec).copies_layers and shortens(spec) and may_replace_parts(spec)
    if not (is_text and can_copy) or _observes(spec):
        return None
    from etdeploy.export.worker.language.layer_copies import LayerCopies

    # A module that PT2E has quantized is a graph of all layers.
    in_place = {n: m.module for n, m in models.items() if m.module is sources[n].module}
    return LayerCopies.of(in_place, {name: source.inputs.args for name, source in sources.items()})


def _rewrites(
    spec: ExportSpec,
    methods: Mapping[str, Traced],
    counts: Mapping[str, Mapping[str, Any]],
    log: Log,
    steps: Steps,
    *,
    compares: bool,
) -> dict[str, Any]:
    """What the rewrites did, and if it `compares`, what a backend would have taken without them."""
    if not log.names:
        return {}
    methods = {name: method for name, method in methods.items() if not method.source.is_text}
    counts = {name: counts[name] for name in methods}
    keys = {"partitions": "partitions", "outside": "undelegated_nodes"}
    after = {key: sum(each[own] for each in counts.values()) for key, own in keys.items()}
    with steps.step("gain", "counting what the rewrites gained", 0.9):
        before = after if not log.applied else partitioned(spec, methods) if compares else {}
    programs = (method.original or method.program for method in methods.values())
    return rewrite_record(log, before, after, idle_rewrites(programs, log))


def _task_model(spec: ExportSpec, steps: Steps, recorder: FileRecorder) -> TaskModel | None:
    if spec.hf is None or spec.generation is not None:
        return None
    prepare(spec)
    if spec.hf.timm:
        from etdeploy.export.worker.tasks.timm import load_timm

        with recorder.ignoring("timm"):
            return load_timm(spec, steps.tell)
    from etdeploy.export.worker.tasks.load import load_task

    with recorder.ignoring("transformers"):
        return load_task(spec, steps.tell)


def _language_model(spec: ExportSpec, steps: Steps, recorder: FileRecorder) -> LanguageModel | None:
    if spec.hf is None or spec.generation is None:
        return None
    from etdeploy.export.worker.language.eager import original_texts
    from etdeploy.export.worker.language.load import load_model
    from etdeploy.export.worker.language.lora import require_adapters, with_adapters
    from etdeploy.export.worker.language.model import language_model

    prepare(spec)
    # What is read of the model is known: its files, or the commit. The recorder would also see
    # the user's token for the hub.
    with recorder.ignoring("transformers"):
        require_adapters(spec, steps.tell)
        loaded = load_model(spec, steps.tell, steps.files)
        loaded = with_adapters(spec, loaded, steps.tell)
        with steps.step("texts", "generating texts with the model", 0.15):
            # Those of a program whose nodes are observed are never asked for.
            start = when_needed if spec.observation else _start(steps, loaded.model)
            eager = original_texts(spec, loaded, start)
        return language_model(spec, loaded, eager)


# What is needed beside the weights while they are evaluated and lowered.
_BESIDE_WEIGHTS_BYTES = 2 << 30


def _start(steps: Steps, model: torch.nn.Module) -> Starter:
    """In a fork if what it takes, and the program, fit beside the weights."""
    needed = sum(map(evaluated_bytes, model.parameters()))
    free = machine_memory().free_bytes - own_bytes()
    if not (steps.forks and can_fork()) or needed + _BESIDE_WEIGHTS_BYTES > free:
        return at_once
    return lambda compute: ForkedComputation(compute).result


def _evaluated(
    spec: ExportSpec,
    language: LanguageModel | None,
    models: Mapping[str, EvaluatedModule],
    steps: Steps,
) -> Evaluated:
    """What the modules give that are exported, and their texts, as soon as that is computed."""
    if language is None:
        return lambda: ({name: model.outputs() for name, model in models.items()}, None)
    loaded, modules = language.loaded, {name: model.module for name, model in models.items()}
    in_place = all(modules[name] is source.module for name, source in language.sources.items())

    def compute() -> tuple[dict[str, Outputs], EvaluatedTexts]:
        if language.eager:
            # Another process may still compute that, and two would compete for the processor.
            language.eager.gave()
        with dequantized_by_rows(keep_small=loaded.files is None):
            outputs = {name: model.outputs() for name, model in models.items()}
            return outputs, language.evaluated(spec, modules, in_place=in_place)

    start = _start(steps, loaded.model)
    with steps.step("texts", "generating texts with the model to export", 0.5):
        return start(compute)


def _with_outputs(evaluated: Evaluated, lowered: Lowered) -> Lowered:
    outputs, texts = evaluated()
    language = lowered.language
    if language and texts and texts.losses:
        outputs[language.longest] = replace(outputs[language.longest], losses=texts.losses)
    methods = {
        name: replace(method, outputs=outputs[name].values, losses=outputs[name].losses)
        for name, method in lowered.methods.items()
    }
    language = language.with_texts(texts) if language and texts else language
    return replace(lowered, methods=methods, language=language)


def _method(
    traced: Traced,
    inputs: Values,
    model: EvaluatedModule,
    sized: Sized | None,
    counts: dict[str, Any],
    lowered: torch.export.ExportedProgram,
) -> LoweredMethod:
    sets, set_outputs = sized or ((), ())
    return LoweredMethod(
        traced=traced,
        inputs=inputs,
        details=model.details,
        notes=model.notes,
        sets=sets,
        set_outputs=set_outputs,
        counts=counts,
        convolved=convolved_outside(lowered),
        state=tuple(lowered.graph_signature.buffers_to_mutate.values()),
    )


def _for_each(sources: Mapping[str, MethodSource], make: Callable[[str], Made]) -> dict[str, Made]:
    """What is made for each method, by its name; a failure says which it is about."""
    made = {}
    for name in sources:
        with name_method(name, sources):
            made[name] = make(name)
    return made


def _in_order(spec: ExportSpec, sources: Mapping[str, MethodSource]) -> dict[str, MethodSource]:
    """With weights and inputs whose strides ExecuTorch knows."""
    by_pixel = lowering_of(spec).by_pixel
    offered = backend_named(str(spec.backend)).rewrites

    def ordered(source: MethodSource) -> MethodSource:
        shapes, given = source.dynamic_shapes, source.inputs
        if isinstance(shapes, torch.export.ShapesCollection):  # which knows the tensors by identity
            shapes = shapes.dynamic_shapes(source.module, given.args, dict(given.keywords))
        inputs = laid_out(given, given if by_pixel else None)
        changed = lay_out_weights(source.module) or inputs is not given
        return replace(
            source,
            inputs=inputs,
            dynamic_shapes=shapes,
            exported=None if changed else source.exported,  # whose graph has the strides, too
            notes=tuple(order_notes(source.module, given, inputs, offered)),
        )

    return _for_each(sources, lambda name: ordered(sources[name]))


def _import_executorch(steps: Steps) -> None:
    """Takes seconds, which are not the model's."""
    if "executorch.exir" in sys.modules:
        return
    with steps.step("import", "importing ExecuTorch", 0.2):
        import executorch.exir  # noqa: F401


def _quantize_text(spec: ExportSpec) -> str:
    if spec.quantization in (None, *FLOAT_SCHEMES):
        tables = f"quantizing embeddings: {spec.embeddings}"
        return tables if spec.embeddings else "running the model eagerly"
    return f"quantizing: {spec.quantization}"


def _quantized(
    spec: ExportSpec,
    sources: Mapping[str, MethodSource],
    run: Container[str],
    log: Log,
    weights: LayerFacts,
    start: Starter = at_once,
    *,
    compares: bool = True,
) -> dict[str, EvaluatedModule]:
    """The modules to lower, and what those of the methods in `run` give.

    Expected outputs are those of the quantized ones. Only then can a device's outputs be held to a
    narrow tolerance; how far quantization itself moves the outputs is reported separately, here if
    it `compares` them.
    """

    def run_now(name: str) -> Callable[[], Outputs]:
        compute = partial(_run_module, sources[name])
        return start(compute) if compares else compute

    # All before any is quantized: methods may share the layers.
    before = _for_each(sources, lambda name: run_now(name) if name in run else None)
    quantized = quantize(spec, sources, log, weights.activations, weights.stored, weights.files)
    if not quantized:
        return {
            name: EvaluatedModule(source.module, before[name] or Outputs)
            for name, source in sources.items()
        }
    return _for_each(
        sources,
        lambda name: _compared(
            spec,
            quantized[name],
            sources[name],
            before[name] if compares else None,
            run=name in run,
        ),
    )


def _run_module(source: MethodSource) -> Outputs:
    return Outputs(run_eagerly(source.module, source.inputs, "the model"))


def _compared(
    spec: ExportSpec,
    quantized: Quantized,
    source: MethodSource,
    before: Callable[[], Outputs] | None,
    *,
    run: bool,
) -> EvaluatedModule:
    def moved() -> Outputs:
        first = before().values if before else None
        after = run_eagerly(quantized.module, source.inputs, "the quantized model")
        return Outputs(after, losses(first, after) if first is not None else ())

    outputs, notes = moved if run else Outputs, quantized.notes
    if not spec.generation:  # a language model is judged by its perplexity and texts
        outputs = at_once(outputs)
        notes = (*notes, *loss_notes(spec, outputs().losses, quantized.ranges))
    samples = quantized.samples
    details = {} if samples is None else {"calibration_samples": samples}
    return EvaluatedModule(quantized.module, outputs, details, notes, _switchable(spec, quantized))


def _switchable(spec: ExportSpec, quantized: Quantized) -> Switchable | None:
    if quantized.unfolded is None and not quantized.rounded:
        return None
    from etdeploy.export.worker.diff.switchable import QuantizedGraph, QuantizedLinears

    if quantized.unfolded is None:
        other = more_exact_scheme(backend_named(str(spec.backend)), spec.quantization)
        return QuantizedLinears.of(quantized.module, quantized.rounded, other or "none")
    return QuantizedGraph.of(spec, quantized.unfolded)


def _with_noise(
    spec: ExportSpec, models: dict[str, EvaluatedModule], sources: Mapping[str, MethodSource]
) -> dict[str, EvaluatedModule]:
    """Measures how far rounding moves logits, where nodes are compared and no texts."""
    if not (spec.observation and spec.generation and spec.quantization in DYNAMIC_SCHEMES):
        return models
    from etdeploy.export.worker.language.eager import call_noise

    def with_noise(name: str) -> EvaluatedModule:
        noise = call_noise(sources[name], models[name].module)
        found = {LOGIT_NOISE: noise.model_dump(mode="json")} if noise else {}
        return replace(models[name], details={**models[name].details, **found})

    return _for_each(sources, with_noise)


def _with_sensitivity(
    spec: ExportSpec,
    models: dict[str, EvaluatedModule],
    sources: Mapping[str, MethodSource],
    steps: Steps,
) -> dict[str, EvaluatedModule]:
    """Measures what the quantization of each module costs, in the method that is observed."""
    name = spec.method or first_method(tuple(models))
    switchable = models[name].switchable
    if switchable is None:
        return models
    from etdeploy.export.worker.diff.sensitivity import measure_sensitivity

    source = sources[name]
    other = more_exact_scheme(backend_named(str(spec.backend)), spec.quantization)

    def requantize(modules: Sequence[str]) -> torch.nn.Module:
        own = tuple((module, str(other)) for module in modules)
        changed = {"overrides": (*own, *spec.overrides), "observation": None}
        return quantize(spec.model_copy(update=changed), {name: source})[name].module

    measuring = steps.step("sensitivity", "measuring what the quantization costs", 0.45)
    with measuring, dequantized_by_rows():
        found = measure_sensitivity(
            switchable,
            source,
            requantize if other else None,
            lambda text, _: steps.tell(text, 0.45),
        )
    details = {**models[name].details, SENSITIVITY: found.model_dump(mode="json")}
    return {**models, name: replace(models[name], details=details, switchable=None)}


def _by_pixel(source: MethodSource, log: Log) -> MethodSource:
    if source.exported:
        return source  # its graph is for inputs in its own order
    return replace(source, inputs=inputs_by_pixel(source.inputs, log.of(CHANNELS_LAST)))


def _traced(spec: ExportSpec, source: MethodSource, model: EvaluatedModule, log: Log) -> Traced:
    if source.exported and model.module is source.module:
        program = source.exported
    else:
        shapes = source.dynamic_shapes
        if model.module is not source.module:  # a graph, since PT2E has quantized it
            shapes = shapes_of_graph(source.module, source.inputs, shapes)
        program = trace(model.module, source.inputs, shapes, strict=spec.strict)
    check_numbers(source, program)
    use_known_operators(program)
    quantized = model.module is not source.module
    rewritten = program
    if not source.is_text:
        rewritten = rewritten_to_lower(program, log, quantized=quantized)
    return Traced(model.module, source, rewritten, log, program)


def _at_sizes(spec: ExportSpec, methods: Mapping[str, Traced], steps: Steps) -> dict[str, Sized]:
    """The inputs of every size that the recipe names, and the outputs of the method it measures."""
    if not spec.sizes:
        return {}
    name = spec.method or first_method(tuple(methods))
    method = methods[name]
    with (
        steps.step("sizes", "running the model at each size", 0.65),
        name_method(name, methods),
    ):
        sets = tuple(sized_calls(spec, method.source, method.program))
        outputs = (run_eagerly(method.module, s.call, "the model", s.given) for s in sets)
        return {name: (sets, tuple(outputs))}
