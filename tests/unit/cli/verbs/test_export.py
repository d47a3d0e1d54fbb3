"""What `etdeploy export` prints."""

from __future__ import annotations

from pathlib import Path

from etdeploy.cli.verbs.export import export_json, export_text
from etdeploy.program.folder import MethodValues, Provenance
from etdeploy.program.model import Program
from tests.support.bench_values import make_loss
from tests.support.text_values import make_evaluation, make_generation

FOLDER = Path("/programs/p")
PROGRAM = Program(schema_version=1, sha256="ab" * 32, size_bytes=100, methods=(), constant_bytes=0)


def test_how_good_a_language_model_is_stands_before_the_notes() -> None:
    generation = make_generation(evaluation=make_evaluation(14.5))
    made = Provenance(source="tiny", generation=generation, notes=("A note.",))
    lines = export_text(FOLDER, PROGRAM, made).splitlines()
    assert lines[0].startswith("/programs/p/program.pte: 100 B")
    assert lines[3] == (
        "  quality    perplexity 14.5 on 100 tokens of text.txt; before quantization 14"
    )
    assert lines[-1] == "  note       A note."
    told = export_json(FOLDER, PROGRAM, made)
    assert told["evaluation"]["quantized"]["perplexity"] == 14.5
    assert set(told) == {"folder", "program", "notes", "evaluation"}


def test_an_export_says_that_outputs_were_not_checked_and_where_they_can_be() -> None:
    made = Provenance(source="mlp", backend="coreml")
    [line] = [
        line
        for line in export_text(FOLDER, PROGRAM, made).splitlines()
        if line.startswith("  outputs ")
    ]
    for fact in ("not checked", "etdeploy run", "on macos or ios"):
        assert fact in line
    assert export_json(FOLDER, PROGRAM, made)["outputs"] == "not checked"
    anywhere = export_text(FOLDER, PROGRAM, made.model_copy(update={"backend": "xnnpack"}))
    assert "not checked" in anywhere
    assert ", on " not in anywhere


def test_the_loss_of_quantization_of_every_method() -> None:
    losses = (make_loss(),)
    made = Provenance(source="mlp", backend="xnnpack", quantization_loss=losses)
    assert "  quality    scores against" in export_text(FOLDER, PROGRAM, made)
    [loss] = export_json(FOLDER, PROGRAM, made)["quantization_loss"]["forward"]
    assert loss["sqnr_db"] == 27.0
    values = MethodValues(quantization_loss=losses)
    several = Provenance(source="t", backend="xnnpack", methods={"a": values, "b": MethodValues()})
    assert "  quality    a: scores against" in export_text(FOLDER, PROGRAM, several)
    text = several.model_copy(update={"generation": make_generation()})
    assert "quantization_loss" not in export_json(FOLDER, PROGRAM, text)
