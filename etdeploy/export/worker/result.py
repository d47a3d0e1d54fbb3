"""What an export leaves in the program folder: the program, its values, and how it was made."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from etdeploy.export.cache import backend_versions, installed_version, loading_tools
from etdeploy.export.methods import first_method
from etdeploy.export.needs import release_notes
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import Traced, lowering_of
from etdeploy.export.worker.failures import exception_text, is_memory
from etdeploy.export.worker.lowering.delegation import delegation_notes
from etdeploy.export.worker.lowering.lower import graphs, shortens
from etdeploy.export.worker.lowering.lower_failures import explain_errors
from etdeploy.export.worker.lowering.weights import (
    packed_weights_note,
    separate_weights_note,
    store_once,
    tied_notes,
)
from etdeploy.export.worker.rewrites.gain import notes as rewrite_notes
from etdeploy.export.worker.tracing.dims import constant_notes, fixed_notes, recurrence_notes
from etdeploy.export.worker.tracing.sizes import SizedCall, write_sets
from etdeploy.export.worker.tracing.tensors import (
    Values,
    flat_inputs,
    is_by_pixel,
    write_values,
)
from etdeploy.program.folder import (
    BY_PIXEL,
    ETRECORD_FILE,
    FORWARD,
    PROGRAM_FILE,
    RETRACED,
    REWRITES,
    MethodValues,
    OutputQuantization,
    Provenance,
)
from etdeploy.program.generation import TOKEN_EMBEDDING, Generation, load_mode
from etdeploy.program.model import Program
from etdeploy.program.quality import OutputLoss
from etdeploy.program.task import TaskProgram

if TYPE_CHECKING:
    from etdeploy.export.worker.diff.instrument import WrittenGraph
    from etdeploy.export.worker.language.model import LanguageModel
    from etdeploy.export.worker.tasks.load import TaskModel


_VERSIONS = ("torch", "torchao", "executorch")


@dataclass(frozen=True)
class LoweredMethod:
    """A method that was lowered, with its values.

    Attributes:
        outputs: Of the module, run eagerly; quantized where the scheme quantizes before lowering.
            None if it was not run.
        set_outputs: What the module gave for each of `sets`, the inputs of the recipe's sizes.
        counts: Of delegated nodes.
        convolved: The multiplications of convolutions that no delegate computes.
        state: Buffers that it writes to.
    """

    traced: Traced
    inputs: Values
    details: dict[str, Any]
    notes: tuple[str, ...]
    sets: tuple[SizedCall, ...]
    set_outputs: tuple[Values, ...]
    counts: dict[str, Any]
    convolved: float
    state: tuple[str, ...]
    outputs: Values | None = None
    losses: tuple[OutputLoss, ...] = ()


@dataclass(frozen=True)
class Lowered:
    """A lowered model: its methods in the order of the factory, and the program.

    Attributes:
        shared_bytes: Of the weights that several methods have in common, as the factory made them.
        inspected: What is in the written program; None before.
        saved_bytes: By which the program is smaller, since equal weights are stored once.
        rewrites: What `rewrites/gain.py` reports; empty where none were tried.
        etrecord: Whether it has an ETRecord.
        notes: About the program, for the user.
        graph: With the observed nodes; None where none are.
        evaluate: Adds what the modules give, and a language model's texts; to be called once.
    """

    methods: dict[str, LoweredMethod]
    program: Any
    shared_bytes: int
    language: LanguageModel | None = None
    task: TaskModel | None = None
    inspected: Program | None = None
    saved_bytes: int = 0
    rewrites: Mapping[str, Any] = field(default_factory=dict)
    etrecord: bool = False
    notes: tuple[str, ...] = ()
    graph: WrittenGraph | None = None
    evaluate: Callable[[Lowered], Lowered] | None = None

    def evaluated(self) -> Lowered:
        """The same with what `evaluate` adds."""
        return replace(self.evaluate(self), evaluate=None) if self.evaluate else self

    @property
    def graphs(self) -> list[Any]:
        """The traced graphs of all methods."""
        return graphs({name: method.traced for name, method in self.methods.items()})


def write_program(spec: ExportSpec, folder: Path, lowered: Lowered) -> Lowered:
    """Writes the program, and its ETRecord if it can have one; neither is in memory any more."""
    with (
        explain_errors("writing the program failed:", lowered.graphs, spared=OSError),
        (folder / PROGRAM_FILE).open("wb") as stream,
    ):
        lowered.program.write_to_file(stream)
    if lowered.etrecord:
        path, weights = folder / ETRECORD_FILE, lowered.language is None
        if why := _unwritten_etrecord(lowered.program, path, weights=weights):
            note = f"There is no ETRecord, so a profile does not name modules: {why}."
            lowered = replace(lowered, etrecord=False, notes=(*lowered.notes, note))
    once = lowering_of(spec).stores_once
    saved = store_once(folder / PROGRAM_FILE) if once else 0
    return replace(lowered, program=None, saved_bytes=saved)


def _unwritten_etrecord(program: Any, path: Path, *, weights: bool) -> str | None:
    """Writes a program's ETRecord; why that does not work, as with `-n` of a size in a graph.

    ExecuTorch 1.5.1 does not serialize that (`_SYM_INT_OPS` of exir/serde/export_serialize.py).
    """
    record = program.get_etrecord()
    # The graphs after passes that change little, with all weights again.
    record.graph_map = None
    if not weights:
        for graph in record.edge_dialect_program.values():
            graph._state_dict = {name: _without_values(t) for name, t in graph.state_dict.items()}
    try:
        record.save(str(path))
    except Exception as error:
        if isinstance(error, OSError) or is_memory(error):
            raise
        path.unlink(missing_ok=True)
        return exception_text(error).rstrip(".")
    return None


def _without_values(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape and type, which takes no room in a file."""
    return tensor.new_zeros(()).expand(tensor.shape)


