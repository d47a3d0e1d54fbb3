"""A finished `.pte` as a program folder: no torch, no child process."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.core.errors import ExportError
from etdeploy.core.hashing import sha256_file
from etdeploy.export.methods import only_method, require_method
from etdeploy.export.spec import ExportSpec
from etdeploy.program.folder import (
    EXPORT_INFO,
    PROGRAM_FILE,
    InputSet,
    Provenance,
    Stored,
    TensorFile,
)
from etdeploy.program.model import Method, Plain, Program, TensorInfo

if TYPE_CHECKING:
    import numpy as np

# Integer inputs are mostly indices (token ids, classes): small ones stay inside any table.
_LARGEST_INTEGER = 9


def write_finished(spec: ExportSpec, program: Program, folder: Path) -> None:
    """Fills a program folder from a finished program.

    Inputs are random, from the spec's seed: floats are normally distributed, integers from 0 to 9,
    booleans either. A dynamic dimension gets its largest size; a plain value is the one that the
    program was made with. There are no expected outputs.

    Args:
        spec: Names the program and the method.
        program: What inspection says of it.
        folder: The empty folder.

    Raises:
        ExportError: The method takes something that cannot be given.
        UsageError: The method is missing, or none is named and there are several.
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
        if isinstance(info, Plain):
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
