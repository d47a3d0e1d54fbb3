"""Which records can be compared: those of one series, which measure the same on the same device.

A series is everything that a recipe says about what is measured, and where. What the recipe does
not say may change within it, for that is where a regression is looked for: the program, versions,
weights, the commit, the checkout of ExecuTorch, the system on the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from etdeploy.bench.units import duration
from etdeploy.core import console
from etdeploy.core.console import count
from etdeploy.core.hashing import digest_json
from etdeploy.core.values import Value, flattened

if TYPE_CHECKING:
    from etdeploy.bench.records.generation import TextGeneration
    from etdeploy.bench.records.record import RunRecord
    from etdeploy.devices.base import DeviceFacts


KEY_LENGTH = 16
# As many as a person has to type.
_SHORT_KEY = 8
# Of a value that distinguishes a series; longer texts are cut.
_MOST_CHARACTERS = 40
# The kind of workload, and the recipe's section that says what is generated.
GENERATION = "generation"
# Of the section `model`: what the model is. A checkpoint's file may change.
_MODEL = (
    "example",
    "python",
    "exported",
    "program",
    "hf",
    "timm",
    "gguf",
    "checkpoint",
    "arguments",
)
# Of `export`: what is computed with which precision.
_PRECISION = ("overrides", "group_size", "embeddings")
# Every other key of a recipe that changes the numbers, with the value that has no part in the key
# of a series: the default when the key was added here. It stays when a default changes, for the new
# default measures something else, and keys of earlier records must not change.
SETTINGS: Mapping[str, Any] = {
    "model.params": None,
    "model.task": None,
    "model.lora": None,
    "model.merge": True,
    "export.calibration": None,
    "export.rounding": "nearest",
    "export.scaling": "auto",
    "export.target_bits": None,
    "export.soc": "auto",
    "export.options": {},
    "export.rewrites": "auto",
    "export.custom_ops": None,
    "export.strict": False,
    "export.seed": 0,
    "export.llm_config": None,
    "export.generation.context": 2048,
    "export.generation.prefill_tokens": 128,
    "export.generation.verify_tokens": 16,
    "export.generation.path": "auto",
    "export.generation.methods": "hybrid",
    "export.generation.attention": "auto",
    "export.generation.cache": "float32",
    "export.generation.layout": "auto",
    "export.generation.window": None,
    "export.generation.sinks": 4,
    "export.generation.evaluate_tokens": 512,
    "runtime.provider": "auto",
    "runtime.thread_pool": "default",
    "runtime.optimize": "speed",
    "runtime.log_level": "error",
    "runtime.kleidiai": None,
    "runtime.weight_cache": False,
    "runtime.custom_ops": None,
    "runtime.cmake": {},
    "benchmark.warmup": "auto",
    "benchmark.iterations": 50,
    "benchmark.cooldown": None,
    "app.runtime": "auto",
}
# Those that change no number of the history: where something comes from, how often and how long it
# is measured, what is measured besides, and how the app looks.
NOT_MEASURED = (
    "model.weights",
    "model.revision",
    "model.remote_code",
    "export.generation.evaluate",
    "runtime.source",
    "runtime.selective",
    "runtime.android_api",
    "runtime.custom_ops_target",
    "benchmark.runs",
    "benchmark.sustained_s",
    "benchmark.memory",
    "benchmark.profile",
    "benchmark.timeout_s",
    "benchmark.tolerance",
    "app.id",
    "app.name",
    "app.task",
    "app.bundled",
    "app.abis",
    "app.build",
    "app.aar",
    "app.team",
)


class DeviceIdentity(Value):
    """What tells one device from another.

    The system's version is not in it: an update is a change within a series. Nor is the connection.

    Attributes:
        kind: host, qemu, android, ssh.
        name: A phone's serial number, else as `--device` takes it. Makers give several phones one
            serial number; the other keys tell those apart.
    """

    kind: str
    name: str
    model: str | None = None
    manufacturer: str | None = None
    soc: str | None = None
    cpu_count: int | None = None
    emulated_cpu: str | None = None

    @classmethod
    def of(cls, facts: DeviceFacts) -> DeviceIdentity:
        """The identity among a device's facts."""
        return cls(
            kind=facts.kind,
            name=facts.serial or facts.name,
            model=facts.model,
            manufacturer=facts.manufacturer,
            soc=facts.soc,
            cpu_count=facts.cpu_count,
            emulated_cpu=facts.emulated_cpu,
        )

    @property
    def label(self) -> str:
        """As a person tells devices apart."""
        name = self.name if self.name.startswith(self.kind) else f"{self.kind}:{self.name}"
        return f"{name} ({self.model})" if self.model else name


