"""What an app carries of a program: `model.json`, the program, inputs with expected outputs, or a
tokenizer.

The template for each platform reads the same files (docs/apps.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from etdeploy.apps.model import (
    MODEL_FILE,
    AppChat,
    AppGeneration,
    AppImage,
    AppModel,
    AppSize,
    AppSpeech,
    AppValue,
    Payload,
    app_id,
)
from etdeploy.backends.rewrites import CHANNELS_LAST
from etdeploy.backends.schemes import STATIC_SCHEMES
from etdeploy.bench.outputs import tolerance_scheme
from etdeploy.bench.tolerance import (
    UnreadableTensorError,
    estimate_step,
    limits_for,
    read_tensor,
)
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import inside
from etdeploy.export.methods import values_of_method
from etdeploy.program.folder import (
    BY_PIXEL,
    PROGRAM_FILE,
    REWRITES,
    InputSet,
    Provenance,
    Stored,
    TensorFile,
)
from etdeploy.program.generation import Generation
from etdeploy.program.model import Program, TensorInfo
from etdeploy.program.quality import measure_distance
from etdeploy.program.tokenizer import TOKENIZER_FILE, load_template, tokenizer_folder
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.recipe.sections.benchmark import BenchmarkGeneration, Tolerance
from etdeploy.recipe.tasks import IMAGE_CLASSIFICATION, SPEECH_RECOGNITION, TEXT_GENERATION
from etdeploy.runner.generation import Sampling

MOST_BUNDLED_BYTES = 100_000_000
"""A larger program is not part of the app: each change of the app would send it again."""
_UNTIL_STEADY = -1
_MOST_NEW_TOKENS = 128


def make_payload(
    loaded: LoadedRecipe,
    program: Program,
    provenance: Provenance,
    folder: Path,
    *,
    library: bool = False,
) -> tuple[AppModel, Payload, tuple[str, ...]]:
    """Return `model.json`, all files by their paths in the payload, and notes for the user.

    A language model has the logits of a text's first tokens as its only size, for golden tests.

    Raises:
        UsageError: The program does not have the method that the recipe names, or takes inputs in
            an order that apps do not give.
    """
    notes: list[str] = []
    files: dict[str, bytes | Path] = {}
    asked = loaded.recipe.app.bundled
    bundled = program.size_bytes < MOST_BUNDLED_BYTES if asked is None else asked
    if bundled:
        files[PROGRAM_FILE] = folder / PROGRAM_FILE
    if provenance.data:
        raise UsageError(
            f"weights of the program are in {', '.join(provenance.data)}, which apps do not load",
            place=str(loaded.path),
            remedy="Export the program with its weights inside, or run it: etdeploy run",
        )
    generation = None
    if provenance.generation:
        _refuse_inputs(provenance.generation, str(loaded.path))
        _refuse_logits_of_each(program, provenance.generation, str(loaded.path))
        generation, made_files, why = _generation(loaded, provenance.generation, folder)
        files |= made_files
        notes += why
        measured = _first_call(provenance, folder)
    else:
        provenance = values_of_method(provenance, loaded.recipe.benchmark.method, str(loaded.path))
        _refuse_images_by_pixel(provenance, str(loaded.path))
        measured = provenance
    sizes: tuple[AppSize, ...] = ()
    if measured:
        files |= _value_files(measured, folder)
        sizes = tuple(_sizes(measured, folder, loaded.recipe.benchmark.tolerance))
        if generation and len(measured.inputs) > 2:
            sizes, last = _of_last_token(sizes, folder)
            files |= last
    model = _model(loaded, program, provenance, generation, sizes, bundled=bundled)
    if not library:
        model, made_files, why = _with_task(model, loaded, provenance, folder)
        files |= made_files
        notes += why
    files[MODEL_FILE] = (model.model_dump_json(indent=1) + "\n").encode()
    return model, files, tuple(notes)


def _refuse_inputs(generation: Generation, place: str) -> None:
    """Of a program that takes more than tokens and a position."""
    remedy = "Use the device's shell instead: etdeploy run, or etdeploy generate"
    if generation.encoder:
        message = (
            "the model generates its text from what an encoder gives, and the app's own code has "
            "no processor for its input"
        )
    elif generation.static_cache:
        message = (
            "keys and values are inputs and outputs of the program (the path static), and the "
            "app's own code keeps none"
        )
        remedy += (
            "\nOr export the cache as part of the program, which copies it for each token:\n"
            "--set export.generation.path=fast --set export.quantization=fp16"
        )
    else:
        return
    raise UsageError(message, place=place, remedy=remedy)


def _refuse_logits_of_each(program: Program, generation: Generation, place: str) -> None:
    """The app's own code takes the position of the first token and the logits of the last.

    A method that takes which logits it gives is asked for these.
    """
    names = {method.name for method in generation.methods}
    for method in (m for m in program.methods if m.name in names and len(m.inputs) == 2):
        if any(isinstance(o, TensorInfo) and len(o.shape) > 2 for o in method.outputs):
            raise UsageError(
                f"the method {method.name} gives the logits of each token, and apps take those of "
                "the last",
                place=place,
                remedy="Export the program so that it gives the last token's alone.",
            )


def _refuse_images_by_pixel(provenance: Provenance, place: str) -> None:
    names = provenance.details.get(BY_PIXEL)
    if not names:
        return
    rewritten = provenance.details.get(REWRITES, {}).get("applied", {}).get(CHANNELS_LAST)
    raise UsageError(
        f"the program takes {', '.join(names)} by pixel (channels_last), and apps give images by "
        "channel",
        place=place,
        remedy="Leave channels_last out of export.rewrites: --set export.rewrites=auto"
        if rewritten
        else f"Return contiguous example inputs from the factory: {names[0]}.contiguous()",
    )


def _model(
    loaded: LoadedRecipe,
    program: Program,
    provenance: Provenance,
    generation: AppGeneration | None,
    sizes: tuple[AppSize, ...],
    *,
    bundled: bool,
) -> AppModel:
    wanted, threads = loaded.recipe.benchmark, loaded.recipe.runtime.threads
    return AppModel(
        app_id=app_id(loaded),
        name=loaded.name,
        workload="generation" if generation else "inference",
        program=PROGRAM_FILE,
        bundled=bundled,
        program_sha256=program.sha256,
        program_bytes=program.size_bytes,
        executorch_version=provenance.versions.get("executorch", ""),
        backends=program.backend_ids,
        quantization=provenance.quantization or "none",
        method=provenance.method,
        warmup=_UNTIL_STEADY if wanted.warmup == "auto" else wanted.warmup,
        iterations=wanted.iterations,
        # "auto" and a sweep are about one device: a run tells the app the number.
        threads=threads if isinstance(threads, int) else 0,
        sizes=sizes,
        generation=generation,
    )


def _first_call(provenance: Provenance, folder: Path) -> Provenance | None:
    """The values of a language model's method if they are logits of a text's first tokens."""
    methods = [*map(provenance.of, provenance.methods), provenance]
    found = next((each for each in methods if each.inputs and each.expected), None)
    if found is None or len(found.inputs) not in (2, 3):
        return None
    tokens, position = found.inputs[:2]
    if not isinstance(tokens, TensorFile) or not isinstance(position, TensorFile):
        return None
    logits = found.expected[0]
    if not isinstance(logits, TensorFile) or logits.dtype != "float32":
        return None
    start = inside(folder, position.path).read_bytes()
    return None if any(start) else found


def _of_last_token(
    sizes: Sequence[AppSize], folder: Path
) -> tuple[tuple[AppSize, ...], dict[str, bytes | Path]]:
    """Values of a method that takes which logits it gives, as the app calls it: without these.

    The last token's logits are the last ones.
    """
    found, files = [], dict[str, bytes | Path]()
    for size in sizes:
        [logits] = size.expected
        if logits.path is None or not logits.shape:
            raise TypeError(logits)
        given = inside(folder, logits.path).read_bytes()
        files[logits.path] = given[-(len(given) // logits.shape[-2]) :]
        last = logits.model_copy(update={"shape": (1, logits.shape[-1])})
        found.append(size.model_copy(update={"inputs": size.inputs[:2], "expected": (last,)}))
    return tuple(found), files


def _sizes(provenance: Provenance, folder: Path, tolerance: Tolerance) -> Iterator[AppSize]:
    for name, each in provenance.measured.items():
        yield AppSize(
            name=name,
            inputs=tuple(map(_value, each.inputs)),
            expected=tuple(_expected(each, i, provenance, folder, tolerance)
                           for i in range(len(each.expected))),
        )  # fmt: skip


def _value(stored: Stored) -> AppValue:
    if isinstance(stored, TensorFile):
        return AppValue(
            name=stored.name, kind="Tensor", dtype=stored.dtype, shape=stored.shape,
            path=stored.path,
        )  # fmt: skip
    return AppValue(name=stored.name, kind=stored.kind, value=stored.value)


def _expected(
    size: InputSet, index: int, provenance: Provenance, folder: Path, tolerance: Tolerance
) -> AppValue:
    """An output with how far it may be off; the run's own comparison judges more closely."""
    stored = size.expected[index]
    value = _value(stored)
    if not isinstance(stored, TensorFile):
        return value
    try:
        tensor = read_tensor(inside(folder, stored.path), stored.dtype, stored.shape)
    except UnreadableTensorError:
        return value
    known = provenance.output_quantization[index : index + 1]
    step = known[0].scale if known and known[0] else None
    scheme = tolerance_scheme(provenance)
    if step is None and scheme in STATIC_SCHEMES and "float" in stored.dtype:
        step = estimate_step(tensor, tensor)
    distance = measure_distance(tensor, tensor)
    limits = limits_for(stored.dtype, scheme, distance, tolerance, step)
    return value.model_copy(update={"atol": limits.max_abs_error})


