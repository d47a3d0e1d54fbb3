"""Ensures that a program is in the cache; exports it in a child process if it is not."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.backends.registry import backend_named
from etdeploy.backends.rewrites import as_everywhere, with_idle
from etdeploy.backends.values import Workstation
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import CacheEntry, Workspace
from etdeploy.core.diagnostics import Diagnosis
from etdeploy.core.errors import EtdeployError, ExportError, UsageError
from etdeploy.core.files.basic import find_disk_full_in_output, folder_files, working_folder
from etdeploy.core.files.locks import exclusive
from etdeploy.core.hashing import sha256_file
from etdeploy.core.processes import process
from etdeploy.core.values import Progress
from etdeploy.export.cache import ExportContext, ExportedProgram
from etdeploy.export.diagnostics import CRASH_FAILURES
from etdeploy.export.needs import check_needs, short_path
from etdeploy.export.preload import OWN_PROCESSES, WORKER, Exporter, worker_environment
from etdeploy.export.protocol import (
    FAILURE_FILE,
    SOURCES_FILE,
    SPEC_FILE,
    ExportFailure,
    ModelSources,
    parse_progress,
)
from etdeploy.export.spec import ExportSpec, only_method, require_method
from etdeploy.program.folder import (
    EXPORT_INFO,
    IDLE,
    PROGRAM_FILE,
    PROGRAM_INFO,
    REWRITES,
    InputSet,
    Provenance,
    Stored,
    TensorFile,
)
from etdeploy.program.model import Method, PlainValue, Program, TensorInfo

if TYPE_CHECKING:
    import numpy as np


KIND = CacheKind.PROGRAMS


def export_program(
    spec: ExportSpec,
    workspace: Workspace,
    progress: Progress,
    log: Path,
    exporter: Exporter = OWN_PROCESSES,
) -> ExportedProgram:
    """Returns the program folder of a spec, from the cache or by exporting.

    Args:
        spec: What is to be exported.
        workspace: The cache.
        progress: Called for each step.
        log: Gets everything that the worker process prints, with full tracebacks.
        exporter: Runs the worker process; `preloaded_exports` gives one that several exports share.

    Raises:
        ExportError: Something that the export needs is missing, or the export failed.
        OSError: The disk is full; the error names the file.
        Interrupted: The run was stopped; nothing is left behind.
    """
    check_needs(spec)
    situation = ExportContext.now(spec, workspace)
    # One at a time of all that may give the same program.
    family = ExportContext.now(_rewritten(spec, as_everywhere(spec.rewrites)), workspace)
    lock = workspace.lock_path("export", family.memory_path.stem)
    with exclusive(lock, f"the export of {spec.source}", progress):
        key = situation.known_key()
        if key and workspace.entry(KIND, key).is_sound():
            return _result(workspace.entry(KIND, key), cached=True)
        with _staging(workspace) as staging:
            folder = staging / "program"
            folder.mkdir()
            sources = _make(spec, staging, folder, progress, log, exporter)
            entry = workspace.entry(KIND, situation.key(sources))
            workspace.obtain(entry, lambda work: _move_files(folder, work))
        situation.remember(entry.key, sources)
        for names in with_idle(spec.rewrites, _idle(entry.path)):
            ExportContext.now(_rewritten(spec, names), workspace).remember_other(entry.key, sources)
        return _result(entry, cached=False)


def _rewritten(spec: ExportSpec, names: Sequence[str]) -> ExportSpec:
    return spec.model_copy(update={"rewrites": tuple(names)})


def _idle(folder: Path) -> Sequence[str]:
    """Rewrites without which the program would be the same, or with which."""
    made = Provenance.load_or_none(folder / EXPORT_INFO)
    found: Sequence[str] = made.details.get(REWRITES, {}).get(IDLE, ()) if made else ()
    return found


def _result(entry: CacheEntry, cached: bool) -> ExportedProgram:
    return ExportedProgram(
        folder=str(entry.path), key=entry.key, cached=cached, sha256=entry.digests()[PROGRAM_FILE]
    )


@contextmanager
def _staging(workspace: Workspace) -> Iterator[Path]:
    """A folder in the cache's own file system that is gone afterwards.

    The key of a program depends on the files that its code read, so it is known only after the
    export: the folder cannot have its final name before.
    """
    parent = workspace.root / KIND
    parent.mkdir(parents=True, exist_ok=True)
    with working_folder(parent, ".staging-") as folder:
        yield folder


def _make(
    spec: ExportSpec,
    staging: Path,
    folder: Path,
    progress: Progress,
    log: Path,
    exporter: Exporter,
) -> ModelSources:
    from etdeploy.program.inspect import inspect_file

    if spec.program:
        program = inspect_file(Path(spec.program))
        write_finished(spec, program, folder)
        program.save(folder / PROGRAM_INFO)
        return ModelSources()
    _run_worker(spec, staging, folder, progress, log, exporter)
    program = inspect_file(folder / PROGRAM_FILE)
    program.save(folder / PROGRAM_INFO)
    return ModelSources.load(staging / SOURCES_FILE)


def _run_worker(
    spec: ExportSpec,
    staging: Path,
    folder: Path,
    progress: Progress,
    log: Path,
    exporter: Exporter,
) -> None:
    spec_path = staging / SPEC_FILE
    spec.save(spec_path)
    backend_named(str(spec.backend)).prepare_export(spec.request, Workstation.this())
    outcome = exporter.run(
        process.Request(
            argv=(*WORKER, str(spec_path), str(folder)),
            env=worker_environment(spec),
            log=log,
            on_line=lambda line: _pass_on(line, progress),
        ),
        undo=lambda: _clear(staging, folder),
    )
    if outcome.ok:
        return
    # A full disk keeps the worker from describing its failure.
    if full := find_disk_full_in_output(outcome.stdout, staging, Path(tempfile.gettempdir())):
        raise full
    failure_path = staging / FAILURE_FILE
    failure = ExportFailure.load(failure_path) if failure_path.is_file() else None
    cause = None
    if failure is None or failure.kind == "lowering":
        cause = backend_named(str(spec.backend)).export_failure(outcome.stdout)
    raise failure_error(failure, log, cause) if failure else crash_error(outcome, log, cause)


def failure_error(
    failure: ExportFailure, log: Path, cause: Diagnosis | None = None
) -> EtdeployError:
    """The error for a failure that the worker described."""
    if cause:
        failure = failure.model_copy(update={"message": cause.cause, "remedy": cause.remedy})
    message = failure.message
    if failure.method:
        message += f" (method {failure.method})"
    if failure.operator and failure.operator not in message:
        message += f" (operator {failure.operator})"
    if failure.code:
        message += f"\n    {failure.code}"
    # What is asked of the model does not fit it, however late that is found.
    kind = UsageError if failure.kind == "speech" else ExportError
    return kind(message, place=_place(failure), remedy=failure.remedy, log=log)


def crash_error(outcome: process.Outcome, log: Path, cause: Diagnosis | None = None) -> ExportError:
    """The error for a worker that ended without a description; see `failure_error`."""
    end = outcome.signal_name or f"exit code {outcome.exit_code}"
    found = cause or CRASH_FAILURES.diagnose(end)
    if found is None:
        raise ValueError(end)
    return ExportError(found.cause, remedy=found.remedy, log=log)


def _place(failure: ExportFailure) -> str | None:
    if failure.file is None:
        return None
    path = short_path(failure.file)
    return path if failure.line is None else f"{path}:{failure.line}"


def _clear(staging: Path, folder: Path) -> None:
    """Leaves of an attempt only the spec."""
    shutil.rmtree(folder)
    folder.mkdir()
    for name in (SOURCES_FILE, FAILURE_FILE):
        (staging / name).unlink(missing_ok=True)


def _pass_on(line: str, progress: Progress) -> None:
    if step := parse_progress(line):
        progress(*step)


def _move_files(source: Path, target: Path) -> None:
    for name in folder_files(source):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(source / name, target / name)


# Integer inputs are mostly indices (token ids, classes): small ones stay inside any table.
_LARGEST_INTEGER = 9


def write_finished(spec: ExportSpec, program: Program, folder: Path) -> None:
    """Fills a program folder from a finished program.

    Inputs are random, from the spec's seed: floats are normally distributed, integers from 0 to 9,
    booleans either. A dynamic dimension gets its largest size; a plain value is the one that the
    program was made with. There are no expected outputs.
    """
    if spec.program is None:
        raise ValueError("the spec names no finished program")
    source = Path(spec.program)
    methods = {m.name: m for m in program.methods}
    wanted = spec.method or only_method(program, str(source))
    require_method(wanted, tuple(methods), str(source))
    shutil.copyfile(source, folder / PROGRAM_FILE)
    method = methods[wanted]
    inputs = _write_inputs(method, spec.seed, folder, "inputs", source)
    sets = tuple(_write_set(spec, name, method, folder, source) for name in spec.sizes)
    Provenance(
        source=spec.source,
        method=wanted,
        inputs=inputs,
        sets=sets,
        code_files={str(source): sha256_file(source)},
        notes=(
            f"The inputs of {source.name} are random, and its outputs are not checked: a finished "
            "program carries neither.",
        ),
    ).save(folder / EXPORT_INFO)


def _write_set(spec: ExportSpec, name: str, method: Method, folder: Path, source: Path) -> InputSet:
    """The inputs of a size; a dimension is named by its input's number, `input_0.1`."""
    shapes = {i: list(t.shape) for i, t in enumerate(method.inputs) if isinstance(t, TensorInfo)}
    for key, size in spec.sizes[name].items():
        place = spec.place("benchmark", "sizes", name, key)
        input_name, _, dim = key.rpartition(".")
        spots = [i for i in shapes if input_name == f"input_{i}"]
        if not spots or not dim.isdecimal() or int(dim) >= len(shapes[spots[0]]):
            raise ExportError(
                f"there is no dimension {key} in the method {method.name}", place=place,
                remedy="A finished program does not name its dimensions: input_0.1 is dimension 1 "
                "of the\nfirst input. Show all with: "
                f"etdeploy inspect {shlex.quote(str(source))}",
            )  # fmt: skip
        _set_size(method, shapes[spots[0]], spots[0], int(dim), size, place)
    sized = tuple(
        t.model_copy(update={"shape": tuple(shapes[i])}) if isinstance(t, TensorInfo) else t
        for i, t in enumerate(method.inputs)
    )
    changed = method.model_copy(update={"inputs": sized})
    inputs = _write_inputs(changed, spec.seed, folder, f"inputs/{name}", source)
    return InputSet(name=name, sizes=spec.sizes[name], inputs=inputs)


