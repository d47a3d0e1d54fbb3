"""Models from factories, weights, exported programs and finished programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etdeploy.export.derive import export_spec
from etdeploy.program.folder import Provenance, load_provenance
from etdeploy.program.inspect import inspect_file
from etdeploy.program.model import TensorInfo
from etdeploy.recipe.load import load_recipe
from tests.support.export import (  # noqa: F401 - fixtures
    ROOT,
    Exporter,
    assert_exported,
    export_workspace,
    exported,
    nightly_except,
    run_exported,
    run_python,
    selected,
    spec_of,
)
from tests.support.facts import lacks

pytestmark = pytest.mark.integration

WORKING = ROOT / "tests/data/export/working.py"
STATIC = {"quantization": "int8_static"}
# One of each kind; the others are nightly.
_SMOKE = (
    "nested", "counter", "dropped", "weights-safetensors", "pt2", "everything", "by_keyword",
    "with_c_function-strict", "sizes", "own-samples", "mixed-8da4w", "open_batch",
)  # fmt: skip
# Programs that tests name besides those that they are parametrized by.
_ALWAYS = {"nested", "dropped"}

_SIZES = {"most": {"pairs": 16}, "example": {}, "least": {"pairs": 1}}


@dataclass(frozen=True)
class Exports:
    """Program folders by name, and how far ExecuTorch's outputs are from the expected ones."""

    root: Path
    distances: dict[str, list[dict[str, Any]]]

    def provenance(self, name: str) -> Provenance:
        return load_provenance(self.root / name)

    def notes(self, name: str) -> tuple[str, ...]:
        """Without that of the rewrites, which have tests of their own."""
        notes = self.provenance(name).notes
        return tuple(note for note in notes if not note.startswith("Rewritten for speed"))


def _recipes(files: Path) -> dict[str, dict[str, Any]]:
    def factory(name: str, export: dict[str, Any] | None = None, **model: Any) -> dict[str, Any]:
        return {"model": {"python": f"{WORKING}:{name}", **model}, "export": export or {}}

    sources = {
        n: factory(n)
        for n in (
            *("nested", "counter", "rows", "dropped", "open_batch", "everything"),
            *("photo", "by_pixel", "transposed", "in_parts", "frames"),
        )
    }
    return {
        **sources,
        "everything-static": factory("everything", STATIC),
        "sizes": {**factory("looked_up"), "benchmark": {"sizes": _SIZES}},
        "sizes-static": {**factory("rows", STATIC), "benchmark": {"sizes": {"all": {"x.0": 16}}}},
        "sizes-number": {
            **factory("scaled_by_a_number"),
            "benchmark": {"sizes": {"most": {"rows": 16}, "least": {"rows": 1}}},
        },
        "sizes-pt2": {
            "model": {"exported": str(files / "model.pt2")},
            "benchmark": {"sizes": {"all": {"x.0": 16}}},
        },
        "sizes-own": {
            **factory("looked_up"),
            "benchmark": {"sizes": _SIZES, "inputs": f"{WORKING}:own_inputs"},
        },
        "by_keyword": factory("by_keyword"),
        "by_keyword-strict": factory("by_keyword", {"strict": True}),
        "pt2-keywords": {"model": {"exported": str(files / "keywords.pt2")}},
        "rows-static": factory("rows", STATIC),
        "cached": factory("cached"),
        "with_numpy": factory("with_numpy"),
        "with_numpy-static": factory("with_numpy", STATIC),
        "with_c_function-strict": factory("with_c_function", {"strict": True}),
        "dropped-strict": factory("dropped", {"strict": True}),
        "dropped-seed": factory("dropped", {"seed": 7}),
        "weights-pt": factory("dropped", weights=str(files / "weights.pt")),
        "weights-safetensors": factory("dropped", weights=str(files / "weights.safetensors")),
        "mixed-8da4w": factory("mixed_sizes", {"quantization": "8da4w"}),
        "computed-8da4w": factory("computed_weights", {"quantization": "8da4w"}),
        "attending-8da4w": factory("attending", {"quantization": "8da4w"}),
        "own-samples": factory("mixed_sizes", {**STATIC, "calibration": f"{WORKING}:samples"}),
        "no-samples": factory("mixed_sizes", STATIC),
        "photo-static": factory("photo", {**STATIC, "calibration": f"{WORKING}:photos"}),
        "pt2-photo": {"model": {"exported": str(files / "photo.pt2")}},
        "pt2": {"model": {"exported": str(files / "model.pt2")}},
        "pt2-static": {"model": {"exported": str(files / "model.pt2")}, "export": STATIC},
    }


