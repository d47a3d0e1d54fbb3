"""A finished `.pte` as a program folder: no torch, no child process."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.core.errors import ExportError
from etdeploy.core.hashing import sha256_file
from etdeploy.export.methods import require_method
from etdeploy.export.spec import ExportSpec
from etdeploy.program.folder import EXPORT_INFO, PROGRAM_FILE, Provenance, Stored, TensorFile
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
        UsageError: The method is missing.
    """
    if spec.program is None:
        raise ValueError("the spec names no finished program")
    source = Path(spec.program)
    wanted, methods = spec.method or "forward", {m.name: m for m in program.methods}
    require_method(wanted, methods, str(source))
    shutil.copyfile(source, folder / PROGRAM_FILE)
    inputs = _write_inputs(methods[wanted], spec.seed, folder, source)
    Provenance(
        source=spec.source,
        inputs=inputs,
        code_files={str(source): sha256_file(source)},
        notes=(
            f"The inputs of {source.name} are random, and its outputs are not checked: a finished "
            "program carries neither.",
        ),
    ).save(folder / EXPORT_INFO)


def _write_inputs(method: Method, seed: int, folder: Path, source: Path) -> tuple[Stored, ...]:
    import numpy as np

    random = np.random.default_rng(seed)
    (folder / "inputs").mkdir()
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
        path = f"inputs/{index}.bin"
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
