"""Prompts of a program that generates text, request files for the runner, and its results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from etdeploy.bench.records.generation import EncodedInput, GenerationPoint, speculated
from etdeploy.bench.statistics import percentile, summarize
from etdeploy.core.commands import quoted
from etdeploy.core.console import count
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import write_atomic
from etdeploy.core.hashing import sha256_file
from etdeploy.export.spec import ExportSpec
from etdeploy.program.folder import PROGRAM_FILE, Provenance, Stored, TensorFile
from etdeploy.program.generation import (
    TOKEN_EMBEDDING,
    Draft,
    Generation,
    GenerationEncoder,
    layout_for,
    sampled_ids,
    verify_tokens_for,
)
from etdeploy.program.generation import random_ids as draw_ids
from etdeploy.program.tokenizer import TOKENIZER_FILE, load_tokenizer, tokenizer_folder
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.recipe.model import Recipe
from etdeploy.recipe.sections.benchmark import Benchmark, BenchmarkGeneration, Speculation
from etdeploy.recipe.sections.export import ExportGeneration
from etdeploy.recipe.tasks import has_encoder
from etdeploy.runner.generation import (
    EncoderRun,
    GenerationResults,
    GenerationRun,
    PromptRun,
    Sampling,
    prompt_bytes,
    request_lines,
    tokens_per_s,
)
from etdeploy.runner.protocol import inputs_list

if TYPE_CHECKING:
    from etdeploy.export.finished import DraftProgram

_GRID = ("benchmark", "generation")


@dataclass(frozen=True)
class WorkPoint:
    """A prompt with the text to generate after it.

    `depth` tokens are in the cache before the prompt. `warmup` generations come before the
    `repetitions` that count.
    """

    prompt: tuple[int, ...]
    new_tokens: int
    depth: int
    warmup: int
    repetitions: int

    @property
    def positions(self) -> int:
        """How many positions the cache needs: the last token is not fed back."""
        return self.depth + len(self.prompt) + self.new_tokens - 1


@dataclass(frozen=True)
class GenerationWorkload:
    """All that a start of the runner generates.

    The first of the `points` represents the run. Random prompts, for which `prompt` is None, have
    no stop tokens.
    """

    generation: Generation
    sampling: Sampling
    stop_ids: tuple[int, ...]
    points: tuple[WorkPoint, ...]
    prompt: str | None
    speculation: Speculation = "none"
    draft: Draft | None = None

    @property
    def traced(self) -> tuple[int, ...]:
        """Indexes of the points that the profile pass generates.

        The first one, and those with the fewest and the most positions: as methods differ in their
        positions, these call all methods that the others call.
        """
        order = sorted(range(len(self.points)), key=lambda i: self.points[i].positions)
        return tuple(dict.fromkeys((0, order[0], order[-1])))

    @property
    def method(self) -> str:
        """The method that decodes the first point's tokens, or else takes its prompt."""
        first = self.points[0]
        role: Literal["prefill", "decode"] = "decode" if first.new_tokens > 1 else "prefill"
        end = min(first.positions, self.generation.context)
        chosen = self.generation.method_for(role, end) or self.generation.methods[0]
        return chosen.name


def make_workload(
    loaded: LoadedRecipe,
    generation: Generation,
    program_folder: Path,
    *,
    simulated: bool = False,
    draft: Draft | None = None,
) -> GenerationWorkload:
    """Return what a recipe generates with a program, which is always the same.

    A simulated one generates each point once: its times count for nothing. `draft` is the one that
    the recipe names.

    Raises UsageError if it does not fit the program's context, if the recipe requests something
    that text generation does not support, or if its prompt cannot be tokenized.
    """
    benchmark = loaded.recipe.benchmark
    _refuse(loaded)
    grid = benchmark.generation or BenchmarkGeneration()
    require_speculation(loaded, generation)
    if generation.encoder:
        work = _encoded_workload(benchmark, grid, generation, generation.encoder)
    else:
        work = _prompted_workload(loaded, grid, generation.with_adapter(grid.lora), program_folder)
        work = replace(work, draft=draft)
    if not simulated:
        return work
    once = tuple(replace(point, warmup=0, repetitions=1) for point in work.points)
    return replace(work, points=once)


def _prompted_workload(
    loaded: LoadedRecipe, grid: BenchmarkGeneration, generation: Generation, program_folder: Path
) -> GenerationWorkload:
    benchmark = loaded.recipe.benchmark
    if grid.prompt is None:
        rows = random_ids(grid.prompt_tokens, generation, grid.seed)
    else:
        place = _place(loaded, *_GRID, "prompt")
        rows = (tokenize_prompt(grid.prompt, generation, program_folder, place),)
    points = tuple(
        WorkPoint(row, new_tokens, depth, *_repetitions(benchmark, row, new_tokens))
        for row, new_tokens, depth in product(rows, grid.new_tokens, grid.depth)
    )
    largest = max(points, key=lambda point: point.positions)
    numbers = len(largest.prompt), largest.new_tokens, largest.depth
    _require_room(loaded, generation.context, *numbers)
    return GenerationWorkload(
        generation=generation,
        sampling=Sampling.model_validate(grid, from_attributes=True),
        stop_ids=generation.stop_ids if grid.prompt is not None else (),
        points=points,
        prompt=grid.prompt,
        speculation=grid.speculation,
    )


