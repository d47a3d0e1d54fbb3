"""The files with which a runner is told what to generate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from etdeploy.bench.generation.work import GenerationWorkload, WorkPoint
from etdeploy.core.files.basic import write_atomic
from etdeploy.program.expected import sampled_ids
from etdeploy.program.generation import Generation
from etdeploy.runner.generation import PromptRun, Sampling, prompt_bytes, request_lines

FOLDER = "generation"
TIMING_REQUEST = f"{FOLDER}/timing.txt"
MEMORY_REQUEST = f"{FOLDER}/memory.txt"
TEXT_REQUEST = f"{FOLDER}/text.txt"
PROFILE_REQUEST = f"{FOLDER}/profile.txt"
# Tokens of a warm-up before traced calls: most of these have a text of their own before them.
_WARMUP_TOKENS = 4


def point_name(index: int) -> str:
    """Names a point in the runner's results."""
    return f"point-{index}"


def warmup_name(index: int) -> str:
    """Names the same point in the generations before those that count."""
    return f"warmup-{index}"


def write_request(work: GenerationWorkload, folder: Path) -> Mapping[str, Path]:
    """Writes what the runner is told, and the prompts.

    Args:
        work: What is generated.
        folder: Gets the files; they must remain as long as the bundle is used.

    Returns:
        The files by their paths in the bundle.
    """
    # A text that ends early would leave methods untraced.
    endless = replace(work, stop_ids=())
    files = {TIMING_REQUEST: _requested(work, _timed(work.points)),
             MEMORY_REQUEST: _requested(work, _short(work.points)),
             PROFILE_REQUEST: _requested(endless, _traced(work))}  # fmt: skip
    files |= {
        f"{FOLDER}/{_prompt_file(i)}": prompt_bytes(point.prompt)
        for i, point in enumerate(work.points)
    }
    files |= _expected(work)
    found = {}
    for name, content in files.items():
        found[name] = folder / Path(name).name
        write_atomic(found[name], content)
    return found


def _expected(work: GenerationWorkload) -> dict[str, bytes]:
    """The texts of the model, which the program follows: a token that differs changes no other."""
    texts = work.generation.expected
    if not texts:
        return {}
    ids = compared_ids(work.generation)
    points = [
        PromptRun(
            name=point_name(i), new_tokens=len(text.expected.tokens),
            path=_expected_prompt_file(i), follows=True,
        )
        for i, text in enumerate(texts)
    ]  # fmt: skip
    greedy = replace(work, sampling=Sampling(), stop_ids=())
    return {TEXT_REQUEST: _requested(greedy, iter(points), ids)} | {
        f"{FOLDER}/{_expected_prompt_file(i)}": prompt_bytes(
            (*text.prompt_ids, *text.expected.token_ids[:-1])
        )
        for i, text in enumerate(texts)
    }


def compared_ids(generation: Generation) -> tuple[int, ...]:
    """The tokens whose logits are compared with the model's at every position."""
    choices = [token for text in generation.expected for token in text.expected.tokens]
    top = (identity for token in choices for identity in token.ids)
    return tuple(dict.fromkeys((*sampled_ids(generation.vocabulary), *top)))


def _expected_prompt_file(index: int) -> str:
    return f"text-prompt-{index}.bin"


def _timed(points: Sequence[WorkPoint]) -> Iterator[PromptRun]:
    """Each point, after its own warm-up: points differ in the methods that they call."""
    for i, point in enumerate(points):
        names = ((warmup_name(i), point.warmup), (point_name(i), point.repetitions))
        yield from (_point(name, i, point, number) for name, number in names if number)


def _short(points: Sequence[WorkPoint]) -> Iterator[PromptRun]:
    """The first point, once."""
    yield _point(point_name(0), 0, points[0], 1)


def _traced(work: GenerationWorkload) -> Iterator[PromptRun]:
    """Once each, the first point last: a trace is of the last generation that calls a method."""
    for i in reversed(work.traced):
        point = work.points[i]
        short = replace(point, new_tokens=min(point.new_tokens, _WARMUP_TOKENS))
        yield _point(warmup_name(i), i, short, 1)
        yield _point(point_name(i), i, point, 1)


def _point(name: str, index: int, point: WorkPoint, repetitions: int) -> PromptRun:
    return PromptRun(
        name=name,
        depth=point.depth,
        new_tokens=point.new_tokens,
        repetitions=repetitions,
        path=_prompt_file(index),
    )


def _prompt_file(index: int) -> str:
    return f"prompt-{index}.bin"


def _requested(
    work: GenerationWorkload, points: Iterator[PromptRun], logit_ids: Sequence[int] = ()
) -> bytes:
    made = work.generation
    lines = request_lines(
        made.methods, work.sampling, work.stop_ids, list(points), made.rewind, logit_ids
    )
    return lines.encode()
