"""The memory that the export of a language model takes: foreseen from headers, and measured.

The weights of a checkpoint are mapped, and made floats as they are used, where a scheme of linear
layers quantizes them; otherwise they are in memory as 32-bit floats. What they are quantized to is
in memory, too, or in files, of which the kernel drops pages and reads them again. What remains then
is what the libraries take, the graphs, and a few tensors that are computed at a time.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etdeploy.backends.registry import backend_named
from etdeploy.backends.schemes import DEFAULT, LINEAR_SCHEMES
from etdeploy.backends.values import LanguageModelSizes
from etdeploy.core.console import size
from etdeploy.core.errors import Blocker
from etdeploy.export.hf.check import folder_here
from etdeploy.export.hf.config import ConfigProblem, read_config
from etdeploy.export.hf.gguf import read_header
from etdeploy.export.hf.prequantized import read_prequantized
from etdeploy.export.hf.tensors import checkpoint_tensors
from etdeploy.export.spec import ExportSpec
from etdeploy.program.generation import CACHE_BITS
from etdeploy.recipe.sections.export import ExportGeneration
from etdeploy.recipe.tasks import TEXT_GENERATION

_MIB = 1 << 20
# The exporter computes in 32-bit floats, whatever the checkpoint has.
_FLOAT_BYTES = 4
# Of the weights as floats, in memory: at the peak; of a quantized model while it is evaluated with
# both, and while it is lowered.
_COPIES, _EVALUATED_COPIES, _LOWERED_COPIES = 3.0, 1.5, 0.95
# Of a weight whose floats are computed by rows: quantized, packed, and in the program.
_ROWWISE_BYTES = 2.05
# The same in files.
_DISK_BYTES = 2.0
# Python with PyTorch, transformers and ExecuTorch; the graphs of a layer, of both methods.
LIBRARIES_BYTES, _LAYER_BYTES = 560 * _MIB, 30 * _MIB
# Of the embeddings, which are a constant in 8 bits, while they are lowered and written.
_CONSTANT_COPIES = 1.5
# Of a program that is loaded: its packed weights. What is mapped of files should stay meanwhile.
_LOADED_COPIES, _WORKING_BYTES = 1.25, 64 * _MIB
# Of the logits that are compared at a time, with those of the same call and what is computed.
_LOGITS_COPIES, _LOGITS_POSITIONS = 8, 64


@dataclass(frozen=True)
class MachineMemory:
    """What a process may use: of the machine, or of the control group that limits it.

    Attributes:
        total_bytes: With swap.
        free_bytes: What is available to processes, with what this one has already.
    """

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class MemoryForecast:
    """The peak of an export.

    Attributes:
        held_bytes: With the weights, or the quantized ones, in memory.
        mapped_bytes: With the quantized weights in files; None where they cannot be: with
            other schemes, with adapters, or of a checkpoint that is quantized.
        least_bytes: What weights and cache take with the libraries: as 32-bit floats, unless floats
            are computed by rows.
        disk_bytes: Of the files, if there are any.
        blocker: What the backend refuses the model for; None for nothing.
        sentences: What the backend says about a model of these sizes.
    """

    held_bytes: int
    mapped_bytes: int | None
    least_bytes: int
    disk_bytes: int
    machine: MachineMemory
    blocker: Blocker | None = None
    sentences: tuple[str, ...] = ()

    @property
    def maps(self) -> bool:
        """Whether the quantized weights are to be in files, since they do not fit in memory."""
        return self.mapped_bytes is not None and self.held_bytes > self.machine.free_bytes

    @property
    def expected_bytes(self) -> int:
        """The peak of the way that is taken."""
        return self.mapped_bytes if self.maps and self.mapped_bytes else self.held_bytes

    def notes(self) -> Iterator[str]:
        """What the backend says, and sentences where memory is scarce."""
        yield from self.sentences
        free, expected = size(self.machine.free_bytes), size(self.expected_bytes)
        if self.maps:
            yield (
                "The quantized weights stay in files during the export: with them in memory, it "
                f"would take {size(self.held_bytes)}, and {free} were free. "
                f"It is expected to take {expected}."
            )
        if self.expected_bytes > self.machine.free_bytes:
            yield (
                f"The export may need {expected} of memory, and {free} were free when it began. "
                "Close other programs, or name a smaller context."
            )


def memory_forecast(spec: ExportSpec, folder: Path) -> MemoryForecast | None:
    """The forecast for a sound checkpoint; None where its headers do not tell."""
    config = read_config(folder)
    if isinstance(config, ConfigProblem) or spec.generation is None:
        return None
    parameters, shapes, stored_bytes = _sizes(folder, config)
    asked = spec.generation
    floats, caches = _FLOAT_BYTES * parameters, cache_bytes(config, asked)
    linear, graphs = spec.quantization in LINEAR_SCHEMES, _graph_bytes(config)
    alike = linear and not spec.all_adapters  # which make other weights
    written = parameters + _tied(shapes, config)
    held, least = floats * _COPIES, float(floats)
    if alike and stored_bytes is not None:
        held = least = written * (_ROWWISE_BYTES + stored_bytes) + graphs
    elif linear:
        held = max(floats * _EVALUATED_COPIES, floats * _LOWERED_COPIES + graphs)
    backend, request = backend_named(spec.backend or DEFAULT), spec.request
    # Of a model with an encoder, each method has other weights.
    alone = spec.task in (None, TEXT_GENERATION)
    mapped = alike and bool(shapes)
    sizes = language_model_sizes(spec, config, parameters, shapes) if alone else None
    own = backend.language_export_bytes(request, sizes) if sizes else None
    return MemoryForecast(
        held_bytes=own or LIBRARIES_BYTES + round(held) + caches,
        mapped_bytes=_mapped_bytes(list(shapes.values()), config, caches) if mapped else None,
        least_bytes=LIBRARIES_BYTES + round(least) + caches,
        disk_bytes=round(written * _DISK_BYTES),
        machine=machine_memory(),
        blocker=backend.language_blocker(request, sizes) if sizes else None,
        sentences=tuple(backend.language_notes(request, sizes)) if sizes else (),
    )


def language_model_sizes(
    spec: ExportSpec,
    config: Mapping[str, Any],
    parameters: int,
    shapes: Mapping[str, tuple[int, ...]],
) -> LanguageModelSizes:
    """What a backend is asked about; `shapes` are those of the checkpoint's tensors."""
    generation = spec.generation or ExportGeneration()
    tables = _tables(shapes, config)
    layers = {
        path: weights
        for name, shape in shapes.items()
        if len(shape) > 1 and shape not in tables
        for path, weights in _parts(name.removesuffix(".weight"), shape, config)
    }
    if tables:
        layers["lm_head"] = math.prod(tables[-1])
    vocabulary, hidden, heads = (
        value if isinstance(value, int) else 0
        for value in map(config.get, ("vocab_size", "hidden_size", "num_attention_heads"))
    )
    whole = {**config, "sliding_window": None}  # a cache of inputs has all positions in each layer
    alone = generation.methods != "hybrid"
    return LanguageModelSizes(
        parameters=parameters + _tied(shapes, config),
        embedded=vocabulary * hidden,
        heads=heads,
        cached_values=cache_bytes(whole, ExportGeneration(context=generation.context))
        // _FLOAT_BYTES,
        context=generation.context,
        prefill_tokens=1 if generation.methods == "kv" else generation.prefill_tokens,
        methods=1 if alone else 2,
        layers=layers,
    )