def _encoded_workload(
    benchmark: Benchmark,
    grid: BenchmarkGeneration,
    generation: Generation,
    encoder: GenerationEncoder,
) -> GenerationWorkload:
    """What a model generates from its encoder's input: no more than there is room for."""
    room = generation.context - len(encoder.prompt_ids) + 1
    lengths = dict.fromkeys(min(new, room) for new in grid.new_tokens)
    return GenerationWorkload(
        generation=generation,
        sampling=Sampling.model_validate(grid, from_attributes=True),
        stop_ids=generation.stop_ids if encoder.is_real else (),
        points=tuple(
            WorkPoint(encoder.prompt_ids, new, 0, *_repetitions(benchmark, encoder.prompt_ids, new))
            for new in lengths
        ),
        prompt=None,
    )


def require_measurable(loaded: LoadedRecipe, context: int) -> None:
    """Raises UsageError, before the export, where `make_workload` would.

    The recipe's own prompt is not checked: its tokens cannot be counted without the tokenizer.
    `context` is the program's, which may be shorter than the recipe's.
    """
    _refuse(loaded)
    require_speculation(loaded, None)
    grid = loaded.recipe.benchmark.generation or BenchmarkGeneration()
    if grid.prompt is None and not has_encoder(loaded.recipe.model.task):
        largest = (max(grid.prompt_tokens), max(grid.new_tokens), max(grid.depth))
        _require_room(loaded, context, *largest)


_NO_SPECULATION = "Leave the recipe without speculation, or --speculate none"


def require_speculation(loaded: LoadedRecipe, generation: Generation | None) -> None:
    """Raises UsageError if a recipe speculates and the program cannot verify.

    Without the program, what the recipe says of it counts; it may turn out to be unable later.
    """
    grid = loaded.recipe.benchmark.generation or BenchmarkGeneration()
    if grid.speculation == "none" or (generation is not None and generation.verify_tokens):
        return
    reason = _unverifiable(loaded.recipe)
    if generation is not None:
        last_only = ("its methods give the logits of the last token alone", _NO_SPECULATION)
        state = "its layers have a recurrent state, which cannot go back from a token that is wrong"
        reason = (state, _NO_SPECULATION) if generation.rewind == 0 else reason or last_only
    if reason:
        raise UsageError(
            f"speculation needs a program that verifies several tokens in one call: {reason[0]}",
            place=_place(loaded, *_GRID, "speculation"),
            remedy=reason[1],
        )


def require_fitting_draft(
    draft: DraftProgram,
    spec: ExportSpec,
    generation: Generation | None,
    program_folder: Path | None,
) -> None:
    """Raises UsageError unless a draft has the tokens and the context of the program.

    Before the export, the model's own files say what is known.
    """
    from etdeploy.export.finished import tokens_by_id
    from etdeploy.export.hf.check import folder_here
    from etdeploy.export.hf.config import read_config, vocabulary_of

    model = folder_here(spec.hf) if spec.hf else None
    if generation is None:
        config = read_config(model) if model else None
        vocabulary = vocabulary_of(config) if isinstance(config, dict) else None
        context = spec.generation.context if spec.generation else None
        tokenizer = model / TOKENIZER_FILE if model else None
    else:
        vocabulary, context = generation.vocabulary, generation.context
        folder = tokenizer_folder(generation, program_folder) if program_folder else None
        tokenizer = folder / TOKENIZER_FILE if folder else None
    own = draft.draft
    if context is not None and own.context < context:
        raise draft.refused(
            f"it has a context of {own.context:,} tokens, and the program one of {context:,}",
            f"Export the draft with --context {context}, or this program with a shorter one: "
            f"--context {own.context}",
        )
    if vocabulary is not None and own.vocabulary != vocabulary:
        raise draft.refused(
            f"it has a vocabulary of {own.vocabulary:,} tokens, and the program one of "
            f"{vocabulary:,}",
            _SAME_TOKENIZER,
        )
    if tokenizer and tokenizer.is_file() and draft.tokenizer:
        mine, theirs = tokens_by_id(tokenizer), tokens_by_id(draft.tokenizer)
        other = sorted(i for i in {*mine, *theirs} if mine.get(i) != theirs.get(i))
        if other:
            raise draft.refused(
                f"its tokenizer is another one: {count(len(other), 'token')} differ, the first of "
                f"which is {other[0]:,}, {theirs.get(other[0])!r} in place of "
                f"{mine.get(other[0])!r}",
                _SAME_TOKENIZER,
            )
    program = program_folder / PROGRAM_FILE if program_folder else None
    same_size = program and program.is_file() and program.stat().st_size == own.size_bytes
    if program and same_size and sha256_file(program) == own.sha256:
        raise draft.refused("it is the program itself, so it is not faster", _SAME_TOKENIZER)


