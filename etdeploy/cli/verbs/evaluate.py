"""etdeploy evaluate."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from etdeploy import __version__
from etdeploy.backends.schemes import LANGUAGE_RECIPE
from etdeploy.cli.options import options
from etdeploy.cli.verbs.generate import open_language_model
from etdeploy.core import cancel, console
from etdeploy.core.errors import EtdeployError, UsageError
from etdeploy.core.files.basic import annotate_oserror
from etdeploy.graph.options import JobOptions, job_options

if TYPE_CHECKING:
    from etdeploy.evaluate.scores import ItemScore, TaskEvaluation
    from etdeploy.evaluate.tasks import TaskFile
    from etdeploy.program.tokenizer import ChatTemplate
    from etdeploy.report.document import Block
    from etdeploy.session.session import Session

_SCORE = "score"


@click.command()
@click.option(
    "--tasks",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="JSON Lines with prompts and choices or answers, or texts; or the YAML file of a task of "
    "lm-eval with local data.",
)
@options("language-recipe", "set", "model", "lora", "context", "device", "target")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N items.")
@click.option(
    "--chat-template",
    "uses_template",
    is_flag=True,
    help="Format prompts as a message, by the model's own chat template.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE.json",
    help="Where the scores of all items go.  [default: a new file in etdeploy-out/]",
)
@options("json", "quiet")
def evaluate(
    tasks: Path,
    limit: int | None,
    uses_template: bool,
    output: Path | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Score a language model on the device: right choices, right answers, perplexity.

    The model is exported, built and pushed unless that is done already. What a device computes is
    what is scored: quantization, kernels and all. Ctrl-C stores what was scored so far.
    """
    from etdeploy.evaluate.tasks import load_tasks
    from etdeploy.report import terminal

    found = load_tasks(tasks, limit)
    if output and output.exists():
        raise UsageError(f"{output} exists already", remedy="Name another file with --output")
    named = replace(job_options(otherwise=LANGUAGE_RECIPE, **values), speech="text")
    with open_language_model(named, {}) as opened:
        _require_scores(opened.session)
        run = _EvaluationRun(
            opened.session, named, found,
            opened.session.chat_template if uses_template else None,
            output or _free_path(named.output, tasks.stem),
        )  # fmt: skip
        result = run.run()
    if as_json:
        console.result_json(result.model_dump(mode="json"))
        return
    console.result("\n" + terminal.render(_blocks(result, run.path), console.width()))


def _require_scores(session: Session) -> None:
    if not session.converses:
        raise UsageError(
            f"{session.device} cannot stream stdin to a running process, which scores need",
            remedy="Choose another device: etdeploy devices",
        )


def _free_path(folder: Path, name: str) -> Path:
    stamp = f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"
    return folder / "evaluations" / f"{stamp}-{name}.json"


@dataclass(frozen=True)
class _EvaluationRun:
    session: Session
    named: JobOptions
    tasks: TaskFile
    template: ChatTemplate | None
    path: Path

    def run(self) -> TaskEvaluation:
        """Score all items, and store the result; of a run that fails, what was scored so far."""
        scores: list[ItemScore] = []
        try:
            self._score(scores)
        except EtdeployError:
            if scores:
                self._store(scores)
                console.message(
                    f"{len(scores):,} of {len(self.tasks.items):,} items were scored: {self.path}"
                )
            raise
        return self._store(scores)

    def _score(self, scores: list[ItemScore]) -> None:
        from etdeploy.evaluate.scores import score_items

        most, began_s = len(self.tasks.items), time.monotonic()
        with console.TaskDisplay(quiet=self.named.quiet) as display:
            display.start(_SCORE)
            items = score_items(self.session, self.tasks.items, self.template, cancel.current())
            for score in items:
                scores.append(score)
                display.advance(_SCORE, f"item {len(scores):,} of {most:,}", len(scores) / most)
                cancel.checkpoint()
            display.end(_SCORE, console.count(most, "item"), time.monotonic() - began_s)

    def _store(self, scores: Sequence[ItemScore]) -> TaskEvaluation:
        from etdeploy.evaluate.scores import TaskEvaluation, task_metrics

        session = self.session
        result = TaskEvaluation(
            created=datetime.now(timezone.utc), etdeploy_version=__version__,
            tasks=str(self.tasks.path), tasks_sha256=self.tasks.sha256,
            recipe=str(self.named.recipes[0]), model=session.generation.model,
            program_sha256=session.identity[0], device=session.device_facts,
            simulated=session.simulated.by if session.simulated else None,
            chat_template=self.template is not None,
            is_complete=len(scores) == len(self.tasks.items),
            metrics=task_metrics(scores), items=tuple(scores),
        )  # fmt: skip
        with annotate_oserror(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            result.save(self.path)
        return result


def _blocks(result: TaskEvaluation, path: Path) -> Iterator[Block]:
    from etdeploy.report.document import Fact, Facts, table

    rows = [
        [
            metric.name, f"{metric.value:.4g}",
            f"{metric.standard_error:.2g}" if metric.standard_error is not None else "",
            f"{metric.items:,}",
        ]
        for metric in result.metrics
    ]  # fmt: skip
    yield table("scores", ["metric", "value", "standard error", "items"], rows)
    yield Facts((Fact("record", (str(path),)),))
