"""Weights outside of a program: which ones it names, and the files that have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.export.finished import write_finished
from etdeploy.export.spec import ExportSpec
from etdeploy.program.folder import load_provenance
from etdeploy.program.inspect import describe, inspect_file
from etdeploy.program.ptd import data_keys, find_data
from tests.support.program_files import Plan, Tensor, ptd, pte, xnnpack_payload


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """One that names a weight of its own graph, and one of a partition."""
    plan = Plan(
        inputs=(Tensor((2, 16)), Tensor((4,), external="head.bias")),
        delegates=(("XnnpackBackend", 0),),
    )
    path = tmp_path / "model.pte"
    path.write_bytes(pte(plan, segments=(xnnpack_payload(1, ["packed"]),)))
    return path


def test_the_names_of_weights_elsewhere(program: Path) -> None:
    found = inspect_file(program)
    assert found.external == ("head.bias", "packed")
    assert "2 weights in .ptd files" in describe(found, "model.pte")


def test_the_files_that_have_them(program: Path) -> None:
    folder = program.parent
    (folder / "a.ptd").write_bytes(ptd("packed", "other"))
    (folder / "b.ptd").write_bytes(ptd("head.bias"))
    (folder / "c.ptd").write_bytes(ptd("of.another.program"))
    assert data_keys(folder / "a.ptd") == {"packed", "other"}
    files = find_data(program, inspect_file(program).external, folder)
    assert [path.name for path in files] == ["a.ptd", "b.ptd"]


def test_they_are_put_beside_the_program(program: Path, tmp_path: Path) -> None:
    (tmp_path / "weights.ptd").write_bytes(ptd("packed", "head.bias"))
    made = tmp_path / "made"
    made.mkdir()
    write_finished(ExportSpec(program=str(program)), inspect_file(program), made)
    assert load_provenance(made).data == ("weights.ptd",)
    assert (made / "weights.ptd").read_bytes() == (tmp_path / "weights.ptd").read_bytes()


def refusal(program: Path) -> UsageError:
    with pytest.raises(UsageError) as caught:
        find_data(program, inspect_file(program).external, program.parent)
    return caught.value


def test_weights_that_are_in_no_file(program: Path) -> None:
    error = refusal(program)
    assert "2 weights" in error.message
    assert "head.bias, packed" in error.message
    assert str(program.parent) in str(error.remedy)
    (program.parent / "a.ptd").write_bytes(ptd("packed"))
    error = refusal(program)
    assert "1 weight " in error.message
    assert "a.ptd: head.bias" in error.message


def test_weights_that_are_in_two_files(program: Path) -> None:
    for name in ("a.ptd", "b.ptd"):
        (program.parent / name).write_bytes(ptd("packed", "head.bias"))
    assert "a.ptd and b.ptd" in refusal(program).message


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not a tensor data file"),
        (pte(Plan()), "not a tensor data file"),
        (ptd("packed")[:-8], "truncated"),
    ],
)
def test_a_file_that_is_none(program: Path, content: bytes, says: str) -> None:
    (program.parent / "a.ptd").write_bytes(content)
    error = refusal(program)
    assert says in error.message
    assert error.place == str(program.parent / "a.ptd")
