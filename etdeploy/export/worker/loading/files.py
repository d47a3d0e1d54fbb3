"""Exported programs and state dicts, read without running any code that they might carry.

torch.export.load runs code from several entries of an archive: pickles, compiled code, and strings
of the program's JSON that become Python code (sizes, guards, names, operators; torch 2.13,
torch/export/pt2_archive/_package.py, torch/_export/serde/serialize.py, torch/fx/graph.py). Here
pickles are read with `weights_only`, and anything else that could run code is refused first.
"""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch

from etdeploy.core.commands import python_command
from etdeploy.core.console import listed
from etdeploy.core.files.basic import open_regular
from etdeploy.export.worker.failures import WorkerError, describe, exception_text, fail

_SAVE_AGAIN = "Write it again with torch.export.save, in the environment of etdeploy."
_DISTRUST = (
    "If you trust whoever wrote the file, load it in a factory (model.python) that returns\n"
    "torch.export.load(path).module() and the example inputs."
)


def load_exported(path: Path) -> torch.export.ExportedProgram:
    """Return the program called `model` of an archive."""
    from torch.export.pt2_archive._package import load_pt2

    try:
        with ZipFile(path):  # its message is shorter than torch's
            _check_archive(path)
        with without_pickled_code():
            programs = load_pt2(str(path)).exported_programs
    except (MemoryError, WorkerError):
        raise
    except _UnsafeError as error:
        raise _refused(path, str(error)) from error
    except pickle.UnpicklingError as error:
        what = "a weight, a constant or an example input is a Python object other than a tensor"
        raise _refused(path, what) from error
    except Exception as error:
        version = str(torch.__version__).partition("+")[0]  # without the name of the build
        raise fail(
            "exported-file",
            f"the exported program cannot be read ({exception_text(error)}); it is damaged, or "
            f"another version of PyTorch than {version} wrote it",
            remedy=_SAVE_AGAIN,
            file=str(path),
        ) from error
    if "model" not in programs:
        names = ", ".join(sorted(programs)) or "none"
        raise fail(
            "exported-file",
            f"the archive has no program called 'model'; it has {names}",
            remedy=_SAVE_AGAIN,
            file=str(path),
        )
    return programs["model"]


class _UnsafeError(Exception):
    """An entry of the archive could run code."""


def _refused(path: Path, what: str) -> WorkerError:
    return fail(
        "exported-file",
        f"the exported program was not loaded, since it could run code: {what}",
        remedy=_DISTRUST,
        file=str(path),
    )


@contextmanager
def without_pickled_code() -> Iterator[None]:
    """Let torch.load read tensors only, even where its caller asks for `weights_only=False`."""
    before = {name: os.environ.pop(name, None) for name in (_SAFE, _UNSAFE)}
    os.environ[_SAFE] = "1"
    try:
        yield
    finally:
        del os.environ[_SAFE]
        os.environ.update({name: value for name, value in before.items() if value is not None})


# torch.load refuses to work with both of them.
_SAFE, _UNSAFE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


def _check_archive(path: Path) -> None:
    from torch.export.pt2_archive import PT2ArchiveReader, constants

    # The loader's own reader: another one might see other entries in the same file.
    with PT2ArchiveReader(str(path)) as archive:
        names = archive.get_file_names()
        for name in names:
            if name.startswith(constants.AOTINDUCTOR_DIR):
                raise _UnsafeError(f"{name} is compiled code")
            if name.startswith(constants.CONSTANTS_DIR) and name.endswith(".json"):
                _check_constants(name, json.loads(archive.read_bytes(name)))
            if name.startswith(constants.MODELS_DIR):
                _check_program(json.loads(archive.read_bytes(name)), name)


def _check_constants(file: str, content: Any) -> None:
    from torch.export.pt2_archive.constants import TENSOR_CONSTANT_FILENAME_PREFIX

    for name, payload in content["config"].items():
        if not payload["path_name"].startswith(TENSOR_CONSTANT_FILENAME_PREFIX):
            raise _UnsafeError(f"{name} in {file} is a pickled object, not a tensor")