def write_methods(folder: Path, lowered: Lowered) -> dict[str, MethodValues]:
    """Writes inputs and expected outputs of every method, below folders of its name if several."""
    several = len(lowered.methods) > 1
    return {
        name: _written(folder, method, f"/{name}" if several else "")
        for name, method in lowered.methods.items()
    }


def _written(folder: Path, method: LoweredMethod, below: str) -> MethodValues:
    module, outputs = method.traced.source.module, method.outputs
    steps = () if outputs is None else output_quantization(method.traced.program)
    taken = flat_inputs(module, method.traced.source.inputs)
    by_pixel = [each.name for each in taken if is_by_pixel(each.value)]
    return MethodValues(
        inputs=write_values(folder, f"inputs{below}", method.inputs),
        expected=() if outputs is None else write_values(folder, f"expected{below}", outputs),
        output_quantization=steps,
        quantization_loss=method.losses,
        sets=write_sets(folder, module, method.sets, method.set_outputs, below),
        details={
            "delegation": method.counts,
            **method.details,
            **({BY_PIXEL: by_pixel} if by_pixel else {}),
        },
    )


def provenance_of(
    spec: ExportSpec,
    folder: Path,
    lowered: Lowered,
    written: Mapping[str, MethodValues],
    retraced: str | None,
) -> Provenance:
    """How the program in the folder was made; files and times are not known here."""
    made = Provenance(
        source=spec.source,
        backend=spec.backend,
        quantization=spec.quantization,
        method=first_method(tuple(written)),
        methods=dict(written),
        etrecord=lowered.etrecord,
        versions=_versions(spec),
        details={
            "bytes": _sizes(folder),
            **({RETRACED: retraced} if retraced else {}),
            **({REWRITES: dict(lowered.rewrites)} if lowered.rewrites else {}),
        },
        generation=_generation(lowered),
        task=_task_program(lowered),
        notes=(*((retraced,) if retraced else ()), *_notes(spec, lowered)),
    )
    return made if len(written) > 1 else made.of(made.method)


def _generation(lowered: Lowered) -> Generation | None:
    if lowered.language is None:
        return None
    mode = load_mode(lowered.inspected.operators if lowered.inspected else ())
    return lowered.language.generation.model_copy(update={"load_mode": mode})


def _task_program(lowered: Lowered) -> TaskProgram | None:
    if lowered.task is None:
        return None
    outputs = lowered.methods[FORWARD].outputs
    return lowered.task.program({each.name: each.value for each in outputs} if outputs else None)