def _tables(
    shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]
) -> list[tuple[int, ...]]:
    """The shapes of the embeddings and of the output layer."""
    return [each for each in shapes.values() if each and each[0] == config.get("vocab_size")]


def _tied(shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]) -> int:
    """The weights that a program has twice: of embeddings which are the output layer, too."""
    tables = _tables(shapes, config)
    return math.prod(tables[0]) if len(tables) == 1 else 0


def _parts(
    path: str, shape: tuple[int, ...], config: Mapping[str, Any]
) -> Iterator[tuple[str, int]]:
    """A layer and its weights; of a packed one for queries, keys and values each part.

    The static path takes them apart, `Packed` in `worker/language/static_cache.py`.
    """
    queries, heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if path.endswith(".qkv_proj") and isinstance(queries, int):
        rows = shape[0] // (queries + 2 * (heads or queries))
        for part, count in enumerate((queries, heads or queries, heads or queries)):
            yield f"{path}.parts.{part}", count * rows * math.prod(shape[1:])
    else:
        yield path, math.prod(shape)


def _sizes(
    folder: Path, config: Mapping[str, Any]
) -> tuple[int, dict[str, tuple[int, ...]], int | None]:
    """Number of weights, shapes of those that can be mapped, and how many bytes each takes first.

    A weight that is quantized is not mapped, and takes a byte as an integer. None for 32-bit
    floats: of GGUF, of 8-bit floats, and of experts, which transformers joins to one tensor.
    """
    if folder.is_file():
        return read_header(folder).parameters, {}, None
    tensors = checkpoint_tensors(folder)
    if packed := read_prequantized(config, tensors):
        floats = any(layer.layout == "float" for layer in packed.layers)
        return packed.parameter_count(tensors.infos), {}, None if floats else 1
    shapes = {name: info.shape for name, info in tensors.infos.items()}
    experts = any(".experts." in name for name in shapes)
    return sum(map(math.prod, shapes.values())), shapes, None if experts else 0


