"""etdeploy export and etdeploy inspect."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from etdeploy.cli.options import options
from etdeploy.core import console
from etdeploy.core.layout import fit
from etdeploy.graph.job import StepName
from etdeploy.graph.options import job_options

if TYPE_CHECKING:
    from etdeploy.program.folder import Provenance
    from etdeploy.program.model import Program

    _Export = tuple[Path, Program, Provenance]


@click.command()
@options("recipes", "set", "model", "text", "image", "audio", "context")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Copy the program, its inputs and its expected outputs to this folder.",
)
@options("jobs", "fail-fast", "json", "quiet")
def export(output: Path | None, as_json: bool, **values: Any) -> None:
    """Turn the recipe's model into a program: .pte, inputs, expected outputs, ETRecord.

    Several recipes are exported in parallel; --output is for one.
    """
    named = job_options(**values)
    from etdeploy.graph.invocation import (
        deliver,
        failure_in_short,
        print_json,
        raise_failures,
        results,
        run_recipes,
    )
    from etdeploy.graph.job import Job, load_program
    from etdeploy.program.folder import load_provenance

    def load(job: Job) -> _Export:
        exported, program = load_program(job)
        folder = Path(exported.folder)
        if output:
            folder = deliver(job, folder, output, StepName.EXPORT)
        return folder, program, load_provenance(folder)

    with run_recipes(named, StepName.EXPORT, output) as ends:
        found = results(ends, load)
    if as_json:
        print_json(named, found, lambda _, made: export_json(*made))
    elif named.single:
        console.result("\n".join(export_text(*made) for _, made in found if made))
    else:
        rows = [
            (
                end.member.pair.recipe,
                console.size(made[1].size_bytes) if made else None,
                str(made[0] / "program.pte") if made else failure_in_short(end),
            )
            for end, made in found
        ]
        columns = ("recipe", "size", "program")
        table = console.table(columns, rows, right=("size",), width=console.width())
        console.result("\n" + table)
        for end, made in found:
            if made:
                _warn_of_losses(end.member.pair.recipe, made[2])
    raise_failures(ends)


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="MODEL.pte")
@options("json")
def inspect(file: Path, as_json: bool) -> None:
    """Show a program's methods, operators, delegates and sizes, without torch."""
    from etdeploy.program.finished import contract_of
    from etdeploy.program.inspect import describe, inspect_file

    program = inspect_file(file)
    if as_json:
        contract = contract_of(program)
        text = {"contract": contract.name, "missing": contract.missing} if contract else None
        console.result_json({**program.model_dump(mode="json"), "text_generation": text})
    else:
        console.result(fit(describe(program, str(file)), console.width()))


def _warn_of_losses(recipe: str, made: Provenance) -> None:
    """Warn of each output that quantization moves far."""
    from etdeploy.program.quality import loss_lines

    losses = made.quantization_losses.values()
    for line in loss_lines([loss for each in losses for loss in each if loss.is_high]):
        console.warn(f"{recipe}: {line}")


def export_json(folder: Path, program: Program, made: Provenance) -> dict[str, Any]:
    """What --json prints of an export.

    It has `evaluation` where the recipe names a text, and `quantization_loss`, by method, of a
    quantized model.
    """
    evaluation = made.generation.evaluation if made.generation else None
    losses = {
        method: [loss.model_dump(mode="json") for loss in found]
        for method, found in made.quantization_losses.items()
    }
    return {
        "folder": str(folder),
        "program": program.model_dump(mode="json"),
        "notes": made.notes,
        **({"outputs": "not checked"} if made.backend else {}),
        **({"quantization_loss": losses} if losses else {}),
        **({"evaluation": evaluation.model_dump(mode="json")} if evaluation else {}),
    }


def export_text(folder: Path, program: Program, made: Provenance) -> str:
    """The program, how good the model is, and notes."""
    from etdeploy.backends.registry import backend_named
    from etdeploy.program.inspect import describe
    from etdeploy.program.quality import loss_lines, quality_lines

    labelled = []
    # The note of a program that another exporter made says the same of it.
    elsewhere = made.generation and made.generation.path == "finished"
    if made.backend and not elsewhere:
        backend = backend_named(made.backend)
        where = f", on {backend.where}" if backend.systems else ""
        text = f"not checked: etdeploy run compares them with the model's{where}"
        labelled.append(("outputs", text))
    evaluation = made.generation.evaluation if made.generation else None
    labelled += [("quality", line) for line in (quality_lines(evaluation) if evaluation else ())]
    for method, losses in made.quantization_losses.items():
        of = f"{method}: " if made.methods else ""
        labelled += [("quality", f"{of}{line}") for line in loss_lines(losses)]
    labelled += [("note", note) for note in made.notes]
    # As wide as a terminal: what cannot be delegated may take a paragraph.
    lines = (fit(f"  {name:<10} {line}", console.width() or 100) for name, line in labelled)
    text = describe(program, str(folder / "program.pte"))
    return "\n".join([text, *([""] if labelled else []), *lines])