def _sizes(folder: Path) -> dict[str, int]:
    files = (folder / name for name in (PROGRAM_FILE, ETRECORD_FILE))
    return {file.name: file.stat().st_size for file in files if file.is_file()}


def _versions(spec: ExportSpec) -> dict[str, str]:
    names = (*_VERSIONS, *loading_tools(spec))
    found = {name: installed_version(name) for name in names} | backend_versions(spec)
    return {"python": platform.python_version()} | {n: v for n, v in found.items() if v}


def _notes(spec: ExportSpec, lowered: Lowered) -> Iterator[str]:
    methods = lowered.methods
    yield from rewrite_notes(lowered.rewrites) if lowered.rewrites else ()
    yield from lowered.notes
    yield from lowered.language.loaded.notes if lowered.language else ()
    yield from lowered.task.notes if lowered.task else ()
    yield from _of_each(methods, _model_notes)
    yield from release_notes(spec, shortens=shortens(spec))
    if not lowered.language:  # whose cache is what everybody expects of it
        yield from _of_each(methods, _state_notes)
    lowering = lowering_of(spec)
    yield from lowering.notes(spec)
    # A table has no operator that a backend would take.
    for name, method in ((n, m) for n, m in methods.items() if n != TOKEN_EMBEDDING):
        what = "the model" if len(methods) == 1 else f"the method {name}"
        yield from delegation_notes(spec.backend, method.counts, lowering.apart, what)
    if lowering.stores_once:
        model = lowered.language.loaded.model if lowered.language else None
        yield from tied_notes(model, lowered.saved_bytes)
    shares = lowering.shares_weights(spec) if lowered.shared_bytes else True
    if shares is None and lowered.inspected:
        yield from packed_weights_note(str(spec.backend), lowered.inspected, lowered.shared_bytes)
    elif shares is False:
        note = separate_weights_note(str(spec.backend), lowered.shared_bytes)
        yield f"{note} {lowering.sharing}".rstrip()


def _of_each(
    methods: Mapping[str, LoweredMethod], notes: Callable[[LoweredMethod], Iterable[str]]
) -> Iterator[str]:
    """The notes of every method; what holds for all is said once, the rest with the method."""
    found = {name: list(notes(method)) for name, method in methods.items()}
    for note in dict.fromkeys(note for each in found.values() for note in each):
        those = [name for name, each in found.items() if note in each]
        all_of_them = len(those) == len(methods)
        yield note if all_of_them else f"In {' and '.join(those)}: {note[0].lower()}{note[1:]}"


def _model_notes(method: LoweredMethod) -> Iterator[str]:
    yield from method.traced.source.notes
    yield from method.notes
    yield from fixed_notes(method.traced.source, method.traced.program)
    yield from constant_notes(method.inputs)
    yield from recurrence_notes(method.traced.original or method.traced.program)


def _state_notes(method: LoweredMethod) -> Iterator[str]:
    if method.state:
        yield (
            f"The model keeps state between calls ({', '.join(method.state)}); the expected "
            "outputs are those of its first call."
        )


_DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor"


def output_quantization(
    traced: torch.export.ExportedProgram,
) -> tuple[OutputQuantization | None, ...]:
    """Scale and zero point of each output that a dequantization gives directly.

    PT2E quantizes layout operators like `view` on their own, so that even behind those the last
    node is a dequantization. Dynamic quantization computes its scale as it runs: such an output
    has none here.
    """
    nodes = {node.name: node for node in traced.graph.nodes}
    return tuple(
        _quantization_of(nodes.get(str(name))) for name in traced.graph_signature.user_outputs
    )


def _quantization_of(node: torch.fx.Node | None) -> OutputQuantization | None:
    if node is None or not str(node.target).startswith(_DEQUANTIZE):
        return None
    # Its schema: (input, scale, zero_point, quant_min, quant_max, dtype)
    scale, zero_point, dtype = (node.args[i] for i in (1, 2, 5))
    if not isinstance(scale, float) or not isinstance(zero_point, int):
        return None
    return OutputQuantization(
        scale=scale, zero_point=zero_point, dtype=str(dtype).removeprefix("torch.")
    )
