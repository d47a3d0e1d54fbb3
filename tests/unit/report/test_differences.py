"""What differs between runs."""

from __future__ import annotations

from etdeploy.report.formats import differences
from tests.support.bench_values import SIMULATED, make_device, make_record


def test_equal_runs_differ_in_nothing() -> None:
    assert differences([make_record(), make_record((9.0,))]) == {}


def test_values_stand_beside_each_other_by_name() -> None:
    a, b = make_record(), make_record(device=make_device(name="qemu"), simulated=SIMULATED)
    content = {"export": {"quantization": "none"}, "model": {"example": "mlp"}}
    a = a.model_copy(update={"recipe": a.recipe.model_copy(update={"content": content})})
    content = {"export": {"quantization": "8da4w"}, "model": {"example": "mlp"}}
    b = b.model_copy(update={"recipe": b.recipe.model_copy(update={"content": content})})
    assert differences([a, b, b]) == {
        "recipe.export.quantization": ("none", "8da4w", "8da4w"),
        "device.name": ("host", "qemu", "qemu"),
        "simulated": ("no", "Simulator 1.2.3", "Simulator 1.2.3"),
    }


def test_a_value_that_one_lacks_is_a_dash() -> None:
    a, b = make_record(), make_record(versions={"etdeploy": "0", "torch": "2"})
    assert differences([a, b]) == {"versions.torch": ("–", "2")}


def test_long_values_keep_both_ends() -> None:
    a, b = make_record(versions={"x": "a" * 200}), make_record(versions={"x": "a" * 199 + "b"})
    [(first, second)] = differences([a, b]).values()
    assert first != second
    assert max(len(first), len(second)) <= 81