# Strings that are data in the generated code, or that nothing evaluates.
_DATA = ("metadata", "as_string", "as_strings")
# What would end a string in generated code, or its line.
_BREAKS = re.compile(r"[\"'\\\x00-\x1f\x7f\x85\u2028\u2029]")


def _check_program(value: Any, key: str) -> None:
    """Refuse strings of the program's JSON that would become code other than the program's."""
    if isinstance(value, dict):
        for name, item in value.items():
            _require(_is_plain(name), name, "key")
            if name not in _DATA:
                _check_program(item, name)
    elif isinstance(value, list):
        for item in value:
            _check_program(item, key)
    elif isinstance(value, str):
        _require(_CHECKS.get(key, _is_plain)(value), value, key)


def _require(is_safe: bool, value: str, key: str) -> None:
    if not is_safe:
        raise _UnsafeError(f"the program has {value[:80]!r} as {key}")


def _is_plain(text: str) -> bool:
    return not _BREAKS.search(text)


def _is_name(text: str) -> bool:
    return not text or text.isidentifier()


@cache
def _is_operator(target: str) -> bool:
    from torch._export.serde.serialize import _SYM_OPS, GraphModuleDeserializer

    found = GraphModuleDeserializer().deserialize_operator(target)
    if isinstance(found, torch._ops.OpOverload):
        return all(argument.name != "filename" for argument in found._schema.arguments)
    # A name that stays a string is an operator that does not exist, which the loader says.
    return isinstance(found, (torch._ops.HigherOrderOperator, str)) or found in _SYM_OPS


_ARITHMETIC = (
    *(ast.Expression, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Call),
    *(ast.keyword, ast.Subscript, ast.Attribute, ast.Name, ast.Constant, ast.expr_context),
    *(ast.boolop, ast.operator, ast.unaryop, ast.cmpop),
)
_ATTRIBUTES = ("size", "stride", "storage_offset", "isnan", "inf")


@cache
def _function_names() -> frozenset[str]:
    """What an expression may name: sympy's and torch's symbolic functions, inputs and numbers."""
    import sympy  # type: ignore[import-untyped]
    from torch.utils._sympy import functions

    classes = {
        name
        for module in (sympy, functions)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, sympy.Basic)
    }
    return frozenset(classes | {"L", "math", "oo", "int_oo", "true", "false"})


@cache
def _is_arithmetic(code: str) -> bool:
    """Whether an expression computes with numbers, symbols and the sizes of inputs only."""
    try:
        nodes = list(ast.walk(ast.parse(code, mode="eval")))
    except SyntaxError:
        return False
    # Text is evaluated by most of sympy's classes, but is only a name in these two places.
    names = {id(n.slice) for n in nodes if isinstance(n, ast.Subscript)} | {
        id(n.args[0])
        for n in nodes
        if isinstance(n, ast.Call)
        and isinstance(n.func, ast.Name)
        and n.func.id == "Symbol"
        and n.args
    }

    def is_safe(node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in _function_names()
        if isinstance(node, ast.Attribute):
            return node.attr in _ATTRIBUTES
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return id(node) in names and _is_plain(node.value)
        return isinstance(node, _ARITHMETIC)

    return all(map(is_safe, nodes))


def _is_structure(text: str) -> bool:
    """Whether a serialized pytree names no module to import, and keywords that are names."""
    try:
        _, root = json.loads(text)
        _check_tree(root)
        children = root["children_spec"]
        if len(children) == 2 and children[1]["type"] == "builtins.dict":
            return all(map(_is_name, _context(children[1])))
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
    return True


def _context(node: Any) -> Any:
    """The context of a node, which is JSON within JSON for most types."""
    context = node["context"]
    return json.loads(context) if isinstance(context, str) else context


def _check_tree(node: Any) -> None:
    if node["type"] == "collections.defaultdict" or "__enum__" in json.dumps(_context(node)):
        raise ValueError("it imports a module by name")
    for child in node["children_spec"]:
        _check_tree(child)


_CHECKS: dict[str, Callable[[str], bool]] = {
    "name": _is_name,
    "as_name": _is_name,
    "forward_arg_names": _is_name,
    "target": _is_operator,
    "as_operator": _is_operator,
    "expr_str": _is_arithmetic,
    "guards_code": _is_arithmetic,
    "in_spec": _is_structure,
    "out_spec": _is_structure,
}


_SHOWN = 8

# Data types by their names in the safetensors format.
_SAFETENSORS_DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def load_weights(module: torch.nn.Module, path: Path) -> None:
    """Loads a state dict into the module."""
    state = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    own = module.state_dict()
    missing = [name for name in own if name not in state]
    unexpected = [name for name in state if name not in own]
    shapes = [
        f"{name} is {list(state[name].shape)}, the module has {list(own[name].shape)}"
        for name in own
        if name in state and own[name].shape != state[name].shape
    ]
    problems = [
        f"{title}: {listed(names, _SHOWN, counts=True)}"
        for title, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape", shapes),
        )
        if names
    ]
    if problems:
        raise fail(
            "weights",
            "the weights do not fit the factory's module; " + "; ".join(problems),
            remedy="Name the weights of this very module, or let model.arguments make the module "
            "that they are of.",
            file=str(path),
        )
    module.load_state_dict(state)