def _set_size(
    method: Method, shape: list[int], index: int, dim: int, size: int, place: str
) -> None:
    info = method.inputs[index]
    largest = shape[dim]
    if not (isinstance(info, TensorInfo) and info.dynamic) and size != largest:
        raise ExportError(f"input {index} takes the shape {shape} only", place=place)
    if size > largest:
        raise ExportError(
            f"{size} is too large for dimension {dim} of input {index}; the program takes up to "
            f"{largest}",
            place=place,
        )
    shape[dim] = size


def _write_inputs(
    method: Method, seed: int, folder: Path, name: str, source: Path
) -> tuple[Stored, ...]:
    import numpy as np

    random = np.random.default_rng(seed)
    (folder / name).mkdir(exist_ok=True)
    files: list[Stored] = []
    for index, info in enumerate(method.inputs):
        if isinstance(info, PlainValue):
            files.append(info)
            continue
        if info is None:
            raise ExportError(
                f"input {index} of the method {method.name} is neither a tensor nor a number, "
                "a boolean or None; nothing else can be given",
                place=str(source),
                remedy="Export the model with that value fixed in the module.",
            )
        path = f"{name}/{index}.bin"
        (folder / path).write_bytes(_random_bytes(info, random, index, source))
        files.append(TensorFile(path=path, dtype=info.dtype, shape=info.shape))
    return tuple(files)


def _random_bytes(info: TensorInfo, random: np.random.Generator, index: int, source: Path) -> bytes:
    """Little-endian bytes of a random tensor."""
    import numpy as np

    if info.dtype == "bool":
        return random.integers(0, 2, info.shape, dtype=np.uint8).tobytes()
    if info.dtype == "bfloat16":
        # The upper half of a 32-bit float, rounded towards zero.
        words = random.standard_normal(info.shape, dtype=np.float32).view(np.uint32)
        return (words >> 16).astype("<u2").tobytes()
    if info.dtype in ("float16", "float32", "float64"):
        values = random.standard_normal(info.shape)
        return values.astype(np.dtype(info.dtype).newbyteorder("<")).tobytes()
    if info.dtype in ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"):
        integers = random.integers(0, _LARGEST_INTEGER + 1, info.shape)
        return integers.astype(np.dtype(info.dtype).newbyteorder("<")).tobytes()
    raise ExportError(
        f"input {index} has the data type {info.dtype}, for which no random values are made",
        place=str(source),
    )
