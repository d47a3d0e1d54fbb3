"""What `etdeploy export` prints."""

from __future__ import annotations

from pathlib import Path

from etdeploy.cli.verbs.export import told_as_json, told_as_text
from etdeploy.program.folder import Provenance
from etdeploy.program.model import Program
from tests.support.text_values import make_evaluation, make_generation

FOLDER = Path("/programs/p")
PROGRAM = Program(schema_version=1, sha256="ab" * 32, size_bytes=100, methods=(), constant_bytes=0)


def test_how_good_a_language_model_is_stands_before_the_notes() -> None:
    generation = make_generation(evaluation=make_evaluation(14.5))
    made = Provenance(source="tiny", generation=generation, notes=("A note.",))
    lines = told_as_text(FOLDER, PROGRAM, made).splitlines()
    assert lines[0].startswith("/programs/p/program.pte: 100 B")
    assert lines[3] == (
        "  quality    perplexity 14.5 on 100 tokens of text.txt; before quantisation 14"
    )
    assert lines[-1] == "  note       A note."
    told = told_as_json(FOLDER, PROGRAM, made)
    assert told["evaluation"]["quantized"]["perplexity"] == 14.5
    assert set(told) == {"folder", "program", "notes", "evaluation"}


def test_other_programs_have_no_such_lines() -> None:
    for made in (Provenance(source="mlp"), Provenance(source="t", generation=make_generation())):
        assert "quality" not in told_as_text(FOLDER, PROGRAM, made)
        assert "evaluation" not in told_as_json(FOLDER, PROGRAM, made)
