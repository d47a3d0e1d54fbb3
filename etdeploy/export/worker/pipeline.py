"""The steps of an export: load, quantize, trace, lower, write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from etdeploy.backends.rewrites import CHANNELS_LAST, LINEARS
from etdeploy.export.diagnostics import OTHER_OPERATORS
from etdeploy.export.hf.memory import PeakMemory, memory_details, unloaded_note
from etdeploy.export.methods import first_method
from etdeploy.export.needs import may_replace_parts
from etdeploy.export.protocol import ModelSources
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import Traced, lowering_of
from etdeploy.export.worker.background import BackgroundLostError, at_once
from etdeploy.export.worker.failures import WorkerError, failure_at, name_method
from etdeploy.export.worker.load import loaded_methods
from etdeploy.export.worker.loading.recorder import FileRecorder
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.lowering.delegation import delegation
from etdeploy.export.worker.lowering.lower import emit, lower, partitioned, shortens
from etdeploy.export.worker.lowering.lower_failures import (
    ProgramProblem,
    convolved_outside,
    load_check,
    operator_place,
)
from etdeploy.export.worker.lowering.rowwise import dequantized_by_rows
from etdeploy.export.worker.lowering.weight_files import data_held_once, temporary_files, trim_heap
from etdeploy.export.worker.lowering.weights import shared_weight_bytes
from etdeploy.export.worker.quantization import (
    EvaluatedModule,
    LayerFacts,
    Outputs,
    quantization_text,
    quantized_modules,
    with_noise,
    with_sensitivity,
)
from etdeploy.export.worker.result import (
    Lowered,
    LoweredMethod,
    provenance_of,
    write_methods,
    write_program,
)
from etdeploy.export.worker.rewrites.base import Log
from etdeploy.export.worker.rewrites.gain import dropped, rewrite_record
from etdeploy.export.worker.rewrites.images import inputs_by_pixel
from etdeploy.export.worker.rewrites.order import copied_program, idle_rewrites, rewritten_to_lower
from etdeploy.export.worker.steps import Steps, Tell, for_each, import_executorch, starter
from etdeploy.export.worker.tracing.dims import check_numbers, recurrence_notes
from etdeploy.export.worker.tracing.modes import in_either_mode
from etdeploy.export.worker.tracing.sizes import SizedCall, sized_calls
from etdeploy.export.worker.tracing.structure import shapes_of_graph
from etdeploy.export.worker.tracing.tensors import Values, run_eagerly
from etdeploy.export.worker.tracing.trace import trace, use_known_operators
from etdeploy.program.finished import constants_for
from etdeploy.program.folder import EXPORT_INFO, MEMORY, PROGRAM_FILE, PROGRAM_INFO
from etdeploy.program.inspect import inspect_file

if TYPE_CHECKING:  # imports transformers
    from etdeploy.export.worker.diff.instrument import WrittenGraph
    from etdeploy.export.worker.language.eager import EvaluatedTexts
    from etdeploy.export.worker.language.layer_copies import LayerCopies
    from etdeploy.export.worker.language.model import LanguageModel

Around = Callable[[str], AbstractContextManager[None]]
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
        import_executorch(steps)  # the file may hold operators that ExecuTorch registers
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


def _lowered(spec: ExportSpec, steps: Steps, recorder: FileRecorder) -> Lowered:
    language, task, sources, inputs = loaded_methods(spec, steps, recorder)
    log = Log(spec.rewrites)
    if CHANNELS_LAST in log.names:
        sources = for_each(sources, lambda name: _by_pixel(sources[name], log))
    shared_bytes = shared_weight_bytes(source.module for source in sources.values())
    import_executorch(steps)  # after the factory, so that its mistakes show sooner
    weights = LayerFacts()
    if language:
        with steps.step("calibrate", "measuring activations", 0.35):
            loaded = language.loaded
            weights = LayerFacts(language.activations(spec), loaded.stored_weights(), loaded.files)
        if spec.observation:  # no text is generated: the program is that of one call
            language = None
    with steps.step("quantize", quantization_text(spec), 0.4), recorder.recording():
        run = (language.longest,) if language else tuple(sources)
        # A language model is judged by its texts: nothing waits for how far its outputs moved.
        start = starter(steps, language.loaded.model) if language else at_once
        evaluates = language is not None and language.evaluates
        models = quantized_modules(spec, sources, run, log, weights, start, compares=not evaluates)
        models = with_sensitivity(spec, with_noise(spec, models, sources), sources, steps)
    if language:
        trim_heap()  # before another process is forked, and the model is lowered
    evaluated = _evaluated(spec, language, models, steps)

    def trace_all(around: Around = lambda _: nullcontext()) -> dict[str, Traced]:
        def one(name: str) -> Traced:
            with around(name):
                return _traced(spec, sources[name], models[name], log)

        return for_each(sources, one)

    with _in_kernel(spec, models, log):
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


@contextmanager
def _in_kernel(spec: ExportSpec, models: Mapping[str, EvaluatedModule], log: Log) -> Iterator[None]:
    """While the block runs, modules have the operators of kernels that the recipe asks for."""
    if LINEARS not in spec.rewrites:
        yield
        return
    from etdeploy.export.worker.lowering.linear_kernel import linears_in_kernel

    with linears_in_kernel((model.module for model in models.values()), log.of(LINEARS)):
        yield


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

    start = starter(steps, loaded.model)
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