def _graph_bytes(config: Mapping[str, Any]) -> int:
    layers = config.get("num_hidden_layers")
    return layers * _LAYER_BYTES if isinstance(layers, int) else 0


def _mapped_bytes(shapes: list[tuple[int, ...]], config: Mapping[str, Any], caches: int) -> int:
    vocabulary = config.get("vocab_size")
    rows = vocabulary if isinstance(vocabulary, int) else 0
    tables = [math.prod(shape) for shape in shapes if shape and shape[0] == rows]
    others = [math.prod(shape) for shape in shapes if shape and shape[0] != rows]
    # A byte for each value of the largest layer, while it is packed.
    largest = max(round(_CONSTANT_COPIES * max(tables, default=0)), max(others, default=0))
    logits = _LOGITS_COPIES * _LOGITS_POSITIONS * rows * _FLOAT_BYTES
    return LIBRARIES_BYTES + max(logits, _graph_bytes(config) + largest) + 2 * caches


def memory_notes(spec: ExportSpec) -> Iterator[str]:
    """Sentences about the export of a checkpoint on this machine where memory is scarce."""
    folder = folder_here(spec.hf) if spec.hf else None
    if folder and (forecast := memory_forecast(spec, folder)):
        yield from forecast.notes()


def memory_refusal(forecast: MemoryForecast | None, folder: Path) -> ConfigProblem | None:
    """The refusal of a model that this machine cannot export, or that its backend refuses."""
    if forecast is None:
        return None
    if refused := forecast.blocker:
        return ConfigProblem(refused.why, refused.remedy, place=str(folder))
    total, mapped = forecast.machine.total_bytes, forecast.mapped_bytes
    if min(forecast.least_bytes, mapped or forecast.least_bytes) <= total:
        return None
    if mapped:
        what = f"the export needs about {size(mapped)} of memory, with quantized weights in files,"
        remedy = "Export it on a larger machine, or name a smaller model or context."
    else:
        what = (
            f"the export needs more than {size(forecast.least_bytes)} of memory, for the weights "
            "and the cache as 32-bit floats,"
        )
        remedy = (
            "Export it on a larger machine, or name a smaller model or context. With\n"
            f"--set export.quantization={LINEAR_SCHEMES[0]} quantized weights can stay in files."
        )
    return ConfigProblem(f"{what} and this machine has {size(total)}", remedy, place=str(folder))


def device_refusal(spec: ExportSpec, device: str, memory_bytes: int) -> ConfigProblem | None:
    """The refusal of a context whose cache alone is larger than the memory of the device."""
    folder, asked = folder_here(spec.hf) if spec.hf else None, spec.generation
    config = read_config(folder) if folder else None
    if asked is None or config is None or isinstance(config, ConfigProblem):
        return None
    needed = cache_bytes(config, asked)
    if needed <= memory_bytes:
        return None
    # Half of it, for the weights and the system.
    fitting = asked.context * memory_bytes // (2 * needed)
    remedy = f"Name a shorter context: --context {2 ** max(4, fitting.bit_length() - 1)}"
    if asked.cache == "float32" and backend_named(spec.backend or DEFAULT).own_kernels:
        remedy += "\nor a smaller cache: --set export.generation.cache=int8"
    return ConfigProblem(
        f"the cache of {asked.context:,} positions takes {size(needed)} as {asked.cache}, and "
        f"{device} has {size(memory_bytes)} of memory",
        remedy,
        key=("export", "generation", "context"),
    )


def unloaded_note(program: Path) -> str | None:
    """The sentence about a program that is not loaded for a check, since memory lacks for that."""
    needed = round(program.stat().st_size * _LOADED_COPIES) + _WORKING_BYTES
    free = machine_memory().free_bytes - own_bytes()
    if needed <= free:
        return None
    return (
        f"The program was not loaded on this machine after it was written: that takes "
        f"{size(needed)} of memory, and {size(free)} were free."
    )


def memory_details(forecast: MemoryForecast | None, peak_bytes: int) -> dict[str, Any]:
    """What `export.json` says about the memory of an export."""
    if forecast is None:
        return {"peak_bytes": peak_bytes}
    return {
        "expected_bytes": forecast.expected_bytes,
        "peak_bytes": peak_bytes,
        "weights": "files" if forecast.maps else "memory",
    }


