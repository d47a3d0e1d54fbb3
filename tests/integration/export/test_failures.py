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
from etdeploy.export.failure import failure_error
from etdeploy.export.protocol import ExportFailure
from etdeploy.export.run import export_program
from tests.support.export import Exporter, export_workspace, exported, spec_of  # noqa: F401

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
TORCH = version("torch").partition("+")[0]
WORKING = ROOT / "tests/data/export/working.py"
FAILING = ROOT / "tests/data/export/failing.py"

_VALUES = (
    "torch.export cannot trace the model: what it does, or a shape in it, depends on the values of "
    "a tensor, which are not known at export"
)
_VALUES_REMEDY = (
    "Keep values of tensors out of Python's control flow: torch.where or torch.cond for a branch,\n"
    "torch._check for the bounds of a size that is read with item()."
)
_CALL = "return self.function(self.linear(x))"
_STRICT = "Rewrite that line with tensor operators, or try --set export.strict=true"
_RETURNS = (
    "(module, example_inputs), (module, example_inputs, dynamic_shapes) or "
    "(module, args, kwargs, dynamic_shapes)"
)

# By name: the message, the code of the user's line (None when the message is about none), remedy.
EXPECTED: dict[str, tuple[str, str | None, str | None]] = {
    "branches": (f"{_VALUES} (operator Tensor.__bool__)", "if x.sum() > 0:", _VALUES_REMEDY),
    "branches-strict": (_VALUES, "if x.sum() > 0:", _VALUES_REMEDY),
    "reads_a_size": (
        _VALUES,
        "return torch.ones(int(x.abs().sum().item()))",
        _VALUES_REMEDY,
    ),
    "raises": (
        "the model raised, when called with the example inputs, ValueError: no such thing",
        'raise ValueError("no such thing")',
        "Call the module with the same inputs in Python, without etdeploy, to see more of it.",
    ),
    "reads_its_address": (
        "torch.export cannot trace the model: Cannot access data pointer of Tensor (e.g. "
        "FakeTensor, FunctionalTensor). If you're using torch.compile/export/fx, it is likely that "
        "we are erroneously tracing into a custom kernel. To fix this, please wrap the custom "
        "kernel into an opaque custom op. Please see the following for details: "
        "https://pytorch.org/tutorials/advanced/custom_ops_landing_page.html (operator "
        "Tensor.data_ptr)",
        "return x * x.data_ptr()",
        _STRICT,
    ),
    "transforms": (
        "the model computes with complex numbers, which cannot be lowered (operator aten::abs)",
        _CALL,
        "Let the model compute with the real and the imaginary part as two real tensors, or leave "
        "the\ntransform (fft, stft) to the code that calls the program.",
    ),
    "transforms-strict": (
        "the model computes with complex numbers, which cannot be lowered (operator aten::abs)",
        "return torch.fft.rfft(x).abs()",
        "Let the model compute with the real and the imaginary part as two real tensors, or leave "
        "the\ntransform (fft, stft) to the code that calls the program.",
    ),
    "reads_a_number": (
        "the model computes with a number that it reads from a tensor with item() (operator "
        "aten::item)",
        _CALL,
        "Keep it a tensor: x * y.max() in place of x * y.max().item()",
    ),
    "takes_a_part": (
        "a size in the model depends on the values of a tensor, and nothing bounds it (operator "
        "aten::slice)",
        _CALL,
        "Bound it where it is read: n = x.item(); torch._check(n >= 0); torch._check(n <= 512)\n"
        "Or keep the size fixed, and mask what is not wanted: torch.where(mask, x, 0)",
    ),
    "writes_a_constant": (
        "the model writes into a tensor that is not a buffer of it, so the program cannot keep "
        "what is written",
        _CALL,
        "Make it one in the module's __init__: self.register_buffer('name', tensor)",
    ),
    "too_many_inputs": (
        "the model raised, when called with the example inputs, TypeError: Model.forward() takes 2 "
        "positional arguments but 3 were given",
        None,
        "Compare the example inputs that the factory returns with what forward takes: their "
        "number,\norder, shapes and data types.",
    ),
    "scripted": (
        "torch.export cannot trace the model: Exporting a ScriptModule is not supported. Maybe try "
        "converting your ScriptModule to an ExportedProgram using `TS2EPConverter(mod, args, "
        "kwargs).convert()` instead.",
        None,
        "Return the nn.Module itself from the factory, not what torch.jit made of it.",
    ),
    "reads_a_missing_file": (
        "the factory reads_a_missing_file raised FileNotFoundError: [Errno 2] No such file or "
        "directory: 'no/such/file.pt'",
        'torch.load("no/such/file.pt")',
        f"no/such/file.pt was looked for in {ROOT}, the working folder. A file beside the model is"
        "\nPath(__file__).parent / 'no/such/file.pt'",
    ),
    "decomposes_a_matrix": (
        "the operator aten::_linalg_svd is not in the core ATen set, so ExecuTorch has no kernel "
        "for it",
        "return self.function(self.linear(x))",
        "Replace it with other operators in the model's code, or compute it outside the model.",
    ),
    "custom": (
        "the operator failing::double has no variant with an output argument (.out), which "
        "ExecuTorch calls",
        "return self.function(self.linear(x))",
        "Register it beside failing::double, with an implementation that writes to its output:\n"
        'torch.library.define("failing::double.out", '
        '"(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")\n'
        "Its C++ kernel goes into the folder that runtime.custom_ops names.",
    ),
    "gives_text": (
        "the output name is a str, 'x'; a program can give tensors, numbers of 64 bits, booleans "
        "and None",
        None,
        "Let a wrapper module return tensors, alone or in tuples, lists and dicts. A dataclass of\n"
        "tensors needs torch.export.register_dataclass.",
    ),
    "writes_its_input": (
        "the model writes into its input x; every further run on the device would start from "
        "other values",
        None,
        "Let forward work on a copy: x = x.clone()",
    ),
    "text_input": (
        "the input mode is a str, 'fast'; a program can take tensors, numbers of 64 bits, booleans "
        "and None",
        None,
        "Fix the value in a wrapper module, or pass it as a tensor, a number, a boolean or None.",
    ),
    "open_number": (
        "the input mode is an int, 3, that the dynamic shapes leave open; a program has no place "
        "for such a number",
        None,
        "Pass it as a tensor, torch.tensor(value), or leave it out of the dynamic shapes.",
    ),
    "swapped_calls": (
        "the factory swapped_calls returned a dict and a tuple of 1 as args and kwargs; they are "
        "a tuple and a dict, as torch.export takes them",
        None,
        "return module, (x,), {'mask': mask}, None",
    ),
    "lone_tensor": (
        "the factory lone_tensor returned a Tensor as example inputs; they are a tuple, also when "
        "there is only one, or a dict of inputs by keyword",
        None,
        "return module, (x,)",
    ),
    "only_a_module": (f"the factory only_a_module returned a Model, not {_RETURNS}", None, None),
    "no_module": (
        "the factory no_module returned a function in place of the torch.nn.Module; it returns "
        f"{_RETURNS}",
        None,
        None,
    ),
    "factory_raises": (
        "the factory factory_raises raised RuntimeError: no width 5",
        'raise RuntimeError(f"no width {width}\\nand a second line")',
        None,
    ),
    "unknown_argument": (
        "the factory factory_raises cannot be called with model.arguments: got an unexpected "
        "keyword argument 'widht'; its arguments are: width",
        None,
        None,
    ),
    "example_argument": (
        "the example mlp cannot be called with model.arguments: got an unexpected keyword argument "
        "'depth'; its arguments are: features, width, layers, classes, batch",
        None,
        None,
    ),
    "example_value": (
        "the example encoder refuses its arguments: width (100) must be a multiple of heads (3)",
        None,
        None,
    ),
    "fixed_width": (
        "the dynamic shapes do not fit the model: Constraints violated (w)!: You marked w as "
        "dynamic but your code specialized it to be a constant (8). If you're using mark_dynamic, "
        "either remove it or use maybe_mark_dynamic. If you're using Dim.DYNAMIC, replace it with "
        "either Dim.STATIC or Dim.AUTO.",
        None,
        "Compare the dynamic_shapes that the factory returns with the example inputs, and give "
        "each\ndimension that changes a range: torch.export.Dim(name, min=1, max=512)",
    ),
    "size_too_large": (
        "pairs is 17; the program takes 1 to 16",
        None,
        None,
    ),
    "size_odd": (
        "dimension 0 of the input ids cannot be 3; it is 2*n for a whole number n",
        None,
        None,
    ),
    "size_unknown": (
        "there is no dynamic dimension rows; there are pairs (1 to 16), 2*pairs (2 to 32)",
        None,
        None,
    ),
    "size_fixed": (
        "dimension 1 of the input x is 8 in the program and takes no other size; there are rows "
        "(1 to 16)",
        None,
        None,
    ),
    "sizes_apart": (
        "ids.0 is 4, but halves.0 makes it 6: the program takes them together",
        None,
        None,
    ),
    "sizes_short": (
        "working.py:short_inputs returned, for the size some, torch.float32 [1] for halves, not "
        "torch.float32 [3]",
        None,
        "Return the same structure as the factory's example inputs.",
    ),
    "no_linear": (
        "8da4w quantises nn.Linear layers, and the model has none",
        None,
        "--set export.quantization=int8_static quantises convolutions and attention, too.",
    ),
    "group": (
        "no linear layer's input size (8) is a multiple of the group size 32",
        None,
        "--set export.quantization=8da8w has no groups.",
    ),
    "lone_samples": (
        "the calibration function yielded a Tensor; it yields tuples of inputs, or dicts of "
        "inputs by keyword",
        None,
        "yield (x,)",
    ),
    "no_samples": ("the calibration function yielded no inputs", None, "yield (x,)"),
    "missing_module": (
        f"model.python names the module 'no.such.module', which cannot be imported by "
        f"{sys.executable} from {ROOT}",
        None,
        "Install the package there, or name the file: file.py:function",
    ),
    "wrong_keys": (
        "the weights do not fit the factory's module; missing: linear.bias; unexpected: head.bias; "
        "of another shape: linear.weight is [8, 4], the module has [8, 8]",
        None,
        "Name the weights of this very module, or let model.arguments make the module that they "
        "are of.",
    ),
    "not_exported": (
        "the exported program cannot be read (BadZipFile: File is not a zip file); it is damaged, "
        f"or another version of PyTorch than {TORCH} wrote it",
        None,
        "Write it again with torch.export.save, in the environment of etdeploy.",
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
        "reads_a_number",
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
    outcome = process.run(process.Request((sys.executable, "-c", code, str(files))))
    assert outcome.ok, outcome.stderr
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
    jobs = []
    recipes = _recipes(root)
    for name, recipe in recipes.items():
        (root / name / "program").mkdir(parents=True)
        spec_of(recipe).save(root / name / "spec.json")
        jobs.append((str(root / name / "spec.json"), str(root / name / "program")))
    (root / "jobs.json").write_text(json.dumps(jobs))
    argv = (sys.executable, "-m", "tests.support.export_batch", str(root / "jobs.json"))
    outcome = process.run(process.Request(argv, cwd=ROOT))
    assert outcome.ok, outcome.stderr[-3000:]
    return {name: ExportFailure.load(root / name / "failure.json") for name in recipes}


@pytest.mark.parametrize("name", EXPECTED)
def test_message_line_and_remedy(failures: dict[str, ExportFailure], name: str) -> None:
    message, code, remedy = EXPECTED[name]
    failure = failures[name]
    error = failure_error(failure, Path("log"))
    assert error.message == (message if code is None else f"{message}\n    {code}")
    assert error.remedy == remedy
    assert error.exit_code == 3
    if code:
        lines = FAILING.read_text().splitlines()
        assert failure.file == str(FAILING)
        assert lines[(failure.line or 0) - 1].strip() == code


def test_a_missing_function_is_told_with_those_that_are_there(
    failures: dict[str, ExportFailure],
) -> None:
    error = failure_error(failures["missing_function"], Path("log"))
    assert error.message.startswith(
        "model.python names failing.py:nothing, but there is no 'nothing' there; it has branches, "
        "reads_a_size,"
    )
    assert failures["missing_function"].file == str(FAILING)


def test_a_syntax_error_is_shown_at_its_line(failures: dict[str, ExportFailure]) -> None:
    failure = failures["broken_file"]
    assert failure.message.startswith("importing broken.py raised SyntaxError: ")
    assert (Path(failure.file or "").name, failure.line, failure.code) == (
        "broken.py",
        1,
        "def make(:",
    )


def test_a_wrong_calibration_input_is_numbered(failures: dict[str, ExportFailure]) -> None:
    message = failures["wrong_samples"].message
    assert message.startswith("calibration input 0 of failing.py:wrong_samples")
    assert "[4, 7] for x, not torch.float32 [4, 8]" in message


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
def test_damaged_weights_are_told_as_such(failures: dict[str, ExportFailure], name: str) -> None:
    failure = failures[name]
    assert failure.message.startswith("the weights cannot be read (")
    assert failure.message.endswith("; the file may be damaged or of another format")
    assert failure.remedy == "Give a .pt file of torch.save or a .safetensors file."


def test_a_program_of_another_pytorch_is_told_as_such(failures: dict[str, ExportFailure]) -> None:
    message = failures["another_version"].message
    assert message.startswith("the exported program cannot be read (")
    assert f"another version of PyTorch than {TORCH} wrote it" in message


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
    assert failures["allocates"].message.startswith("the export ran out of memory: ")


def test_a_factory_that_raises_is_told_before_executorch_is_imported(
    exported: Exporter,  # noqa: F811
) -> None:
    with pytest.raises(ExportError) as caught:
        exported({"model": {"python": f"{FAILING}:factory_raises"}})
    assert caught.value.message.startswith("the factory factory_raises raised RuntimeError")
    assert caught.value.log is not None
    log = caught.value.log.read_text()
    # The log is the session's; the last export in it is this one.
    own = log[log.rindex("loading failing.py:factory_raises") :]
    assert "importing ExecuTorch" not in own


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (
            "is_killed",
            "the export process was killed (SIGKILL); the usual cause is that memory ran out",
        ),
        (
            "crashes",
            "the export process crashed (SIGSEGV), in native code of PyTorch, ExecuTorch or an "
            "extension that the model uses",
        ),
    ],
)
def test_a_signal_is_named_and_nothing_is_left(tmp_path: Path, factory: str, message: str) -> None:
    workspace = Workspace(tmp_path / "cache")
    spec = spec_of({"model": {"python": f"{FAILING}:{factory}"}})
    with pytest.raises(ExportError) as caught:
        export_program(spec, workspace, silent, tmp_path / "export.log")
    assert caught.value.message == message
    assert caught.value.log is not None
    assert "worker/start.py" in caught.value.log.read_text()
    assert not list((workspace.root / "programs").iterdir())