_SAME_TOKENIZER = (
    "Name the program of a smaller model of the same family, whose tokenizer is the same; or "
    f"{_NO_SPECULATION[0].lower()}{_NO_SPECULATION[1:]}"
)


def _unverifiable(recipe: Recipe) -> tuple[str, str] | None:
    """Why the program of a recipe cannot verify, and what to do; None where it may be able to."""
    asked = recipe.export.generation or ExportGeneration()
    if recipe.has_other_exporter:
        return None
    if has_encoder(recipe.model.task):
        return "models with an encoder have no method for it", _NO_SPECULATION
    if not asked.verify_tokens:
        return "export.generation.verify_tokens is 0", "--set export.generation.verify_tokens=16"
    if not verify_tokens_for(asked, recipe.export.backend):
        where = f"the backend {recipe.export.backend} computes elsewhere than on the CPU"
        return where, _NO_SPECULATION
    if layout_for(asked) == "executorch":
        last_only = "the method of ExecuTorch's contract gives the logits of the last token alone"
        return last_only, "--set export.generation.layout=etdeploy"
    return None


def _repetitions(benchmark: Benchmark, prompt: Sequence[int], new_tokens: int) -> tuple[int, int]:
    """Numbers of warm-up generations and of those that count.

    `iterations` and `warmup` count inferences: one for each token after the first, or one for each
    token of the prompt if there is only a first token.
    """
    inferences = new_tokens - 1 or len(prompt)
    warmup = inferences if benchmark.warmup == "auto" else benchmark.warmup
    return math.ceil(warmup / inferences), math.ceil(benchmark.iterations / inferences)


def _refuse(loaded: LoadedRecipe) -> None:
    """Raises UsageError for settings that text generation does not support.

    Sizes, inputs and a method are refused when the recipe is read.
    """
    benchmark, threads = loaded.recipe.benchmark, loaded.recipe.runtime.threads
    unsupported = (
        (bool(benchmark.sustained_s), ("benchmark", "sustained_s"), "a sustained pass",
         "Leave it out: --set benchmark.sustained_s=0"),
        (benchmark.tolerance.cosine_similarity is not None,
         ("benchmark", "tolerance", "cosine_similarity"), "a cosine of outputs",
         "Limit the error of logits: benchmark.tolerance.max_abs_error"),
        (not isinstance(threads, int | str), ("runtime", "threads"), "a sweep of threads",
         "Set one number: --set runtime.threads=auto"),
    )  # fmt: skip
    for is_set, keys, what, remedy in unsupported:
        if is_set:
            raise UsageError(
                f"the program generates text, which does not support {what}",
                place=_place(loaded, *keys),
                remedy=remedy,
            )


def _require_room(
    loaded: LoadedRecipe, context: int, prompt_tokens: int, new_tokens: int, depth: int
) -> None:
    """Raises UsageError unless the largest point fits the cache."""
    positions = depth + prompt_tokens + new_tokens - 1
    if positions <= context:
        return
    parts = [
        f"a prompt of {count(prompt_tokens, 'token')}",
        f"{count(new_tokens, 'new token')}",
        *([f"{count(depth, 'token')} before them"] if depth else []),
    ]
    keys = {"prompt_tokens": prompt_tokens, "new_tokens": new_tokens, "depth": depth}
    raise UsageError(
        f"{', '.join(parts[:-1])} and {parts[-1]} do not fit the program's context of "
        f"{context:,} tokens",
        place=_place(loaded, *_GRID, max(keys, key=lambda key: keys[key])),
        remedy=_request_fewer(context, depth)
        if context < (loaded.recipe.export.generation or ExportGeneration()).context
        else f"Request fewer, or export for more: --set export.generation.context={positions}",
    )