def _read_torch(path: Path) -> dict[str, torch.Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise fail(
            "weights",
            "the file holds Python objects, which are not loaded since they could run any code; "
            "only tensors are (torch.load with weights_only)",
            remedy="If you trust whoever wrote the file, load it where the classes of its objects "
            "are, and save\nthe tensors alone: torch.save(model.state_dict(), 'weights.pt')",
            file=str(path),
        ) from error
    except (RuntimeError, EOFError, KeyError, ValueError, OSError) as error:
        raise _unreadable(path, exception_text(error)) from error
    if not _is_state_dict(content):
        raise fail(
            "weights",
            f"the file holds {_described(content)}, not a state dict of names and tensors",
            remedy=_extraction(content, path),
            file=str(path),
        )
    return dict(content)


def _extraction(content: object, path: Path) -> str:
    """How to save the tensors alone: by a command if the file is a checkpoint of a training."""
    entries = content.items() if isinstance(content, Mapping) else ()
    name = next((k for k, v in entries if isinstance(k, str) and v and _is_state_dict(v)), None)
    if name is None:
        return "Save the tensors alone: torch.save(model.state_dict(), 'weights.pt')"
    command = python_command(_EXTRACT, path=str(path), name=name)
    return f"Save the tensors alone, and name the new file as model.weights:\n{command}"


_EXTRACT = 'import torch; torch.save(torch.load({path})[{name}], "weights.pt")'


def _is_state_dict(content: object) -> bool:
    return isinstance(content, Mapping) and all(
        isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in content.items()
    )


def _described(content: object) -> str:
    if isinstance(content, Mapping):
        return f"a dictionary with {listed([str(key) for key in content], _SHOWN, counts=True)}"
    return describe(content)


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Reads the safetensors format: a length, a JSON header, then the tensors' bytes.

    https://github.com/huggingface/safetensors describes it.
    """
    try:
        with open_regular(path) as stream:
            data = bytearray(stream.read())
        start = 8 + int.from_bytes(data[:8], "little")
        header: dict[str, Any] = json.loads(data[8:start])
        header.pop("__metadata__", None)
        body = memoryview(data)[start:]
        return {name: _tensor(entry, body) for name, entry in header.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise _unreadable(path, exception_text(error)) from error


def _tensor(entry: dict[str, Any], body: memoryview) -> torch.Tensor:
    begin, end = entry["data_offsets"]
    dtype, shape = _SAFETENSORS_DTYPES[entry["dtype"]], tuple(entry["shape"])
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    if not 0 <= begin < end <= len(body):
        raise ValueError("a tensor lies outside the file, which may be cut short")
    return torch.frombuffer(body[begin:end], dtype=dtype).reshape(shape)


def _unreadable(path: Path, why: str) -> WorkerError:
    return fail(
        "weights",
        f"the weights cannot be read ({why}); the file may be damaged or of another format",
        remedy="Give a .pt file of torch.save or a .safetensors file.",
        file=str(path),
    )
