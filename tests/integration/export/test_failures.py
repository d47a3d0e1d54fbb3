"""Each way in which an export fails has a message of its own, at the user's own line."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import ExportError
from etdeploy.core.processes import process
from etdeploy.core.values import silent
from etdeploy.export.protocol import ExportFailure
from etdeploy.export.run import export_program, failure_error
from tests.support.export import (  # noqa: F401
    ROOT,
    Exporter,
    export_all,
    export_workspace,
    exported,
    run_python,
    spec_of,
)

pytestmark = pytest.mark.integration

TORCH = version("torch").partition("+")[0]
WORKING = ROOT / "tests/data/export/working.py"
FAILING = ROOT / "tests/data/export/failing.py"

_VALUES = ("torch.export", "values of a tensor")
_VALUES_REMEDY = ("torch.where or torch.cond", "torch._check")
_CALL = "return self.function(self.linear(x))"
_RETURNS = "(module, args, kwargs, dynamic_shapes)"
_COMPLEX = ("complex numbers", "(operator aten::abs)")
Facts = tuple[str, ...]

# By name: facts of the message, the code of the user's line (None when the message is about none),
# facts of the remedy (None where there is none).
EXPECTED: dict[str, tuple[Facts, str | None, Facts | None]] = {
    "branches": ((*_VALUES, "(operator Tensor.__bool__)"), "if x.sum() > 0:", _VALUES_REMEDY),
    "branches-strict": (_VALUES, "if x.sum() > 0:", _VALUES_REMEDY),
    "reads_a_size": (_VALUES, "return torch.ones(int(x.abs().sum().item()))", _VALUES_REMEDY),
    "raises": (
        ("the model raised", "example inputs", "ValueError: no such thing"),
        'raise ValueError("no such thing")',
        ("in Python, without etdeploy",),
    ),
    "reads_its_address": (
        ("cannot trace", "Cannot access data pointer of Tensor", "(operator Tensor.data_ptr)"),
        "return x * x.data_ptr()",
        ("--set export.strict=true",),
    ),
    "transforms": (_COMPLEX, _CALL, ("two real tensors", "fft, stft")),
    "transforms-strict": (_COMPLEX, "return torch.fft.rfft(x).abs()", ("two real tensors",)),
    "takes_a_part": (
        ("values of a tensor", "(operator aten::slice)"),
        _CALL,
        ("torch._check(n <= 512)", "torch.where(mask, x, 0)"),
    ),
    "writes_a_constant": (("writes into a tensor",), _CALL, ("self.register_buffer(",)),
    "too_many_inputs": (
        ("TypeError: Model.forward() takes 2 positional arguments but 3 were given",),
        None,
        ("arguments of forward", "number", "order", "shapes", "data types"),
    ),
    "scripted": (("Exporting a ScriptModule",), None, ("the nn.Module itself", "torch.jit")),
    "reads_a_missing_file": (
        ("the factory reads_a_missing_file", "FileNotFoundError", "'no/such/file.pt'"),
        'torch.load("no/such/file.pt")',
        ("no/such/file.pt", f" {ROOT},", "Path(__file__).parent / 'no/such/file.pt'"),
    ),
    "decomposes_a_matrix": (
        ("operator aten::_linalg_svd", "core ATen"),
        _CALL,
        ("other operators", "outside the model"),
    ),
    "custom": (
        ("operator failing::double", "(.out)"),
        _CALL,
        (
            "beside failing::double",
            '\ntorch.library.define("failing::double.out", '
            '"(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")\n',
            "runtime.custom_ops",
        ),
    ),
    "gives_text": (
        ("output name", "a str, 'x'", "tensors, numbers of 64 bits, booleans and None"),
        None,
        ("wrapper module", "torch.export.register_dataclass"),
    ),
    "writes_its_input": (("its input x;",), None, ("x = x.clone()",)),
    "text_input": (
        ("input mode", "a str, 'fast'", "tensors, numbers of 64 bits, booleans and None"),
        None,
        ("wrapper module",),
    ),
    "open_number": (("input mode", "an int, 3,"), None, ("torch.tensor(value)",)),
    "swapped_calls": (
        ("swapped_calls", "a dict and a tuple of 1 as args and kwargs"),
        None,
        ("return module, (x,), {'mask': mask}, None",),
    ),
    "lone_tensor": (("lone_tensor", "a Tensor as example inputs"), None, ("return module, (x,)",)),
    "only_a_module": (("only_a_module", "a Model", _RETURNS), None, None),
    "no_module": (("no_module", "a function", "torch.nn.Module", _RETURNS), None, None),
    "factory_raises": (
        ("factory_raises", "RuntimeError: no width 5"),
        'raise RuntimeError(f"no width {width}\\nand a second line")',
        None,
    ),
    "unknown_argument": (
        ("factory_raises", "model.arguments", "'widht'", "are: width"),
        None,
        None,
    ),
    "example_argument": (
        ("example mlp", "'depth'", "features, width, layers, classes, batch"),
        None,
        None,
    ),
    "example_value": (("example encoder", "width (100)", "heads (3)"), None, None),
    "fixed_width": (
        ("Constraints violated (w)!", "to be a constant (8)"),
        None,
        ("dynamic_shapes", "torch.export.Dim(name, min=1, max=512)"),
    ),
    "size_too_large": (("pairs is 17", "1 to 16"), None, None),
    "size_odd": (("dimension 0 of the input ids", " 3;", "2*n"), None, None),
    "size_unknown": (("rows;", "pairs (1 to 16), 2*pairs (2 to 32)"), None, None),
    "size_fixed": (("dimension 1 of the input x is 8", "rows (1 to 16)"), None, None),
    "sizes_apart": (("ids.0 is 4", "halves.0 makes it 6"), None, None),
    "sizes_short": (
        ("working.py:short_inputs", "size some", "float32 [1] for halves", "float32 [3]"),
        None,
        ("example inputs",),
    ),
    "no_linear": (("8da4w", "nn.Linear"), None, ("--set export.quantization=int8_static",)),
    "group": (("(8)", "group size 32"), None, ("--set export.quantization=8da8w",)),
    "lone_samples": (("yielded a Tensor", "dicts"), None, ("yield (x,)",)),
    "no_samples": (("yielded no inputs",), None, ("yield (x,)",)),
    "missing_module": (
        ("model.python", "'no.such.module'", sys.executable, str(ROOT)),
        None,
        ("file.py:function",),
    ),
    "wrong_keys": (
        (
            "missing: linear.bias; unexpected: head.bias; of another shape: linear.weight is "
            "[8, 4], the module has [8, 8]",
        ),
        None,
        ("model.arguments",),
    ),
    "not_exported": (
        ("BadZipFile: File is not a zip file", f" {TORCH} "),
        None,
        ("torch.export.save",),
    ),
}


def _recipes(files: Path) -> dict[str, dict[str, Any]]:
    def factory(name: str, **model: Any) -> dict[str, Any]:
        return {"model": {"python": f"{FAILING}:{name}", **model}}

    def sized(name: str, sizes: dict[str, int], **benchmark: str) -> dict[str, Any]:
        measured = {"sizes": {"some": sizes}, **benchmark}
        return {"model": {"python": f"{WORKING}:{name}"}, "benchmark": measured}

    def calibrated(name: str) -> dict[str, Any]:
        export = {"quantization": "int8_static", "calibration": f"{FAILING}:{name}"}
        return {**factory("make"), "export": export}

    named = (
        "branches",
        "reads_a_size",
        "raises",
        "reads_its_address",
        "transforms",
        "takes_a_part",
        "writes_a_constant",
        "decomposes_a_matrix",
        "custom",
        "gives_text",
    )
    made = {n: factory("make", arguments={"function": n}) for n in named}
    plain = (
        "too_many_inputs",
        "scripted",
        "reads_a_missing_file",
        "text_input",
        "open_number",
        "swapped_calls",
        "writes_its_input",
        "lone_tensor",
        "only_a_module",
        "no_module",
    )
    grouped = {"export": {"quantization": "8da4w"}}
    weights = {
        name: factory("make", weights=str(files / f"{name}.pt"))
        for name in ("pickled", "checkpoint", "wrong_keys", "damaged")
    }
    return {
        **made,
        **weights,
        "size_too_large": sized("looked_up", {"pairs": 17}),
        "size_odd": sized("looked_up", {"ids.0": 3}),
        "size_unknown": sized("looked_up", {"rows": 4}),
        "size_fixed": sized("rows", {"x.1": 9}),
        "sizes_apart": sized("looked_up", {"halves.0": 3, "ids.0": 4}),
        "sizes_short": sized("looked_up", {"pairs": 3}, inputs=f"{WORKING}:short_inputs"),
        **{name: factory(name) for name in (*plain, "fixed_width", "allocates")},
        **{n: calibrated(n) for n in ("lone_samples", "no_samples", "wrong_samples")},
        "branches-strict": {**made["branches"], "export": {"strict": True}},
        "transforms-strict": {**made["transforms"], "export": {"strict": True}},
        "factory_raises": factory("factory_raises", arguments={"width": 5}),
        "unknown_argument": factory("factory_raises", arguments={"widht": 5}),
        "example_argument": {"model": {"example": "mlp", "arguments": {"depth": 2}}},
        "example_value": {"model": {"example": "encoder", "arguments": {"width": 100, "heads": 3}}},
        "no_linear": {**factory("no_linear"), **grouped},
        "group": {**factory("make"), **grouped},
        "missing_function": factory("nothing"),
        "missing_module": {"model": {"python": "no.such.module:make"}},
        "broken_file": {"model": {"python": f"{files / 'broken.py'}:make"}},
        "cut_short": factory("make", weights=str(files / "cut.safetensors")),
        "convolves_volumes": {
            **factory("make", arguments={"function": "convolves_volumes"}),
            "export": {"backend": "portable"},
        },
        "not_exported": {"model": {"exported": str(files / "junk.pt2")}},
        "another_version": {"model": {"exported": str(files / "version.pt2")}},
    }


def _write_files(files: Path) -> None:
    """Files that are not what the recipe takes them for."""
    code = """
