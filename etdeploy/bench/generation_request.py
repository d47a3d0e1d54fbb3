"""Files of a request for the runner that generates text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from etdeploy.bench.generation_workload import GenerationWorkload, WorkPoint, point_name
from etdeploy.core.files.basic import write_atomic
from etdeploy.program.folder import Provenance, Stored, TensorFile
from etdeploy.program.generation import TOKEN_EMBEDDING, Generation, GenerationEncoder, sampled_ids
from etdeploy.runner.generation import EncoderRun, PromptRun, Sampling, prompt_bytes, request_lines
from etdeploy.runner.protocol import inputs_list

FOLDER = "generation"
TIMING_REQUEST = f"{FOLDER}/timing.txt"
MEMORY_REQUEST = f"{FOLDER}/memory.txt"
TEXT_REQUEST = f"{FOLDER}/text.txt"
PROFILE_REQUEST = f"{FOLDER}/profile.txt"
_POSITIONS = "positions.bin"
# Of a start that is timed; the first is a warm-up.
_ENCODINGS = 4
# New tokens of the warm-up before traced calls.
_WARMUP_TOKENS = 4


def warmup_name(index: int) -> str:
    """The name of a point's warm-up in the runner's results."""
    return f"warmup-{index}"


def write_request(work: GenerationWorkload, folder: Path) -> Mapping[str, Path]:
    """Writes request files and prompts, and returns them by their paths in the bundle.

    The files must exist as long as the bundle is used.
    """
    # A text that ends early, or whose prompt's method verifies, would leave methods untraced.
    endless = replace(work, stop_ids=(), speculation="none", draft=None)
    files = {TIMING_REQUEST: _requested(work, _timed(work.points), encodings=_ENCODINGS),
             MEMORY_REQUEST: _requested(work, iter([_point(point_name(0), 0, work.points[0], 1)])),
             PROFILE_REQUEST: _requested(endless, _traced(work))}  # fmt: skip
    files |= {
        f"{FOLDER}/{_prompt_file(i)}": prompt_bytes(point.prompt)
        for i, point in enumerate(work.points)
    }
    files |= _expected(work)
    paths = {name: folder / Path(name).name for name in files}
    for name, content in files.items():
        write_atomic(paths[name], content)
    return paths


def encoder_run(encoder: GenerationEncoder | None, repetitions: int = 1) -> EncoderRun | None:
    """The encoder, as a request beside the files of `encoder_files` asks for it."""
    if encoder is None:
        return None
    return EncoderRun(
        method=encoder.method,
        repetitions=repetitions,
        paths=tuple(map(_encoder_inputs, range(encoder.calls))),
        embedding=None if encoder.image_id is None else (TOKEN_EMBEDDING, encoder.image_id),
        positions=(len(encoder.positions), _POSITIONS) if encoder.positions else None,
    )


def _encoder_inputs(call: int) -> str:
    return f"encoder-{call}.txt"


def encoder_files(provenance: Provenance, program_folder: Path, folder: Path) -> Mapping[str, Path]:
    """Write the lists of the encoder's inputs; return all by their names beside a request."""
    encoder = provenance.generation.encoder if provenance.generation else None
    if encoder is None:
        return {}
    files: dict[str, Path] = {}
    named: list[Stored] = []
    for index, each in enumerate(provenance.methods[encoder.method].inputs):
        if isinstance(each, TensorFile):
            name = f"encoder-{index}.bin"
            files[name] = program_folder / each.path
            each = each.model_copy(update={"path": name})
        named.append(each)
    size = len(named) // encoder.calls
    for call in range(encoder.calls):
        path = folder / _encoder_inputs(call)
        write_atomic(path, inputs_list(named[call * size : (call + 1) * size]))
        files[path.name] = path
    if encoder.positions:
        files[_POSITIONS] = folder / _POSITIONS
        numbers = [number for row in encoder.positions for number in row]
        write_atomic(files[_POSITIONS], prompt_bytes(numbers))
    return files


def _expected(work: GenerationWorkload) -> dict[str, bytes]:
    """The model's texts, which the program is fed, so that a wrong token changes no other."""
    texts = work.generation.expected
    if not texts:
        return {}
    ids = logit_ids_of(work.generation)
    points = [
        PromptRun(
            name=point_name(i), new_tokens=len(text.expected.tokens),
            path=_expected_prompt_file(i), follows=True,
        )
        for i, text in enumerate(texts)
    ]  # fmt: skip
    greedy = replace(work, sampling=Sampling(), stop_ids=(), speculation="none", draft=None)
    return {TEXT_REQUEST: _requested(greedy, iter(points), ids)} | {
        f"{FOLDER}/{_expected_prompt_file(i)}": prompt_bytes(
            (*text.prompt_ids, *text.expected.token_ids[:-1])
        )
        for i, text in enumerate(texts)
    }


def logit_ids_of(generation: Generation) -> tuple[int, ...]:
    """The token ids whose logits are compared with the model's at every position."""
    choices = [token for text in generation.expected for token in text.expected.tokens]
    top = (identity for token in choices for identity in token.ids)
    return tuple(dict.fromkeys((*sampled_ids(generation.vocabulary), *top)))


def _expected_prompt_file(index: int) -> str:
    return f"text-prompt-{index}.bin"


def _timed(points: Sequence[WorkPoint]) -> Iterator[PromptRun]:
    """Each point after its own warm-up: points call different methods."""
    for i, point in enumerate(points):
        names = ((warmup_name(i), point.warmup), (point_name(i), point.repetitions))
        yield from (_point(name, i, point, number) for name, number in names if number)


def _traced(work: GenerationWorkload) -> Iterator[PromptRun]:
    """Each once, the first point last: a trace has the last generation that calls a method."""
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
    work: GenerationWorkload,
    points: Iterator[PromptRun],
    logit_ids: Sequence[int] = (),
    encodings: int = 1,
) -> bytes:
    made = work.generation
    encoder = encoder_run(made.encoder, encodings)
    lines = request_lines(
        made.methods,
        work.sampling,
        work.stop_ids,
        list(points),
        made.rewind,
        logit_ids,
        encoder,
        made.static_cache,
        speculation=work.speculation,
        draft=work.draft,
        load_mode=made.load_mode,
    )
    return lines.encode()
