"""Programs with several methods: values of each, weights stored once, state that they share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from etdeploy.export.finished import write_finished
from etdeploy.export.protocol import ExportFailure
from etdeploy.export.run import failure_error
from etdeploy.export.spec import ExportSpec
from etdeploy.program.folder import Provenance, TensorFile, load_provenance
from etdeploy.program.inspect import inspect_file
from tests.support.export import ROOT, export_all, run_exported, run_python, spec_of

pytestmark = pytest.mark.integration

METHODS = ROOT / "tests/data/export/methods.py"
# Two layers of 32 times 4,096 weights in 32-bit floats.
WEIGHTS = 2 * 32 * 4096 * 4


def _recipe(function: str, **sections: Any) -> dict[str, Any]:
    return {"model": {"python": f"{METHODS}:{function}"}, **sections}


_STATIC = {"quantization": "int8_static", "calibration": f"{METHODS}:samples"}
_RIGHT = {
    "decoder": _recipe(
        "decoder", benchmark={"sizes": {"short": {"rows": 2}, "example": {}}, "method": "prefill"}
    ),
    "placing": _recipe("placing"),
    "viewing": _recipe("viewing"),
    "static": _recipe("decoder", export=_STATIC),
    "8da4w": _recipe("decoder", export={"quantization": "8da4w"}),
    "heads": _recipe("heads"),
    "heads-8da4w": _recipe("heads", export={"quantization": "8da4w"}),
    "counts": _recipe("counts", export={"backend": "portable"}),
    "apart": _recipe("apart", export={"strict": True}),
}
_WRONG = {
    "no_methods": _recipe("no_methods"),
    "odd_name": _recipe("odd_name"),
    "half_an_entry": _recipe("half_an_entry"),
    "no_forward": _recipe("no_forward"),
    "another": _recipe("decoder", benchmark={"method": "encode"}),
    "two_modules": {**_recipe("apart"), "model": {"python": f"{METHODS}:apart"}},
    "without_method": _recipe(
        "decoder",
        export={"quantization": "int8_static", "calibration": f"{METHODS}:any_samples"},
    ),
    "raises": _recipe("raises"),
    "two_names": _recipe("two_names"),
    "mixed_states": _recipe("mixed_states"),
}
_EXPECTED = {
    "no_methods": "the factory no_methods returned a dict without methods",
    "odd_name": "the factory odd_name returned a dict with the key 'de-code'; a dict has methods "
    "by name: letters, digits and underscores, at most 48",
    "half_an_entry": "the factory half_an_entry returned, for decode, a Linear, not (module, "
    "example_inputs), (module, example_inputs, dynamic_shapes) or (module, args, kwargs, "
    "dynamic_shapes)",
    "no_forward": "a Count is to be the method write, and has neither a method of that name nor a "
    "forward",
    "another": "the program has no method 'encode'; it has prefill, decode",
    "two_modules": "model.weights is for one module, and the methods have 2",
    "without_method": "export.calibration names methods.py:any_samples, which has no parameter "
    "called method: it is called for each of prefill, decode",
    "raises": "the model raised, when called with the example inputs, ValueError: no such thing "
    '(method wrong)\n    raise ValueError("no such thing")',
    "two_names": "methods share a state under different names, part.count in add, other.count in "
    "more; ExecuTorch shares it only under one",
    "mixed_states": "the methods add, more, other have different states of the name count, and one "
    "shares it; ExecuTorch would give them one memory",
}
# The methods in turn, in one program: what the second reads is what the first has written.
_IN_TURN = """
import json, sys
import torch
from executorch.runtime import Runtime
sys.path.insert(0, sys.argv[1])
import methods as made

def run(name, factory, calls):
    torch.manual_seed(0)
    modules = {key: entry[0].eval() for key, entry in getattr(made, factory)().items()}
    program = Runtime.get().load_program(f"{sys.argv[2]}/{name}/program.pte")
    loaded = {key: program.load_method(key) for key in modules}
    worst = 0.0
    with torch.no_grad():
        for key, inputs in calls:
            module = modules[key]
            wanted = getattr(module, key, module)(*inputs)
            error = (loaded[key].execute(inputs)[0] - wanted).abs().max()
            worst = max(worst, (error / wanted.abs().max().clamp(min=1)).item())
    return worst