import sys, json, zipfile
from pathlib import Path
import torch
files = Path(sys.argv[1])
module = torch.nn.Linear(8, 8)
torch.save(module, files / "pickled.pt")
torch.save({"epoch": 3, "model": module.state_dict()}, files / "checkpoint.pt")
wrong = {"linear.weight": torch.zeros(8, 4), "head.bias": torch.zeros(8)}
torch.save(wrong, files / "wrong_keys.pt")
torch.export.save(torch.export.export(module, (torch.zeros(1, 8),)), files / "good.pt2")
good = zipfile.ZipFile(files / "good.pt2")
with zipfile.ZipFile(files / "version.pt2", "w") as new:
    for name in good.namelist():
        data = good.read(name)
        if name.endswith("models/model.json"):
            content = json.loads(data)
            content["schema_version"]["major"] += 50
            data = json.dumps(content).encode()
        new.writestr(name, data)
"""
    run_python("-c", code, str(files))
    (files / "damaged.pt").write_bytes((files / "pickled.pt").read_bytes()[:500])
    (files / "junk.pt2").write_bytes(b"junk")
    (files / "broken.py").write_text("def make(:\n    pass\n")
    header = json.dumps(
        {"linear.weight": {"dtype": "F32", "shape": [8, 8], "data_offsets": [0, 256]}}
    )
    (files / "cut.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header.encode() + bytes(100)
    )


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ExportFailure]:
    root = tmp_path_factory.mktemp("failures")
    _write_files(root)
    specs = {name: spec_of(recipe) for name, recipe in _recipes(root).items()}
    export_all(root, specs)
    return {name: ExportFailure.load(root / f"work-{name}" / "failure.json") for name in specs}


@pytest.mark.parametrize("name", EXPECTED)
def test_message_line_and_remedy(failures: dict[str, ExportFailure], name: str) -> None:
    facts, code, remedy = EXPECTED[name]
    failure = failures[name]
    error = failure_error(failure, Path("log"))
    assert not [fact for fact in facts if fact not in error.message]
    assert not [fact for fact in remedy or () if fact not in str(error.remedy)]
    assert (error.remedy is None) == (remedy is None)
    assert error.exit_code == 3
    if code:
        assert error.message.endswith(f"\n    {code}")
        lines = FAILING.read_text().splitlines()
        assert failure.file == str(FAILING)
        assert lines[(failure.line or 0) - 1].strip() == code


def test_functions_of_the_file_are_listed_for_a_missing_one(
    failures: dict[str, ExportFailure],
) -> None:
    message = failure_error(failures["missing_function"], Path("log")).message
    assert "failing.py:nothing" in message
    assert message.split("; it has ")[1].startswith("branches, reads_a_size,")
    assert failures["missing_function"].file == str(FAILING)


def test_a_syntax_error_is_shown_at_its_line(failures: dict[str, ExportFailure]) -> None:
    failure = failures["broken_file"]
    assert "broken.py raised SyntaxError: " in failure.message
    assert Path(failure.file or "").name == "broken.py"
    assert (failure.line, failure.code) == (1, "def make(:")


def test_a_wrong_calibration_input_is_numbered(failures: dict[str, ExportFailure]) -> None:
    message = failures["wrong_samples"].message
    assert "0 of failing.py:wrong_samples" in message
    assert "[4, 7] for x" in message
    assert "[4, 8]" in message


def test_pickled_objects_are_refused_without_advice_to_load_them(
    failures: dict[str, ExportFailure],
) -> None:
    failure = failures["pickled"]
    assert "could run any code" in failure.message
    assert "If you trust" in str(failure.remedy)
    assert "weights_only=False" not in f"{failure.message} {failure.remedy}"


def test_the_tensors_of_a_checkpoint_are_saved_by_the_remedys_command(
    failures: dict[str, ExportFailure], tmp_path: Path
) -> None:
    failure = failures["checkpoint"]
    assert "epoch, model" in failure.message
    command = shlex.split(str(failure.remedy).splitlines()[-1])
    saved = "import torch; print(*torch.load('weights.pt'))"
    for argv in (command, [sys.executable, "-c", saved]):
        outcome = process.run(process.Request(tuple(argv), cwd=tmp_path))
        assert outcome.ok, outcome.stderr
    assert outcome.stdout.split() == ["weight", "bias"]


@pytest.mark.parametrize("name", ["damaged", "cut_short"])
def test_damaged_weights(failures: dict[str, ExportFailure], name: str) -> None:
    failure = failures[name]
    assert "cannot be read (" in failure.message
    assert "damaged" in failure.message
    assert {".pt", ".safetensors"} <= set(str(failure.remedy).split())


def test_a_program_of_another_pytorch(failures: dict[str, ExportFailure]) -> None:
    assert f"PyTorch than {TORCH} " in failures["another_version"].message


def test_a_program_that_does_not_run_names_the_kernel_and_the_line(
    failures: dict[str, ExportFailure],
) -> None:
    failure = failures["convolves_volumes"]
    assert failure.operator == "aten::convolution"
    assert "example inputs" in failure.message
    assert "got, 5" in failure.message
    assert failure.file == str(FAILING)


def test_memory_that_runs_out_is_named(failures: dict[str, ExportFailure]) -> None:
    assert failures["allocates"].kind == "memory"
    assert "out of memory: " in failures["allocates"].message


def test_a_factory_that_raises_is_told_before_executorch_is_imported(
    exported: Exporter,  # noqa: F811
) -> None:
    with pytest.raises(ExportError) as caught:
        exported({"model": {"python": f"{FAILING}:factory_raises"}})
    assert "RuntimeError" in caught.value.message
    assert caught.value.log is not None
    log = caught.value.log.read_text()
    # The log is the session's; the last export in it is this one.
    own = log[log.rindex("loading failing.py:factory_raises") :]
    assert "importing" not in own


@pytest.mark.parametrize(
    ("factory", "facts"), [("is_killed", ("SIGKILL", "memory")), ("crashes", ("SIGSEGV",))]
)
def test_a_signal_is_named_and_nothing_is_left(tmp_path: Path, factory: str, facts: Facts) -> None:
    workspace = Workspace(tmp_path / "cache")
    spec = spec_of({"model": {"python": f"{FAILING}:{factory}"}})
    with pytest.raises(ExportError) as caught:
        export_program(spec, workspace, silent, tmp_path / "export.log")
    assert not [fact for fact in facts if fact not in caught.value.message]
    assert caught.value.log is not None
    assert "worker/start.py" in caught.value.log.read_text()
    assert not list((workspace.root / "programs").iterdir())