class Series(Value):
    """What records have in common that can be compared.

    Attributes:
        recipe: Its name.
        model: Where the model comes from, with the factory's arguments.
        source: The same for a person.
        backend, quantization: Of the program; null for a finished one.
        precision: Keys of the recipe that say more about the quantization.
        method: That is run.
        sizes: That are measured, with the function that makes their inputs; of text, the prompts
            with what is generated after them.
        threads: As the recipe asks for them.
        target: What the runner is built for.
        device: What it runs on.
        app: Whether an app runs it, and not a runner.
        settings: Other keys of the recipe that change the numbers, by dotted name, where they have
            another value than in `SETTINGS`.
    """

    recipe: str
    model: dict[str, Any]
    source: str
    backend: str | None
    quantization: str | None
    precision: dict[str, Any]
    method: str
    sizes: dict[str, Any]
    threads: Any
    target: str
    device: DeviceIdentity
    app: bool = False
    settings: dict[str, Any] = {}

    @property
    def key(self) -> str:
        """The same for records that can be compared, on every machine."""
        # A series without these keeps the key that it had before they were added.
        left_out = {"source", *(name for name in ("app", "settings") if not getattr(self, name))}
        return digest_json(self.model_dump(mode="json", exclude=left_out))[:KEY_LENGTH]

    @property
    def short_key(self) -> str:
        """The beginning of the key, as it is shown, and as `etdeploy history --series` takes it."""
        return self.key[:_SHORT_KEY]

    @property
    def label(self) -> str:
        """In a few words, without the recipe and the device."""
        words = [self.backend or self.source, self.quantization]
        words += [self.method] if self.method not in ("forward", GENERATION) else []
        words += ["app"] if self.app else []
        words += [_threads(self.threads)] if self.threads not in (0, "auto", None) else []
        return " ".join(word for word in words if word and word != "none")

    @property
    def metric(self) -> str:
        """The default metric for comparing its records."""
        return TOKEN if GENERATION in self.sizes else LATENCY


def _threads(asked: Any) -> str:
    if isinstance(asked, int):
        return count(asked, "thread")
    return f"threads {', '.join(map(str, asked))}"


def series_from(record: RunRecord) -> Series:
    """The series that a record belongs to."""
    content = record.recipe.content
    model, export, runtime, benchmark = (
        _section(content, name) for name in ("model", "export", "runtime", "benchmark")
    )
    return Series(
        recipe=record.recipe.name,
        model=_select(model, _MODEL),
        source=record.program.source,
        backend=record.program.backend,
        quantization=record.program.quantization,
        precision=_select(export, _PRECISION),
        # Which of its methods decode is how such a program is made.
        method=GENERATION if _is_text(record) else record.program.method,
        sizes=_points(benchmark) if _is_text(record) else _sizes(benchmark),
        threads=runtime.get("threads", 0),
        target=record.runner.target,
        device=DeviceIdentity.of(record.device.facts),
        app=record.runner.app is not None,
        settings=settings_from(content, app=record.runner.app is not None),
    )


def settings_from(content: Mapping[str, Any], *, app: bool = False) -> dict[str, Any]:
    """Values of a recipe that differ from `SETTINGS`, by dotted key; `app.` only for an app."""
    found = {}
    for key, default in SETTINGS.items():
        *sections, name = key.split(".")
        value = content
        for section in sections:
            value = _section(value, section)
        given = value.get(name)
        if given not in (None, {}, [], "", default) and (app or sections != ["app"]):
            found[key] = given
    return found