_WRITE = """
import sys, json
from pathlib import Path
import numpy as np
import torch
sys.path.insert(0, sys.argv[1])
from working import Dropped, everything, photo
files = Path(sys.argv[2])
torch.manual_seed(11)
module = Dropped().eval()
state = module.state_dict()
torch.save(state, files / "weights.pt")
np.savez(files / "weights.npz", **{name: tensor.numpy() for name, tensor in state.items()})
header, data = {}, b""
for name, tensor in state.items():
    raw = tensor.numpy().tobytes()
    offsets = [len(data), len(data) + len(raw)]
    header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": offsets}
    data += raw
text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
(files / "weights.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
rows = {"x": {0: torch.export.Dim("rows", min=1, max=16)}}
program = torch.export.export(module, (torch.randn(3, 8),), dynamic_shapes=rows)
torch.export.save(program, files / "model.pt2")
module, args, keywords, shapes = everything()
module.kind = dict  # a file does not know the class
program = torch.export.export(module.eval(), args, keywords, dynamic_shapes=shapes)
torch.export.save(program, files / "keywords.pt2")
torch.export.save(torch.export.export(*photo()), files / "photo.pt2")
"""


@pytest.fixture(scope="module")
def exports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exports:
    """The programs that the tests of this run are about."""
    root = tmp_path_factory.mktemp("sources")
    run_python("-c", _WRITE, str(WORKING.parent), str(root))
    specs = {name: spec_of(recipe) for name, recipe in _recipes(root).items()}
    specs["stripes"] = export_spec(load_recipe(str(ROOT / "examples/stripes/recipe.yaml")).recipe)
    names = selected(request, "name") | _ALWAYS
    specs = {name: spec for name, spec in specs.items() if name in names}
    assert_exported(root, specs)
    return Exports(root, run_exported(root, specs))


_EXACT = (
    "nested",
    "counter",
    "rows",
    "dropped",
    "dropped-strict",
    "dropped-seed",
    "weights-pt",
    "weights-safetensors",
    "pt2",
    "everything",
    "by_keyword",
    "by_keyword-strict",
    "pt2-keywords",
    "cached",
    "with_numpy",
    "with_c_function-strict",
    "sizes",
    "sizes-number",
    "sizes-pt2",
    "sizes-own",
    "photo",
    "by_pixel",
    "transposed",
    "pt2-photo",
    "in_parts",
    "frames",
)  # fmt: skip


@pytest.mark.parametrize("name", nightly_except(_EXACT, *_SMOKE))
def test_the_runtime_gives_the_expected_outputs(exports: Exports, name: str) -> None:
    assert all(d["max_abs_error"] < 1e-5 for d in exports.distances[name])


_QUANTIZED = (
    "rows-static",
    "photo-static",
    "mixed-8da4w",
    "attending-8da4w",
    "computed-8da4w",
    "own-samples",
    "no-samples",
    "pt2-static",
    "stripes",
    "everything-static",
    "with_numpy-static",
    "sizes-static",
)  # fmt: skip


@pytest.mark.parametrize("name", nightly_except(_QUANTIZED, *_SMOKE))
def test_quantized_models_give_the_expected_outputs(exports: Exports, name: str) -> None:
    assert all(d["cosine_similarity"] > 0.998 for d in exports.distances[name])


@pytest.mark.parametrize("name", nightly_except(("photo", "pt2-photo", "transposed"), *_SMOKE))
def test_inputs_in_another_order_than_their_shape_are_noted(exports: Exports, name: str) -> None:
    note = exports.notes(name)[0]
    assert ("channels_last" in note) == (name != "transposed")
    assert ("[1, 5]" if name == "transposed" else "[3, 1, 30, 3]") in note
    assert "by_pixel" not in exports.provenance(name).details


@pytest.mark.parametrize("name", nightly_except(["sizes-number"]))
def test_an_etrecord_that_executorch_does_not_write_is_noted(exports: Exports, name: str) -> None:
    (note,) = exports.notes(name)
    assert "no ETRecord" in note
    assert "aten.item" in note
    assert not list((exports.root / name).rglob("*etrecord*"))


@pytest.mark.parametrize("name", nightly_except(["by_pixel"]))
def test_images_that_are_by_pixel_on_purpose_stay_so(exports: Exports, name: str) -> None:
    assert exports.provenance(name).details["by_pixel"] == ["image"]
    (note,) = exports.notes(name)
    assert "image.contiguous()" in note