def cache_bytes(config: Mapping[str, Any], asked: ExportGeneration) -> int:
    """The least that the cache of a model takes, by the names of Llama's configuration.

    2 x heads of keys x size of a head x positions, for each layer; a layer with a sliding window
    has at least its positions. A row of 8-bit numbers has a scale of four bytes. 0 where the
    configuration has other names.
    """
    layers, heads = (config.get(name) for name in ("num_hidden_layers", "num_attention_heads"))
    hidden, shared = config.get("hidden_size"), config.get("num_key_value_heads")
    if not (isinstance(layers, int) and isinstance(heads, int) and isinstance(hidden, int)):
        return 0
    head = config.get("head_dim")
    head_size = head if isinstance(head, int) else hidden // max(heads, 1)
    kv_heads = shared if isinstance(shared, int) else heads
    bits = CACHE_BITS[asked.cache]
    row = head_size * bits // 8 + (_FLOAT_BYTES if bits == 8 else 0)
    context = min(asked.context, asked.window + asked.sinks) if asked.window else asked.context
    return 2 * kv_heads * row * _positions(config, layers, context)


def _positions(config: Mapping[str, Any], layers: int, context: int) -> int:
    """The sum of all layers' positions, of which those with a window may need fewer."""
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    if not isinstance(window, int) or config.get("use_sliding_window") is False:
        return layers * context
    # Without a list, it may be any of the layers: older files do not say.
    whole = kinds.count("full_attention") if isinstance(kinds, list) else 0
    return whole * context + (layers - whole) * min(window, context)


def machine_memory() -> MachineMemory:
    """The memory of this machine, or of the control groups that this process is in."""
    import psutil

    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    total, free = memory.total + swap.total, memory.available + swap.free
    for limit, unused in _group_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")):
        total, free = min(total, limit), min(free, unused)
    return MachineMemory(total, free + own_bytes())


# Of the two versions: where the groups are, the limit, what is used, and the pages of files that
# the kernel can drop (https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files,
# https://docs.kernel.org/admin-guide/cgroup-v1/memory.html).
_GROUPS = {
    "memory": (
        "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
    "": ("", "memory.max", "memory.current", ("inactive_file", "active_file")),
}


def _group_limits(membership: Path, root: Path) -> Iterator[tuple[int, int]]:
    """Limit and free bytes of each control group above this process; none without groups."""
    for line in _lines(membership):
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers not in _GROUPS:
            continue
        base, limit_name, used_name, dropped = _GROUPS[controllers]
        group = root / base / path.strip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(root / base):
                break
            limit, used = (_lines(folder / name)[:1] for name in (limit_name, used_name))
            if limit and used and limit[0].isdecimal() and used[0].isdecimal():
                stat = dict(line.split() for line in _lines(folder / "memory.stat"))
                reusable = sum(int(stat.get(name, 0)) for name in dropped)
                yield int(limit[0]), max(0, int(limit[0]) - int(used[0]) + reusable)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


_STATM = Path("/proc/self/statm")
# Its numbers count pages: all, those that are resident, those of them that are of files
# (https://man7.org/linux/man-pages/man5/proc_pid_statm.5.html).
_RESIDENT, _OF_FILES = 1, 2


def own_bytes() -> int:
    """The memory of this process, without the pages of files that it has mapped."""
    with OwnMemory() as own:
        return own.bytes()


class OwnMemory:
    """The memory of this process, read without opening a file each time."""

    def __init__(self) -> None:
        self._statm = os.open(_STATM, os.O_RDONLY) if _STATM.is_file() else None

    def __enter__(self) -> OwnMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._statm is not None:
            os.close(self._statm)

    def bytes(self) -> int:
        """How much it is now."""
        if self._statm is None:
            import psutil

            return int(psutil.Process().memory_info().rss)
        numbers = os.pread(self._statm, 200, 0).split()
        pages = int(numbers[_RESIDENT]) - int(numbers[_OF_FILES])
        return pages * os.sysconf("SC_PAGE_SIZE")


_INTERVAL_S = 0.05


class PeakMemory:
    """Watches the memory of this process, as `own_bytes` counts it, while the block runs.

    Its thread opens no file: a recorder of the files that are opened could not tell whose they are.
    """

    def __init__(self) -> None:
        self._own = OwnMemory()
        self._most = self._own.bytes()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._own.close()

    def bytes(self) -> int:
        """The most so far."""
        with self._lock:
            if not self._ended.is_set():
                self._most = max(self._most, self._own.bytes())
            return self._most

    def _watch(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            self.bytes()
