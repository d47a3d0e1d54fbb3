"""Archives of torch.export.save, each changed so that one of its entries runs code when loaded.

Called with a folder: writes `NAME.pt2` for each of CHANGES there, tries to load each one as
`model.exported` does, and prints for each name whether it was loaded and which message it got.
The code writes the file `ran-NAME`.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.loading.files import load_exported

Entries = dict[str, bytes]
MODEL = "models/model.json"
WEIGHTS, CONSTANTS = "data/weights/", "data/constants/"


class _Writes:
    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (self.marker,)


class _Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleDict({"a-b c": torch.nn.Linear(4, 4)})
        self.constant = torch.ones(4)

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))
        scaled = self.layers["a-b c"](y) * mask + self.constant
        return torch.nn.functional.gelu(scaled, approximate="tanh") * (x.shape[0] * 2)


def _program() -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=2, max=16)
    inputs = torch.ones(4, 4)
    shapes = {"x": {0: batch}, "mask": {0: batch}}
    return torch.export.export(_Model(), (inputs,), {"mask": inputs}, dynamic_shapes=shapes)


def _pickled(marker: str) -> bytes:
    buffer = io.BytesIO()
    torch.save({"x": _Writes(marker)}, buffer)
    return buffer.getvalue()


def _payload(folder: str, name: str, content: Callable[[str], bytes]) -> Callable[..., None]:
    """Replaces the first weight or constant by a pickled payload called `name`."""

    def change(entries: Entries, marker: str) -> None:
        key = f"{folder}model_{folder.split('/')[1]}_config.json"
        config = json.loads(entries[key])
        first = next(iter(config["config"].values()))
        first.update(path_name=name, use_pickle=True)
        entries[key] = json.dumps(config).encode()
        entries[folder + name] = content(marker)

    return change


def _entry(name: str) -> Callable[..., None]:
    def change(entries: Entries, marker: str) -> None:
        entries[name] = _pickled(marker)

    return change


def _json(edit: Callable[[Any, str], None]) -> Callable[..., None]:
    """Edits the program's graph module; `edit` gets an expression that writes the marker."""

    def change(entries: Entries, marker: str) -> None:
        program = json.loads(entries[MODEL])
        edit(program["graph_module"], f"getattr(__import__('os'), 'mkdir')({marker!r})")
        entries[MODEL] = json.dumps(program).encode()

    return change


def _expression(module: Any, code: str) -> None:
    module["graph"]["tensor_values"]["x"]["sizes"][0]["as_expr"]["expr_str"] = code


def _guarded(entries: Entries, marker: str) -> None:
    program = json.loads(entries[MODEL])
    program["guards_code"] = [f"getattr(__import__('os'), 'mkdir')({marker!r}) or True"]
    entries[MODEL] = json.dumps(program).encode()


def _call(target: str) -> Callable[[Any, str], None]:
    """The first node calls a Python function with the marker."""

    def edit(module: Any, code: str) -> None:
        node = module["graph"]["nodes"][0]
        node["target"] = target
        marker = code.rpartition("(")[2].strip("')")
        node["inputs"] = [{"name": "", "arg": {"as_string": marker}, "kind": 1}]

    return edit


def _saves(module: Any, code: str) -> None:
    node = module["graph"]["nodes"][0]
    node["target"] = "torch.ops.aten.from_file.default"
    marker = code.rpartition("(")[2].strip("')")
    node["inputs"] = [{"name": "filename", "arg": {"as_string": marker}, "kind": 1}]


def _parameter(module: Any, code: str) -> None:
    spec = next(s for s in module["signature"]["input_specs"] if "parameter" in s)
    spec["parameter"]["parameter_name"] = f'w", {code}) or getattr(self, "w'


def _placeholder(module: Any, code: str) -> None:
    text = json.dumps(module)
    module.clear()
    module.update(json.loads(text.replace('"name": "x"', json.dumps({"name": f"x={code}"})[1:-1])))