torch.manual_seed(1)
x, ones = torch.randn(6, made.WIDTH), torch.ones(2, 2)
steps = [
    ("prefill", (x[:4],)), ("decode", (x[4:5], torch.tensor([4]))),
    ("decode", (x[5:6], torch.tensor([5]))),
]
found = {
    **{name: run(name, name, steps) for name in ("decoder", "placing", "viewing")},
    "counts": run("counts", "counts", [("add", (ones,)), ("read", (ones,)), ("add", (ones,))]),
    "apart": run("apart", "apart", [("add", (ones,)), ("read", (ones,)), ("add", (ones,))]),
}
sys.stdout.write("\\n" + json.dumps(found) + "\\n")
"""


@dataclass(frozen=True)
class Exports:
    """Program folders and failures, by name, and how far outputs are from the expected ones."""

    root: Path
    distances: dict[str, list[dict[str, Any]]]

    def provenance(self, name: str) -> Provenance:
        return load_provenance(self.root / name)


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    root = tmp_path_factory.mktemp("methods")
    specs = {name: spec_of(recipe) for name, recipe in (_RIGHT | _WRONG).items()}
    weights = {"weights": str(METHODS)}  # refused before it is read
    (root / "documented.py").write_text(_documented())
    specs["documented"] = spec_of({"model": {"python": f"{root / 'documented.py'}:make"}})
    specs["two_modules"] = specs["two_modules"].model_copy(update=weights)
    codes, right = export_all(root, specs), (*_RIGHT, "documented")
    for name in right:
        assert codes[name] == "0", (root / f"work-{name}" / "log.txt").read_text()[-3000:]
    return Exports(root, run_exported(root, right))


def _documented() -> str:
    """The example of docs/inputs.md."""
    text = (ROOT / "docs/inputs.md").read_text().split("## Programs with several methods")[1]
    return "import torch\n\n" + text.split("```python\n")[1].split("```")[0]


@pytest.mark.parametrize("name", [*_RIGHT, "documented"])
def test_every_method_gives_its_expected_outputs(exports: Exports, name: str) -> None:
    found = exports.distances[name]
    assert len(found) == (3 if name == "decoder" else 2)  # one of them at two sizes
    exact = "8da4w" not in name and name != "static"
    assert all(d["max_abs_error"] < 1e-5 or not exact for d in found)
    assert all(d["cosine_similarity"] > 0.998 for d in found)


def test_values_are_stored_for_every_method(exports: Exports) -> None:
    made = exports.provenance("decoder")
    assert (made.method, list(made.methods)) == ("prefill", ["prefill", "decode"])
    prefill, decode = made.of("prefill"), made.of("decode")
    assert _paths(prefill) == ["inputs/prefill/0.x.bin", "expected/prefill/0.bin"]
    assert _paths(decode) == [
        "inputs/decode/0.x.bin",
        "inputs/decode/1.position.bin",
        "expected/decode/0.bin",
    ]
    short = prefill.measured["short"]
    assert [t.shape for t in short.inputs] == [(2, 32)]
    assert (list(prefill.measured), list(decode.measured)) == (["short", "example"], [""])
    assert (exports.root / "decoder/inputs/prefill/short/0.x.bin").stat().st_size == 2 * 32 * 4
    assert prefill.details["delegation"]["partitions"] > 0
    assert decode.details["bytes"]["program.pte"] > WEIGHTS


def _paths(made: Provenance) -> list[str]:
    return [v.path for v in (*made.inputs, *made.expected) if isinstance(v, TensorFile)]


def test_forward_is_the_default_method_wherever_it_stands(exports: Exports) -> None:
    made = exports.provenance("heads")
    assert (made.method, list(made.methods)) == ("forward", ["small", "forward"])
    assert [value.name for value in made.of("small").expected] == ["y"]


@pytest.mark.parametrize(
    ("name", "most"),
    [("decoder", 1.1), ("static", 0.35), ("8da4w", 0.25), ("heads", 0.3), ("heads-8da4w", 0.1)],
)
def test_shared_weights_are_stored_once(exports: Exports, name: str, most: float) -> None:
    program = inspect_file(exports.root / name / "program.pte")
    assert len(program.methods) == 2
    assert program.size_bytes < most * WEIGHTS
    assert not any("stores them with each" in note for note in exports.provenance(name).notes)


def test_methods_see_the_state_that_others_write(exports: Exports) -> None:
    output = run_python("-c", _IN_TURN, str(METHODS.parent), str(exports.root))
    worst = json.loads(output.splitlines()[-1])
    assert worst["counts"] == worst["apart"] == 0
    assert max(worst["decoder"], worst["placing"], worst["viewing"]) < 1e-5


@pytest.mark.parametrize(
    ("name", "in_place"), [("decoder", True), ("placing", True), ("viewing", False)]
)
def test_a_cache_is_written_in_place_unless_its_earlier_values_are_read(
    exports: Exports, name: str, in_place: bool
) -> None:
    program = inspect_file(exports.root / name / "program.pte")
    for method in program.methods:
        names = {operator.name for operator in method.operators}
        assert ("aten::index_put_" in names, "aten::index_put.out" in names) == (
            in_place,
            not in_place,
        )
    cache = 8 * 4096 * 4
    most = max(method.planned_memory_bytes for method in program.methods)
    assert (most < 2 * cache) == in_place


def test_notes_say_which_method_they_are_about(exports: Exports) -> None:
    assert exports.provenance("counts").notes == (
        "In add: the model keeps state between calls (count); the expected outputs are those of "
        "its first call.",
    )
    told = exports.provenance("static").notes
    assert [note for note in told if not note.startswith("Rewritten for speed")] == [
        "2 calibration inputs of methods.py:samples set the ranges.",
        "The model keeps state between calls (cache); the expected outputs are those of its first "
        "call.",
    ]
    assert exports.provenance("heads-8da4w").notes == ("8da4w quantized 1 linear layer.",)


def test_calibration_does_not_change_the_state_that_a_program_starts_with(
    exports: Exports,
) -> None:
    # Without an empty cache, what the second call adds would be seen in the first.
    assert exports.provenance("static").of("decode").details["calibration_samples"] == 2
    assert all(d["max_abs_error"] < 0.1 for d in exports.distances["static"])


def test_a_program_with_methods_can_be_run_as_a_finished_one(
    exports: Exports, tmp_path: Path
) -> None:
    path = exports.root / "decoder" / "program.pte"
    spec = ExportSpec(program=str(path), method="decode")
    write_finished(spec, inspect_file(path), tmp_path)
    made = load_provenance(tmp_path)
    assert (made.method, [value.shape for value in made.inputs]) == ("decode", [(1, 32), (1,)])


@pytest.mark.parametrize("name", _EXPECTED)
def test_what_cannot_be_a_program_is_told(exports: Exports, name: str) -> None:
    failure = ExportFailure.load(exports.root / f"work-{name}" / "failure.json")
    assert failure_error(failure, Path("log")).message == _EXPECTED[name]