@pytest.mark.nightly
def test_steps_of_recurrent_layers_are_counted_before_they_are_unrolled() -> None:
    code = """
import torch
from torch import nn
from etdeploy.export.worker.tracing.dims import recurrence_notes, unrolled_steps
for layer, shape in (
    (nn.LSTM(4, 5, 3, batch_first=True, bidirectional=True), (2, 30, 4)),
    (nn.LSTM(4, 5, 3), (160, 1, 4)),
    (nn.GRU(4, 5, 2), (40, 2, 4)),
    (nn.RNN(4, 5), (7, 4)),
):
    program = torch.export.export(layer, (torch.randn(shape),))
    print("steps", unrolled_steps(program), *recurrence_notes(program))
"""
    lines = [line for line in run_python("-c", code).splitlines() if line.startswith("steps")]
    assert [line.split()[1] for line in lines] == ["180", "480", "80", "7"]
    assert ["minute" in line for line in lines] == [True, True, False, False]
    assert "2 minutes" in lines[1]


def test_nested_inputs_and_outputs_are_flattened_in_order(exports: Exports) -> None:
    provenance = exports.provenance("nested")
    assert [(t.name, t.dtype, t.shape) for t in provenance.inputs] == [
        ("pair.a", "float32", (2, 8)),
        ("pair.b", "float32", (2, 8)),
        ("rest.0", "float32", (5,)),
        ("rest.1", "int64", (3,)),
    ]
    assert [(t.name, t.shape) for t in provenance.expected] == [("sum", (2, 4)), ("picked", (3,))]


@pytest.mark.parametrize(
    "name", nightly_except(("everything", "everything-static", "pt2-keywords"), *_SMOKE)
)
def test_plain_and_keyword_inputs_and_all_outputs_keep_their_names(
    exports: Exports, name: str
) -> None:
    provenance = exports.provenance(name)
    assert [(t.name, t.dtype) for t in provenance.inputs] == [
        ("x", "float32"),
        ("repeat", "int"),
        ("scale", "float"),
        ("flag", "bool"),
        ("mask", "None"),
        ("bias", "float32"),
    ]
    assert [(t.name, t.dtype) for t in provenance.expected] == [
        ("result.logits", "float32"),
        ("result.hidden.0", "float32"),
        ("result.hidden.1.last/one", "float32"),
        ("repeat", "int"),
        ("scale", "float"),
        ("rows", "int"),
        ("mask", "None"),
    ]
    files = sorted(p.name for p in (exports.root / name / "expected").iterdir())
    assert files == [
        "0.result.logits.bin",
        "1.result.hidden.0.bin",
        "2.result.hidden.1.last_one.bin",
    ]
    assert provenance.notes[-1] == (
        "Plain values are fixed in the program: repeat = 2, scale = 0.5, flag = True. What is to "
        "change from call to call has to be a tensor."
    )


@pytest.mark.parametrize("name", nightly_except(("by_keyword", "by_keyword-strict"), *_SMOKE))
def test_keyword_inputs_stay_in_the_callers_order(exports: Exports, name: str) -> None:
    names = [t.name for t in exports.provenance(name).inputs]
    assert names == ["bias", "mask", "x", "flag", "scale", "repeat"]
    (method,) = inspect_file(exports.root / name / "program.pte").methods
    kinds = [getattr(i, "kind", "Tensor") for i in method.inputs]
    assert kinds == ["Tensor", "Tensor", "Tensor", "Bool", "Double", "Int"]


@pytest.mark.parametrize("name", ["counter"])
def test_state_keeps_its_first_value(exports: Exports, name: str) -> None:
    # Five and one more, plus the sum of ones: the first call's result, not a later one's.
    [note] = exports.notes(name)
    assert not lacks(note, "state", "(count, total);", "first call")


@pytest.mark.parametrize(
    "name",
    nightly_except(
        ("cached", "with_numpy", "with_numpy-static", "with_c_function-strict"), *_SMOKE
    ),
)
def test_the_other_mode_of_torch_export_is_tried_and_noted(exports: Exports, name: str) -> None:
    mode = "false" if name.endswith("-strict") else "true"
    note = exports.notes(name)[0]
    assert note.startswith(f"Traced with export.strict={mode}: ")
    assert f"strict: {mode} under export:" in note
    assert exports.provenance(name).details["retraced"] == note


@pytest.mark.parametrize(
    "name", nightly_except(("rows", "rows-static", "pt2", "pt2-static"), *_SMOKE)
)
def test_dynamic_shapes_reach_the_program(exports: Exports, name: str) -> None:
    (method,) = inspect_file(exports.root / name / "program.pte").methods
    assert isinstance(method.inputs[0], TensorInfo)
    assert (method.inputs[0].dynamic, method.inputs[0].shape) == (True, (16, 8))
    assert exports.provenance(name).inputs[0].shape == (3, 8)


