"""What a reader of a record about generated text has to know."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.core.text.install import pip_command


def generation_notes(workload: TextGeneration, *, has_tokenizer: bool) -> Iterator[str]:
    """Sentences about texts and about what was not measured.

    Args:
        workload: As the record has it.
        has_tokenizer: Whether the program has one.
    """
    for point in workload.points:
        if point.distinct > 1:
            yield (
                f"{point.generations} generations of the same prompt with the same seed "
                f"({point.label}) gave {point.distinct} different texts: what a kernel computes "
                "depends on chance, such as the order of its threads."
            )
    if has_tokenizer and any(point.text is None for point in workload.points):
        yield (
            "The record has token ids and no text, because the model's tokenizer cannot be read: "
            + pip_command("etdeploy[llm]")
        )