def _request_fewer(context: int, depth: int) -> str:
    """The remedy if the model has no more positions: a third of them for new tokens."""
    new = max(context // 3, 1)
    fewer = {"prompt_tokens": context - new, "new_tokens": new, **({"depth": 0} if depth else {})}
    settings = (quoted(f"benchmark.generation.{key}=[{number}]") for key, number in fewer.items())
    return "The model has no more positions. Request fewer:\n" + " ".join(
        f"--set {setting}" for setting in settings
    )


def _place(loaded: LoadedRecipe, *keys: str) -> str:
    """The place of a key in the recipe, or that of its section, or the file."""
    for end in range(len(keys), 0, -1):
        if place := loaded.places.get(keys[:end]):
            return str(place)
    return str(loaded.path)


def random_ids(
    lengths: Sequence[int], generation: Generation, seed: int
) -> tuple[tuple[int, ...], ...]:
    """A random prompt of each length, the same on every machine for a seed and vocabulary.

    Shorter ones are prefixes of longer ones. Each begins with the model's first token, if it has
    one, and has no stop token, after which some models generate nonsense.
    """
    return draw_ids(
        lengths,
        vocabulary=generation.vocabulary,
        bos_id=generation.bos_id,
        stop_ids=generation.stop_ids,
        seed=seed,
    )


def tokenize_prompt(
    text: str, generation: Generation, program_folder: Path, place: str
) -> tuple[int, ...]:
    """A text as tokens of the model's tokenizer, with the tokens that it adds.

    Raises UsageError, with `place`, without a tokenizer or for an empty text.
    """
    try:
        tokenizer = load_tokenizer(generation, program_folder)
    except UsageError as error:
        raise UsageError(error.message, place=error.place or place, remedy=error.remedy) from error
    if tokenizer is None:
        raise UsageError(
            "the program has no tokenizer for the prompt",
            place=place,
            remedy="Leave out benchmark.generation.prompt to use random tokens",
        )
    ids = tokenizer.encode(text)
    if not ids:
        raise UsageError("the prompt is empty", place=place)
    return ids


def decode_ids(ids: Sequence[int], generation: Generation, program_folder: Path) -> str | None:
    """Token ids as text; None without a readable tokenizer."""
    try:
        tokenizer = load_tokenizer(generation, program_folder)
    except UsageError:
        return None
    return tokenizer.decode(ids) if tokenizer else None


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


def point_name(index: int) -> str:
    """The name of a point in the runner's results."""
    return f"point-{index}"


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
    )
    return lines.encode()


def counted_runs(results: GenerationResults, index: int) -> Sequence[GenerationRun]:
    """The generations of a point without its warm-up."""
    return [run for run in results.generation.runs if run.point == point_name(index)]


def make_points(
    work: GenerationWorkload, starts: Sequence[GenerationResults], program_folder: Path
) -> tuple[GenerationPoint, ...]:
    """Every point of a measurement."""
    return tuple(
        _generation_point(
            point, [run for start in starts for run in counted_runs(start, i)], work, program_folder
        )
        for i, point in enumerate(work.points)
    )


def encoded_input(
    work: GenerationWorkload, starts: Sequence[GenerationResults], point: GenerationPoint
) -> EncodedInput | None:
    """What the encoder took for the text of the first point; None without an encoder."""
    encoder = work.generation.encoder
    if encoder is None:
        return None
    encode = summarize(
        [ms for start in starts for ms in start.generation.encode_ms[1:]]
        or [ms for start in starts for ms in start.generation.encode_ms]
    )
    tokens_ms = point.token_ms.median * (len(point.token_ids) - 1) if point.token_ms else 0.0
    taken_s = (encode.median + point.ttft_ms + tokens_ms) / 1000
    return EncodedInput(
        is_real=encoder.is_real,
        preprocess_ms=encoder.preprocess_ms,
        encode_ms=encode,
        audio_s=encoder.audio_s,
        real_time_factor=taken_s / encoder.audio_s if encoder.audio_s else None,
    )


def _generation_point(
    point: WorkPoint, runs: Sequence[GenerationRun], work: GenerationWorkload, program_folder: Path
) -> GenerationPoint:
    first, tokens_ms = runs[0], [ms for run in runs for ms in run.token_ms]
    first_token = summarize([run.first_token_ms for run in runs])
    return GenerationPoint(
        prompt_tokens=len(point.prompt),
        new_tokens=point.new_tokens,
        depth=point.depth,
        ttft_ms=first_token.median,
        prefill_tokens_per_s=tokens_per_s(len(point.prompt), first_token.median),
        decode_tokens_per_s=_decode_rate(runs),
        first_token_ms=first_token,
        token_ms=summarize(tokens_ms) if tokens_ms else None,
        token_ids=first.token_ids,
        text=decode_ids(first.token_ids, work.generation, program_folder),
        stopped=first.stopped,
        generations=len(runs),
        distinct=len({run.token_ids for run in runs}),
        speculation=None
        if work.speculation == "none"
        else speculated(runs, len(tokens_ms), has_draft=work.draft is not None),
    )


def _decode_rate(runs: Sequence[GenerationRun]) -> float | None:
    """The median over the generations that have more than a first token."""
    rates = [tokens_per_s(len(run.token_ms), sum(run.token_ms)) for run in runs if run.token_ms]
    return percentile(rates, 50) if rates else None