@pytest.mark.parametrize("name", ["open_batch"])
def test_a_dimension_that_became_the_examples_size_is_noted(exports: Exports, name: str) -> None:
    code, example = exports.notes(name)
    assert not lacks(code, "size 3", "dimension 0 of the input x,", "Dim.DYNAMIC")
    assert not lacks(example, "size 1", "dimension 0", "input pair,", "example of 2")


@pytest.mark.parametrize("name", nightly_except(("sizes", "sizes-own"), *_SMOKE))
def test_every_size_has_inputs_and_outputs_of_its_own(exports: Exports, name: str) -> None:
    sets = exports.provenance(name).measured
    shapes = {n: [v.shape for v in (*s.inputs, *s.expected)] for n, s in sets.items()}
    assert shapes == {
        "most": [(16,), (32,), (32, 8)],
        "example": [(2,), (4,), (4, 8)],
        "least": [(1,), (2,), (2, 8)],
    }
    assert [s.sizes for s in sets.values()] == list(_SIZES.values())
    ids = exports.root / name / "inputs/most/1.ids.bin"
    drawn = set(np.frombuffer(ids.read_bytes(), dtype=np.int64).tolist())
    assert drawn == ({3, 5, 8} if name == "sizes" else set(range(9)))
    example = exports.root / name / "inputs/example/0.halves.bin"
    assert np.frombuffer(example.read_bytes(), dtype=np.float32).tolist() == [0.5, -0.5]


@pytest.mark.parametrize("name", nightly_except(("weights-pt", "weights-safetensors"), *_SMOKE))
def test_weights_replace_the_random_ones(exports: Exports, name: str) -> None:
    weights = np.load(exports.root / "weights.npz")
    value = np.fromfile(exports.root / name / "inputs/0.x.bin", dtype=np.float32)
    for layer in ("layers.0", "layers.2"):
        value = weights[f"{layer}.weight"] @ value + weights[f"{layer}.bias"]
    np.testing.assert_allclose(_expected(exports.root / name), value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", nightly_except(("dropped-strict", "dropped-seed"), *_SMOKE))
def test_the_seed_decides_weights_and_inputs(exports: Exports, name: str) -> None:
    same = np.array_equal(_expected(exports.root / "dropped"), _expected(exports.root / name))
    assert same == (name == "dropped-strict")


def _expected(folder: Path) -> Any:
    return np.frombuffer((folder / "expected/0.bin").read_bytes(), dtype=np.float32)


_CALIBRATED = {
    "no-samples": [("example inputs", "export.calibration")],
    "own-samples": [("3 calibration inputs", "working.py:samples")],
    "mixed-8da4w": [("in floats", "group size 32: 2."), ("8da4w", "1 linear layer.")],
    "attending-8da4w": [
        ("nn.MultiheadAttention", ": layers.0.self_attn."),
        ("8da4w", "2 linear layers."),
    ],
}


@pytest.mark.parametrize("name", nightly_except(_CALIBRATED, *_SMOKE))
def test_notes_name_calibration_data_and_layers_in_floats(exports: Exports, name: str) -> None:
    facts = _CALIBRATED[name]
    assert [lacks(note, *each) for note, each in zip(exports.notes(name), facts, strict=True)] == [
        []
    ] * len(facts)


@pytest.mark.parametrize("name", nightly_except(["stripes"]))
def test_the_users_example_is_quantized_with_its_own_samples(exports: Exports, name: str) -> None:
    provenance = exports.provenance(name)
    assert provenance.source == "model.py:make"
    assert provenance.details["calibration_samples"] == 8
    assert provenance.details["delegation"]["undelegated_nodes"] == 0
    assert [Path(p).name for p in provenance.code_files] == ["model.py"]


def test_a_finished_program_gets_random_inputs(exports: Exports, exported: Exporter) -> None:  # noqa: F811
    made = exports.root / "nested" / "program.pte"
    program = exported({"model": {"program": str(made)}})
    folder = Path(program.folder)
    provenance = load_provenance(folder)
    assert program.sha256 == inspect_file(made).sha256
    assert (folder / "program.json").is_file()
    assert (provenance.source, provenance.backend, provenance.expected) == ("program.pte", None, ())
    assert [t.dtype for t in provenance.inputs] == ["float32", "float32", "float32", "int64"]
    again = exported({"model": {"program": str(made)}, "benchmark": {"iterations": 3}})
    assert again == program.model_copy(update={"cached": True})