def distinct_labels(found: Sequence[Series]) -> list[str]:
    """Return the label of each series, with what distinguishes it from others of the same label.

    Only series of the same recipe and device get more than their label, such as
    `xnnpack, export.group_size=32`.
    """
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for one in found:
        groups.setdefault(_group(one), []).append(_leaves(one))
    return [
        ", ".join([*filter(None, [one.label]), *_distinct(_leaves(one), groups[_group(one)])])
        for one in found
    ]


def _group(series: Series) -> tuple[str, str, str]:
    return series.recipe, series.device.label, series.label


def _leaves(series: Series) -> dict[str, Any]:
    """Return the values that make the key, by the recipe's names of them where it has them."""
    content = series.model_dump(mode="json", exclude={"source", "settings"})
    sections = {"precision": "export", "sizes": "benchmark"}
    named = {sections.get(name, name): value for name, value in content.items()}
    return dict(flattened({**named, **series.settings}))


def _distinct(own: Mapping[str, Any], group: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    names = dict.fromkeys(name for leaves in group for name in leaves)
    for name in names:
        if any(leaves.get(name) != own.get(name) for leaves in group):
            value = own.get(name)
            yield f"{name} not set" if value is None else f"{name}={_short_text(value)}"


def _short_text(value: Any) -> str:
    text = ":".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."


def explain_differences(a: Series, b: Series) -> list[str]:
    """Why records of two series cannot be compared, each reason in a few words."""
    return list(_differences(a, b))


def _differences(a: Series, b: Series) -> Iterator[str]:
    if a.device != b.device:
        yield f"another device: {a.device.label} and {b.device.label}"
    for key in ("recipe", "backend", "quantization", "method", "threads", "target"):
        ours, theirs = getattr(a, key), getattr(b, key)
        if ours != theirs:
            yield f"another {key}: {_shown(ours)} and {_shown(theirs)}"
    if a.app != b.app:
        yield "one was measured in an app, the other with a runner"
    if a.model != b.model:
        yield f"another model: {a.source} and {b.source}"
    if a.precision != b.precision:
        yield "another quantization of parts of the model"
    if a.sizes != b.sizes:
        text = GENERATION in a.sizes or GENERATION in b.sizes
        yield "other numbers of tokens, or another prompt" if text else "other sizes or inputs"
    for key in sorted({*a.settings, *b.settings}):
        ours, theirs = (each.settings.get(key, SETTINGS.get(key)) for each in (a, b))
        if ours != theirs:
            yield f"another {key}: {_shown(ours)} and {_shown(theirs)}"


def _shown(value: Any) -> str:
    return "none" if value in (None, {}) else str(value)


def _sizes(benchmark: Mapping[str, Any]) -> dict[str, Any]:
    """Their order counts: a record's `latency_ms` is about the first."""
    selected = {**_select(benchmark, ("sizes", "inputs")), **_task_input(benchmark)}
    return {**selected, "order": list(selected["sizes"])} if "sizes" in selected else selected


def _is_text(record: RunRecord) -> bool:
    return record.workload.kind == GENERATION


def _points(benchmark: Mapping[str, Any]) -> dict[str, Any]:
    asked = dict(_section(benchmark, GENERATION))
    # Records of before have no such key.
    if asked.get("speculation") == "none":
        del asked["speculation"]
    return {GENERATION: asked, **_task_input(benchmark)}


def _task_input(benchmark: Mapping[str, Any]) -> dict[str, Any]:
    """The text, image or speech that the recipe names."""
    selected = _select(_section(benchmark, "input"), ("text", "image", "audio", "language"))
    return {"input": selected} if selected else {}


def _section(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = content.get(name)
    return section if isinstance(section, Mapping) else {}


def _select(section: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """The keys that say something, so that one that a later release adds changes nothing."""
    return {key: section[key] for key in keys if section.get(key) not in (None, {}, [], "")}


LATENCY = "latency_ms"
TOKEN, FIRST_TOKEN, ENCODE = "token_ms", "ttft_ms", "encode_ms"
PERPLEXITY = "perplexity"
NOISE = "quantization_noise"
# What a record is compared by: the spread between its starts is that of these times.
HEADLINES = (LATENCY, TOKEN)
# By name: what it is called in a sentence. Less is better in all of them.
TITLES = {
    LATENCY: "latency",
    TOKEN: "time per token",
    FIRST_TOKEN: "time to first token",
    ENCODE: "encoder time",
    "first_inference_ms": "first inference",
    "load_ms": "load",
    "peak_rss_bytes": "peak memory",
    "program_bytes": "size of the program",
    PERPLEXITY: "perplexity",
    NOISE: "quantization noise",
}
# Between a metric and the name of one of the recipe's sizes, the key of a point, a text, or an
# output.
_AT = "@"
# Of a text's digest.
_DIGITS = 8


def read_metrics(record: RunRecord) -> dict[str, float]:
    """The numbers of one record, by metric; of a simulated one none, for they are the simulator's.

    Numbers that are infinite or NaN are left out. Where the recipe names sizes, the first one's is
    `latency_ms`, and `latency_ms@NAME` is each other's. Of generated text, the first point's are
    `token_ms` and `ttft_ms`, and `token_ms@p128-n64-d1024` is that of another. A model with an
    encoder has `encode_ms`, one that was evaluated `perplexity@FILE-DIGEST`, and a quantized one
    `quantization_noise@OUTPUT` for each output: the root mean square of what quantization changes
    by that of the output.
    """
    if record.simulated:
        return {}
    return {name: value for name, value in _metrics(record) if math.isfinite(value)}


def _metrics(record: RunRecord) -> Iterator[tuple[str, float]]:
    from etdeploy.bench.records.generation import TextGeneration

    workload = record.workload
    if isinstance(workload, TextGeneration):
        yield from _text_metrics(workload)
    else:
        yield LATENCY, workload.latency_ms.median
        for size in workload.sizes[1:]:
            yield f"{LATENCY}{_AT}{size.name}", size.latency_ms.median
        yield "first_inference_ms", workload.first_inference_ms
    yield "load_ms", record.load_ms
    if record.peak_rss_bytes is not None:
        yield "peak_rss_bytes", float(record.peak_rss_bytes)
    yield "program_bytes", float(record.program.size_bytes)
    for loss in record.program.quantization_loss:
        if loss.noise is not None:
            yield f"{NOISE}{_AT}{loss.name}", loss.noise


def _text_metrics(workload: TextGeneration) -> Iterator[tuple[str, float]]:
    for index, point in enumerate(workload.points):
        at = f"{_AT}{point.key}" if index else ""
        if point.token_ms:
            yield f"{TOKEN}{at}", point.token_ms.median
        yield f"{FIRST_TOKEN}{at}", point.ttft_ms
    if workload.encoder:
        yield ENCODE, workload.encoder.encode_ms.median
    evaluation = workload.evaluation
    if evaluation and evaluation.exported_perplexity is not None:
        # Of another text, it is another number.
        text = f"{evaluation.file}-{evaluation.sha256[:_DIGITS]}"
        yield f"{PERPLEXITY}{_AT}{text}", evaluation.exported_perplexity


def base_metric(metric: str) -> str:
    """A metric's name without that of a size."""
    return metric.partition(_AT)[0]


def metric_title(metric: str) -> str:
    """What a metric is called in a sentence."""
    name, _, size = metric.partition(_AT)
    return TITLES.get(name, name) + (f" at {size}" if size else "")


def format_metric(metric: str, value: float) -> str:
    """A value with its unit."""
    if base_metric(metric) == PERPLEXITY:
        return f"{value:.4g}"
    if base_metric(metric) == NOISE:
        return f"{100 * value:.3g} % of the signal"
    return console.size(round(value)) if "bytes" in metric else duration(value)