def _value_files(provenance: Provenance, folder: Path) -> dict[str, bytes | Path]:
    return {
        value.path: inside(folder, value.path)
        for each in provenance.measured.values()
        for value in (*each.inputs, *each.expected)
        if isinstance(value, TensorFile)
    }


def _generation(
    loaded: LoadedRecipe, generation: Generation, folder: Path
) -> tuple[AppGeneration, dict[str, bytes | Path], list[str]]:
    grid = loaded.recipe.benchmark.generation or BenchmarkGeneration()
    if grid.speculation != "none":
        raise UsageError(
            "the app's own code generates without speculation",
            place=str(loaded.path),
            remedy="Leave it out: --set benchmark.generation.speculation=none",
        )
    generation = generation.with_adapter(grid.lora)
    files: dict[str, bytes | Path] = {}
    notes: list[str] = []
    chat, name = None, None
    tokenizers = tokenizer_folder(generation, folder)
    if tokenizers is None:
        notes.append("The model has no tokenizer: the app takes and shows the ids of tokens.")
    else:
        source = tokenizers / TOKENIZER_FILE
        if why := app_tokenizer(source, generation.bos_id):
            notes.append(
                f"The app's tokenizer does not know {why}: it takes and shows the ids of tokens."
            )
        else:
            name, chat = TOKENIZER_FILE, _chat(tokenizers)
            files[TOKENIZER_FILE] = source
    value = AppGeneration(
        methods=generation.methods,
        vocabulary=generation.vocabulary,
        context=generation.context,
        stop_ids=generation.stop_ids,
        bos_id=generation.bos_id,
        rewind=generation.rewind,
        sampling=Sampling.model_validate(grid, from_attributes=True),
        new_tokens=min(_MOST_NEW_TOKENS, generation.context // 2),
        tokenizer=name,
        chat=chat,
    )
    return value, files, notes


def _with_task(
    model: AppModel, loaded: LoadedRecipe, provenance: Provenance, folder: Path
) -> tuple[AppModel, dict[str, bytes | Path], list[str]]:
    """The model with its app's first screen, the files of that, and notes.

    Raises:
        UsageError: The recipe names a task that the app cannot have for this program.
    """
    asked = loaded.recipe.app.task
    known = provenance.task.task if provenance.task else ""
    known = TEXT_GENERATION if model.generation else known
    task = known if asked == "auto" else asked
    if task not in _SCREENS or (asked == "auto" and model.generation and not _has_words(model)):
        return model, {}, []
    try:
        if task != known:
            raise _UnsupportedTaskError(f"the program is of {known or 'no task'}")
        found, files = _SCREENS[task](model, provenance, folder)
    except _UnsupportedTaskError as why:
        if asked == "auto":
            return model, {}, [f"The app's only screen measures the model, without {task}: {why}."]
        raise UsageError(
            f"the app cannot have the task {task}: {why}",
            place=f"{loaded.path}: app.task",
            remedy="Measure the model alone: --set app.task=tensor",
        ) from None
    return found.model_copy(update={"task": task}), files, []


class _UnsupportedTaskError(Exception):
    """A reason, as a clause, why an app has no screen for a task."""


_Screen = tuple[AppModel, dict[str, bytes | Path]]
_LABELS, _VOCABULARY = "labels.json", "vocabulary.json"
# The folder beside a program that has its model's processor.
_PROCESSOR = "processor"


def _image_screen(model: AppModel, provenance: Provenance, folder: Path) -> _Screen:
    preprocessing = provenance.task.image if provenance.task else None
    if preprocessing is None:
        raise _UnsupportedTaskError(_no_app(provenance))
    _require_input(model, preprocessing.input)
    config = _read_object(folder / _PROCESSOR / "config.json")
    named = config.get("id2label") or _read_object(folder / _PROCESSOR / _LABELS)
    names = {int(index): str(name) for index, name in named.items() if str(index).isdigit()}
    count = _classes(model)
    labels = [names.get(index, f"LABEL_{index}") for index in range(count)]
    image = AppImage(
        preprocessing=preprocessing,
        labels=_LABELS,
        several=config.get("problem_type") == "multi_label_classification",
    )
    return model.model_copy(update={"image": image}), {_LABELS: _json_lines(labels)}


def _speech_screen(model: AppModel, provenance: Provenance, folder: Path) -> _Screen:
    preprocessing = provenance.task.speech if provenance.task else None
    if preprocessing is None:
        raise _UnsupportedTaskError(_no_app(provenance))
    _require_input(model, preprocessing.input)
    processor = folder / _PROCESSOR
    ids = _read_object(processor / "vocab.json")
    settings = _read_object(processor / "tokenizer_config.json")
    if not ids or not all(isinstance(index, int) for index in ids.values()):
        raise _UnsupportedTaskError("its tokenizer has no vocabulary of letters (vocab.json)")
    count = _classes(model)
    texts = [""] * count
    for text, index in ids.items():
        if 0 <= index < count:
            texts[index] = text
    blank = ids.get(_token(settings, "pad_token", "<pad>"))
    if blank is None:
        raise _UnsupportedTaskError(
            "its vocabulary has no token for padding, which separates letters"
        )
    names = (("unk_token", "<unk>"), ("bos_token", "<s>"), ("eos_token", "</s>"))
    silent = {ids.get(_token(settings, name, usual)) for name, usual in names}
    speech = AppSpeech(
        preprocessing=preprocessing,
        vocabulary=_VOCABULARY,
        blank=blank,
        space=ids.get(_token(settings, "word_delimiter_token", "|")),
        silent=tuple(sorted(index for index in silent if index is not None)),
    )
    return model.model_copy(update={"speech": speech}), {_VOCABULARY: _json_lines(texts)}


def _text_screen(model: AppModel, provenance: Provenance, folder: Path) -> _Screen:
    del provenance, folder
    if not _has_words(model):
        raise _UnsupportedTaskError("the app has no tokenizer for the model")
    return model, {}


_SCREENS: Mapping[str, Callable[[AppModel, Provenance, Path], _Screen]] = {
    IMAGE_CLASSIFICATION: _image_screen,
    SPEECH_RECOGNITION: _speech_screen,
    TEXT_GENERATION: _text_screen,
}


def _has_words(model: AppModel) -> bool:
    return model.generation is not None and model.generation.tokenizer is not None


def _no_app(provenance: Provenance) -> str:
    found = provenance.task and provenance.task.no_app
    return found or "the program was exported without what an app needs; export it again"


def _require_input(model: AppModel, name: str) -> None:
    """The program takes what the app makes, and nothing else."""
    inputs = model.sizes[0].inputs if model.sizes else ()
    if len(inputs) != 1 or inputs[0].dtype != "float32":
        raise _UnsupportedTaskError(
            f"the program takes something other than one float32 tensor {name}"
        )


def _classes(model: AppModel) -> int:
    """The size of the last dimension of the first output, the logits."""
    expected = model.sizes[0].expected
    shape = expected[0].shape if expected else None
    if not shape or expected[0].dtype != "float32":
        raise _UnsupportedTaskError("its first output is not a float32 tensor of logits")
    return shape[-1]


def _token(settings: Mapping[str, Any], name: str, usual: str) -> str:
    found = settings.get(name, usual)
    return str(found.get("content", usual) if isinstance(found, dict) else found)


def _read_object(path: Path) -> Mapping[str, Any]:
    """The JSON object of a file; an empty one without it."""
    try:
        return _object(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return {}


def _json_lines(values: list[str]) -> bytes:
    return (json.dumps(values, ensure_ascii=False, indent=0) + "\n").encode()


def _chat(tokenizers: Path) -> AppChat | None:
    """The text around the user's words, by the model's own template."""
    words, answer, more = "\ue000", "\ue001", "\ue002"  # for private use: no template knows them
    first = {"role": "user", "content": words}
    try:
        template = load_template(tokenizers)
        text = template.render([first]) if template else ""
    except UsageError:  # a template for other conversations
        return None
    before, found, after = text.partition(words)
    if not found or words in after:
        return None
    turns = [first, {"role": "assistant", "content": answer}, {"role": "user", "content": more}]
    try:
        whole = template.render(turns) if template else ""
    except UsageError:
        whole = ""
    begun, _, rest = whole.partition(answer)
    between, _, end = rest.partition(more)
    # Some templates change what came before, or say at its end what they leave out later.
    continues = begun == before + words + after and end == after
    return AppChat(before=before, after=after, between=between if continues else None)


_NORMALIZERS = frozenset({"NFC", "Prepend", "Replace"})
_PRE_TOKENIZERS = frozenset({"ByteLevel", "Split", "Digits", "Metaspace"})
_DECODERS = frozenset({"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})
_POST_PROCESSORS = frozenset({"ByteLevel", "TemplateProcessing"})
# What an added token may ask of the text around it.
_AROUND = ("lstrip", "rstrip", "single_word")


def app_tokenizer(path: Path, bos_id: int | None = None) -> str | None:
    """The part of a `tokenizer.json` that the app's tokenizer lacks, as a clause, or None."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        return f"the file {path.name} ({error})"
    if not isinstance(content, dict):
        return f"the file {path.name}"
    return next(_unknown(content, bos_id), None)


def _unknown(content: Mapping[str, Any], bos_id: int | None) -> Iterator[str]:
    model = _object(content.get("model"))
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        yield f"the model {model.get('type')}"
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(key):
            yield f"{key} of its model"
    normalizers = list(_steps(content.get("normalizer"), "normalizers"))
    yield from _others("normalizer", normalizers, _NORMALIZERS)
    for step in normalizers:
        if step.get("type") == "Replace" and "String" not in _object(step.get("pattern")):
            yield "the normalizer Replace with a regular expression"
    splits = list(_steps(content.get("pre_tokenizer"), "pretokenizers"))
    yield from _others("pre-tokenizer", splits, _PRE_TOKENIZERS)
    replaced = {_object(step.get("pattern")).get("String") for step in normalizers}
    yield from _splits(splits, replaced)
    decoders = list(_steps(content.get("decoder"), "decoders"))
    yield from _others("decoder", decoders, _DECODERS)
    yield from _added(content.get("added_tokens"), normalized=bool(normalizers))
    yield from _around(list(_steps(content.get("post_processor"), "processors")), bos_id)


def _steps(part: Any, inner: str) -> Iterator[Mapping[str, Any]]:
    """A part of the pipeline, or those that a sequence has."""
    if not isinstance(part, dict):
        return
    if part.get("type") == "Sequence":
        for each in part.get(inner) or ():
            yield from _steps(each, inner)
    else:
        yield part


def _others(noun: str, steps: list[Mapping[str, Any]], known: frozenset[str]) -> Iterator[str]:
    for step in steps:
        if step.get("type") not in known:
            yield f"the {noun} {step.get('type')}"


def _splits(steps: list[Mapping[str, Any]], replaced: set[Any]) -> Iterator[str]:
    """Of the steps that split a text; what was `replaced` before does not occur in it."""
    for step in steps:
        kind = step.get("type")
        if kind == "ByteLevel" and step.get("add_prefix_space"):
            yield "the pre-tokenizer ByteLevel with add_prefix_space"
        if kind == "Metaspace" and step.get("replacement", "▁") != "▁":
            yield "the pre-tokenizer Metaspace with another mark"
        if kind != "Split":
            continue
        pattern = _object(step.get("pattern"))
        if "String" in pattern and pattern["String"] not in replaced:
            yield f"the pre-tokenizer Split at {pattern['String']!r}"
        if "Regex" in pattern and (step.get("invert") or step.get("behavior") != "Isolated"):
            yield f"the pre-tokenizer Split that is {step.get('behavior')}"


def _added(tokens: Any, *, normalized: bool) -> Iterator[str]:
    for token in tokens or ():
        for key in _AROUND:
            if token.get(key):
                yield f"{key} of the token {token.get('content')!r}"
        if normalized and token.get("normalized") and not token.get("special"):
            yield f"the normalized token {token.get('content')!r}"


def _around(steps: list[Mapping[str, Any]], bos_id: int | None) -> Iterator[str]:
    """Tokens that are added to a text, other than the one that the app adds."""
    yield from _others("post-processor", steps, _POST_PROCESSORS)
    for step in steps:
        if step.get("type") != "TemplateProcessing":
            continue
        pieces = [next(iter(each)) for each in step.get("single") or ()]
        if pieces not in (["Sequence"], ["SpecialToken", "Sequence"]):
            yield "a post-processor that adds tokens after a text"
        elif len(pieces) > 1 and bos_id is None:
            yield "a post-processor that adds a token before a text"


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
