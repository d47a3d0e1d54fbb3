"""Texts that are known of the model, against what the device gave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from etdeploy.bench.generation.prompts import text_of
from etdeploy.bench.generation.request import compared_ids
from etdeploy.bench.generation.results import runs_of
from etdeploy.bench.outputs.texts import check_text
from etdeploy.bench.records.texts import TextCheck
from etdeploy.program.folder import Provenance
from etdeploy.recipe.model import Tolerance
from etdeploy.runner.generation import GenerationResults


def texts_of(
    made: Provenance, results: GenerationResults | None, tolerance: Tolerance, program_folder: Path
) -> Iterator[TextCheck]:
    """The verdict on each text.

    Args:
        made: How the program was made, with the texts that are known of the model.
        results: Of the text pass; None where there was none.
        tolerance: The recipe's own limits.
        program_folder: With the tokenizer.
    """
    if made.generation is None or results is None:
        return
    ids = compared_ids(made.generation)
    for i, expected in enumerate(made.generation.expected):
        [run] = runs_of(results, i)
        yield check_text(
            f"text_{i}",
            run.token_ids,
            expected,
            made.quantization,
            tolerance,
            logits=[dict(zip(ids, logits, strict=True)) for logits in run.logits],
            prompt=text_of(expected.prompt_ids, made.generation, program_folder),
            text=text_of(run.token_ids, made.generation, program_folder),
        )