def _forward_argument(module: Any, code: str) -> None:
    signature = module["module_call_graph"][0]["signature"]
    signature["forward_arg_names"] = [f"x={code}", "mask=None"]


def _keyword(module: Any, code: str) -> None:
    node = next(n for n in module["graph"]["nodes"] if n["target"].endswith("cond"))
    node["inputs"][-1].update(name=f"operands={code}, x", kind=2)


def _enum(module: Any, code: str) -> None:
    signature = module["module_call_graph"][0]["signature"]
    protocol, tree = json.loads(signature["in_spec"])
    tree["children_spec"][1]["context"] = json.dumps(
        [{"__enum__": True, "fqn": "hostile:Keys", "name": "x"}]
    )
    signature["in_spec"] = json.dumps([protocol, tree])


def _default(module: Any, code: str) -> None:
    signature = module["module_call_graph"][0]["signature"]
    protocol, tree = json.loads(signature["in_spec"])
    factory = {"default_factory_module": "hostile", "default_factory_name": "x"}
    tree["children_spec"][1]["type"] = "collections.defaultdict"
    tree["children_spec"][1]["context"] = {**factory, "dict_context": ["mask"]}
    signature["in_spec"] = json.dumps([protocol, tree])


def _old_format(entries: Entries, marker: str) -> None:
    program = entries.pop(MODEL)
    entries.clear()
    entries.update(
        {
            "version": b"8.0",
            "serialized_exported_program.json": program,
            "serialized_state_dict.pt": _pickled(marker),
            "serialized_constants.pt": b"",
            "serialized_example_inputs.pt": b"",
        }
    )


CHANGES: dict[str, Callable[[Entries, str], None]] = {
    "sample-inputs": _entry("data/sample_inputs/model.pt"),
    "pickled-weight": _payload(WEIGHTS, "weight_0", _pickled),
    "pickled-constant": _payload(CONSTANTS, "tensor_0", _pickled),
    "opaque-object": _payload(
        CONSTANTS, "opaque_obj_0", lambda marker: pickle.dumps(_Writes(marker))
    ),
    "custom-object": _payload(CONSTANTS, "custom_obj_0", _pickled),
    "legacy-weights": _entry("data/weights/model.pt"),
    "legacy-constants": _entry("data/constants/model.pt"),
    "second-program": _entry("models/other.json"),
    "compiled-code": _entry("data/aotinductor/model/model.so"),
    "old-format": _old_format,
    "expression": _json(_expression),
    "nested-expression": _json(lambda m, code: _expression(m, f"S({code!r})")),
    "guard": _guarded,
    "function": _json(_call("torch.os.mkdir")),
    "operator-function": _json(_call("_operator.methodcaller")),
    "file-operator": _json(_saves),
    "parameter-name": _json(_parameter),
    "placeholder-name": _json(_placeholder),
    "forward-argument": _json(_forward_argument),
    "keyword-name": _json(_keyword),
    "enum": _json(_enum),
    "default-factory": _json(_default),
}


def _write(path: Path, entries: Entries) -> None:
    root = "" if "version" in entries else f"{path.stem}/"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            archive.writestr(root + name, data)


def main(folder: Path) -> None:
    os.chdir(folder)
    (folder / "hostile.py").write_text("import os; os.mkdir('ran-import')")
    sys.path.insert(0, str(folder))
    torch.export.save(_program(), folder / "good.pt2")
    with zipfile.ZipFile(folder / "good.pt2") as archive:
        good = {n.partition("/")[2]: archive.read(n) for n in archive.namelist()}
    answers: dict[str, str] = {}
    for name, change in {"unchanged": lambda *_: None, **CHANGES}.items():
        entries = dict(good)
        change(entries, f"ran-{name}")
        path = folder / f"{name}.pt2"
        _write(path, entries)
        try:
            program = load_exported(path)
            program.module()
            answers[name] = "loaded"
        except WorkerError as error:
            answers[name] = f"{error.failure.message} | {error.failure.remedy}"
    (folder / "answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
