"""Which method a recipe runs; one that the program has not is a mistake in the recipe."""

from __future__ import annotations

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.export.methods import first_method, only_method, values_of_method
from etdeploy.program.folder import MethodValues, Provenance
from etdeploy.program.model import Method, Operator, PlainValue, Program

TWO = Provenance(
    source="model.py:make",
    method="prefill",
    methods={
        "prefill": MethodValues(
            inputs=(PlainValue(kind="Int", value=1),), details={"delegation": 1}
        ),
        "decode": MethodValues(
            inputs=(PlainValue(kind="Int", value=2),), details={"delegation": 2}
        ),
    },
    details={"bytes": 3},
)


def program_of(*names: str, constants: tuple[str, ...] = ()) -> Program:
    calls = (Operator(name="aten::add.out", calls=1),)
    methods = tuple(
        Method(
            name=name,
            inputs=(),
            outputs=(),
            operators=() if name in constants else calls,
            delegates=(),
            instructions=0,
            planned_memory_bytes=0,
        )
        for name in (*names, *constants)
    )
    return Program(sha256="", size_bytes=0, schema_version=0, constant_bytes=0, methods=methods)


def test_forward_is_run_by_default_or_else_the_first() -> None:
    assert first_method(("encode", "forward")) == "forward"
    assert first_method(("prefill", "decode")) == "prefill"


@pytest.mark.parametrize(
    ("program", "method"),
    [
        (program_of("encode", "forward"), "forward"),
        (program_of("decode", constants=("get_bos_id", "get_vocab_size")), "decode"),
        (program_of(constants=("forward",)), "forward"),
        (program_of(constants=("get_bos_id",)), "get_bos_id"),
    ],
)
def test_the_only_method_of_a_finished_program_is_run(program: Program, method: str) -> None:
    assert only_method(program, "net.pte") == method


def test_the_values_of_a_method_are_those_that_the_recipe_names() -> None:
    decode = values_of_method(TWO, "decode", "recipe.yaml")
    assert (decode.method, decode.inputs[0]) == ("decode", PlainValue(kind="Int", value=2))
    assert (decode.methods, decode.details) == ({}, {"bytes": 3, "delegation": 2})
    default = values_of_method(TWO, None, "recipe.yaml")
    assert (default.method, default.inputs[0]) == ("prefill", PlainValue(kind="Int", value=1))


@pytest.mark.parametrize("provenance", [TWO, Provenance(source="net.pte")])
def test_values_of_a_method_that_is_not_there(provenance: Provenance) -> None:
    with pytest.raises(UsageError, match="no method 'encode'") as caught:
        values_of_method(provenance, "encode", "recipe.yaml")
    assert caught.value.place == "recipe.yaml"
