"""The section `export` of a recipe."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from etdeploy.backends.registry import exporting_names, find_backend
from etdeploy.backends.rewrites import AUTO, REWRITES
from etdeploy.backends.schemes import DEFAULT
from etdeploy.recipe.choice import Choice, Takes, all_different
from etdeploy.recipe.rules.common import DEFAULT_EVALUATED, DEFAULT_GROUP_SIZE, DEFAULT_SINKS
from etdeploy.recipe.sections.base import MOST_TOKENS, Section

BackendName = Annotated[str, Choice(lambda name: find_backend(name) is not None, exporting_names)]
Quantization = Literal[
    "none",
    "fp16",
    "int8_static",
    "int8_dynamic",
    "8da4w",
    "8da8w",
    "8a4w",
    "16a8w",
    "16a4w",
    "16a4w_block",
]
EmbeddingQuantization = Literal["none", "8w", "4w"]
RewriteName = Annotated[
    str, Choice(lambda name: name in (*REWRITES, AUTO), lambda: (*REWRITES, AUTO))
]
Rewrites = Annotated[
    Literal["auto", "none"]
    | Annotated[
        tuple[RewriteName, ...],
        Field(strict=False, min_length=1, json_schema_extra={"uniqueItems": True}),
        AfterValidator(all_different),
    ],
    Takes(f"auto, none, or a list of auto, {', '.join(REWRITES)}", words=("auto", "none")),
]
GenerationPath = Literal["auto", "fast", "plain", "static"]
GenerationMode = Literal["hybrid", "kv", "prefill"]
Rounding = Literal["nearest", "gptq"]
Scaling = Literal["auto", "none", "awq"]
AttentionChoice = Literal["auto", "kernel", "stock"]
CacheChoice = Literal["float32", "float16", "int8"]
LayoutChoice = Literal["auto", "etdeploy", "executorch"]
_PREFILL = 128
# The logits of so many tokens take some GB.
_MOST_EVALUATED = 4096
# Of a text or a list, for calibration.
_MOST_PROMPTS = 4096


class ExportGeneration(Section):
    """The program of a language model."""

    context: int = Field(default=2048, ge=16, le=MOST_TOKENS)
    """Positions of the cache: a prompt and the generated text have to fit."""

    prefill_tokens: int = Field(default=_PREFILL, ge=2, le=MOST_TOKENS)
    """The most tokens of a prompt that are computed at once; a longer prompt is split. The default
    is never larger than `context`."""

    verify_tokens: int = Field(default=16, ge=0, le=16)
    """The most tokens that speculative decoding verifies in one call: the method for prompts can
    give the logits of so many tokens. 0 for a program that cannot verify. Each takes 4 bytes for
    each token of the vocabulary in memory. Programs with recurrent layers, an encoder, the layout
    `executorch` or for a backend that computes elsewhere than on the CPU cannot verify."""

    path: GenerationPath = "auto"
    """`fast` writes the cache in place, and the attention reads only its filled part. `plain`
    computes as transformers does, for models that do not support `fast`. `static` has keys and
    values as inputs and outputs of the program, for a backend that keeps no state: QNN. `auto` uses
    `static` there and `fast` elsewhere if the model supports it, and records the reason if not."""

    methods: GenerationMode = "hybrid"
    """Which methods the path `static` has. `hybrid`: one for prompts and one for single tokens.
    `kv`: only that for single tokens, also for prompts; it compiles in half the time. `prefill`:
    only that for prompts, also for single tokens."""

    attention: AttentionChoice = "auto"
    """The attention of the path `fast`. `kernel`: an operator of etdeploy, which its runner has, or
    in the layout `executorch` that of ExecuTorch's kernels for language models; it reads the cache
    up to the current position. `stock`: operators of ExecuTorch, which every runtime has, in
    methods for several lengths. `auto`: `kernel` if the backend computes on the CPU and the cache
    has 512 positions or more."""

    cache: CacheChoice = "float32"
    """How the attention `kernel` keeps keys and values. `float32`: as they are. `float16`: in half
    of the memory. `int8`: in a bit more than a quarter, each head's row of a token with its own
    scale. What that does to the model is part of its evaluation."""

    window: int | None = Field(default=None, ge=16, le=MOST_TOKENS)
    """How many positions a token sees, itself the last; the cache has no room for more. By default
    all, as the model was trained. For models whose layers all have full attention. What it does to
    the model is part of its evaluation, if the evaluated text is longer."""

    sinks: int = Field(default=DEFAULT_SINKS, ge=0, le=1024)
    """With `window`: how many of the first positions of a text every token sees besides, since most
    models put much of their attention there (attention sinks)."""

    layout: LayoutChoice = "auto"
    """Whose runner calls the program. `etdeploy`: methods for prompts and for single tokens, with
    operators of etdeploy where they are faster. `executorch`: one method `forward`, as ExecuTorch's
    own runner of language models calls it (LlmModule, TextRunner, TextLLMRunner), with its
    operators only; etdeploy's runner runs it, too. `auto`: `executorch` for an app on a backend
    that computes on the CPU, else `etdeploy`."""

    evaluate: str | None = None
    """A text file on which the model is evaluated when it is exported: its perplexity, and how far
    quantization moves its logits. Text in UTF-8; only the beginning of a long one counts. By
    default, a model with quantized layers is evaluated on a short text that etdeploy brings; `none`
    turns this off."""

    evaluate_tokens: int = Field(default=DEFAULT_EVALUATED, ge=2, le=_MOST_EVALUATED)
    """The most tokens of that text that are predicted. For a quantized model, the export holds the
    logits of all of them in memory: 4 bytes for each token of the vocabulary."""

    @model_validator(mode="before")
    @classmethod
    def _prefill_fits(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("prefill_tokens") is not None:
            return data
        context = data.get("context")
        fits = not isinstance(context, int) or not 2 <= context < _PREFILL
        return data if fits else {**data, "prefill_tokens": context}


class PartQuantization(Section):
    """How a part of the model is quantized."""

    quantization: Quantization
    """The scheme."""

    group_size: int | None = Field(default=None, ge=32, le=4096, multiple_of=32)
    """The number of weights that share a scale, if it differs from that of the rest."""


PartChoice = Annotated[
    Quantization | PartQuantization,
    Takes(
        f"{', '.join(get_args(Quantization))}, or one of them with another group size: "
        "{quantization: 8da4w, group_size: 64}",
        words=get_args(Quantization),
    ),
]


class CalibrationText(Section):
    """What a language model reads so that its activations are known."""

    text: str | None = None
    """A text file (UTF-8). By default, where `prompts` is a number, a text that etdeploy brings."""

    prompts: (
        Annotated[int, Field(ge=1, le=_MOST_PROMPTS)]
        | Annotated[
            tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False, min_length=1)
        ]
        | None
    ) = None
    """A number: how many sections of `generation.prefill_tokens` tokens are read of the text, each
    from an empty cache, in place of the first tokens. Or a list of prompts, as they are (with
    no template), which are read after the text if one is named; each has to fit into
    `generation.context`."""

    @model_validator(mode="after")
    def _reads_something(self) -> CalibrationText:
        if self.text is None and self.prompts is None:
            raise ValueError("text and prompts are both missing")
        return self


Calibration = Annotated[
    str | CalibrationText,
    Takes(
        "the name of a function or of a text file, or a mapping with one or both of text, a file, "
        f"and prompts, a number from 1 to {_MOST_PROMPTS} or a list of texts that are not empty",
        words=(),
    ),
]


class Export(Section):
    """How the model becomes a program."""

    backend: BackendName = DEFAULT
    """The backend that the model is lowered to; what it cannot run uses portable kernels."""

    quantization: Quantization = "none"
    """How weights and activations are quantized; the available schemes depend on the backend."""

    overrides: dict[str, PartChoice | None] = Field(default_factory=dict)
    """Other schemes for parts of the model, by patterns of module paths:
    `{head: 16a8w, "layers.*.attention": 16a8w}`. A pattern is for a module with everything inside;
    `*` also stands for dots, and `""` for what the model's own `forward` computes. Of several that
    match, the first counts. A part can have another group size:
    `{lm_head: {quantization: 8da4w, group_size: 64}}`. The [table of backends](#backends) says
    which schemes can be mixed."""

    embeddings: EmbeddingQuantization | None = None
    """How tables of embeddings are quantized: `8w`, 8 bits with a scale for each token; `4w`, 4
    bits in groups of `group_size`; `none`, not at all. By default, `8w` for a model of `hf` with
    8da4w or 8da8w, else `none`."""

    calibration: Calibration | None = None
    """For static schemes: a function `file.py:function` or `package.module:function` that yields
    tuples of inputs, or dicts of inputs by keyword. For a program with several methods, it is
    called for each, `samples(method="prefill")`. Each has the shapes and data types of the example
    inputs, and finite values, preprocessed as your application does it. An export reports
    [what quantization costs](measuring.md#what-quantization-costs). Without the function,
    the example inputs are used, which is enough to measure speed.

    For a model of `hf` with 8da4w or, on QNN, a static scheme: a text file (UTF-8; the first 1,024
    tokens count, and 2,048 on QNN). The model reads it, and the scales of the 4-bit weights are
    chosen for the least error with the activations that occur, or the ranges of activations are
    those that occur. By default, a text that etdeploy brings; `none` chooses the scales by the
    weights alone. A mapping has prompts, too, or says how much of the text is read:
    `{text: notes.txt, prompts: 32}`."""

    rounding: Rounding = "nearest"
    """How the 4-bit weights of 8da4w are rounded in a language model. `nearest`: each by itself.
    `gptq`: column by column, and what one loses, those after it make up for as far as the inputs of
    the layer allow, which the model's own layers give when it reads the first 4,096 tokens of
    `calibration`. It loses less at the same size, and takes longer;
    [language-models.md](language-models.md#gptq) has figures."""

    scaling: Scaling = "auto"
    """Whether inputs of layers with 4-bit weights of 8da4w are scaled before these are rounded, in
    a language model. `awq`: columns with large inputs on `calibration` are multiplied, and rounded
    more finely, and the norm before them divides. The model computes the same, the program has the
    same size and speed, and loses less, with either `rounding`;
    [language-models.md](language-models.md#awq) has figures. `auto` is `awq` where the model reads
    a text, its weights fit in memory and no adapter stays beside them, and otherwise `none`."""

    target_bits: float | None = Field(default=None, ge=4, le=8)
    """The most bits per weight, with their scales, on average over the linear layers of a language
    model with 8da4w: those that lose the most in 4 bits for their size get 8. It chooses among all
    layers but the output layer and those of `overrides`. Groups of 32 have 4.5 bits, of 64 4.25.
    By default, the values of grouped-query attention get 8 bits.
    [language-models.md](language-models.md#mixed-bits) has figures."""

    group_size: int = Field(default=DEFAULT_GROUP_SIZE, ge=32, le=4096, multiple_of=32)
    """8da4w, 16a4w_block and embeddings with 4w: the number of weights that share a scale. A
    multiple of 32, which XNNPACK needs to take the layer, and a divisor of the layer's input
    size."""

    soc: str = Field(default="auto", min_length=1)
    """For a backend whose programs are compiled for one SoC: that SoC, like `SM8650`; `auto` means
    the device's."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the backend, by name; [each backend](#options-of-backends) has its own."""

    rewrites: Rewrites = "auto"
    """Rewrites of the model's graph before it is lowered, which make the program faster: `auto` for
    those that help on the target, `none`, or a list of names. For XNNPACK.
    [docs/rewrites.md](rewrites.md) explains each."""

    custom_ops: str | None = None
    """A `.py` file or a shared library (`.so`, `.dylib`) that registers custom operators with
    PyTorch; it is loaded before the model. Its code is run: name only code that you trust."""

    strict: bool = False
    """Whether torch.export traces with TorchDynamo (strict mode). If one mode fails where
    the other works, as with a static cache or NumPy in `forward`, etdeploy uses the other and says
    so."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """The seed for random weights and inputs, set before the factory is called."""

    generation: ExportGeneration | None = None
    """For a model of `hf`, which has these defaults."""

    llm_config: dict[str, Any] | None = None
    """Exports with ExecuTorch's own exporter, `export_llm`, by its LlmConfig: the mapping itself,
    or the name of its file. The model is `base.checkpoint` with `base.params`, the section `model`
    is left out, and no other key of `export` may say something else; paths are relative to the file
    that has them. [language-models.md](language-models.md#executorchs-own-exporter) has more."""
