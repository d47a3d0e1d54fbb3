"""The deployment recipe as frozen, typed values.

The docstring below each field is its documentation: the JSON Schema and docs/recipes.md are
generated from it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from etdeploy.backends.registry import exporting_names, find_backend
from etdeploy.backends.rewrites import AUTO, REWRITES
from etdeploy.backends.schemes import DEFAULT, LINEAR_SCHEMES
from etdeploy.recipe import llm_config
from etdeploy.recipe.choice import Choice, Takes, all_different
from etdeploy.recipe.rules.common import (
    DEFAULT_EVALUATED,
    DEFAULT_GROUP_SIZE,
    DEFAULT_SINKS,
    LANGUAGE_MODELS,
    require,
)
from etdeploy.recipe.rules.recipe import recipe_rules
from etdeploy.recipe.rules.sections import RULES
from etdeploy.recipe.tasks import (
    IMAGE_CLASSIFICATION,
    SPEECH_RECOGNITION,
    TASKS,
    TEXT_GENERATION,
    generates,
)

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
ExampleName = Literal["mlp", "convnet", "encoder", "transformer"]
ProviderName = Literal["auto", "wheel", "source"]
OptimizeFor = Literal["speed", "size"]
LogLevel = Literal["none", "fatal", "error", "info", "debug"]
ThreadPool = Literal["default", "performance_cores", "all_cores"]
Task = Literal[
    "text-generation",
    "feature-extraction",
    "fill-mask",
    "text-classification",
    "token-classification",
    "image-classification",
    "object-detection",
    "semantic-segmentation",
    "depth-estimation",
    "automatic-speech-recognition",
    "audio-classification",
    "text2text-generation",
    "image-text-to-text",
    "text-to-speech",
]
Abi = Literal["arm64-v8a", "x86_64"]
Abis = Annotated[
    Annotated[
        tuple[Abi, ...],
        Field(strict=False, min_length=1, json_schema_extra={"uniqueItems": True}),
        AfterValidator(all_different),
    ],
    Takes("a list of arm64-v8a, x86_64, or both", words=()),
]
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
AppRuntime = Literal["auto", "prebuilt", "source"]
AppBuild = Literal["auto", "gradle", "sdk"]
AppTask = Literal[
    "auto", "image-classification", "text-generation", "automatic-speech-recognition", "tensor"
]
GenerationPath = Literal["auto", "fast", "plain", "static"]
GenerationMode = Literal["hybrid", "kv", "prefill"]
Rounding = Literal["nearest", "gptq"]
Scaling = Literal["auto", "none", "awq"]
AttentionChoice = Literal["auto", "kernel", "stock"]
CacheChoice = Literal["float32", "float16", "int8"]
LayoutChoice = Literal["auto", "etdeploy", "executorch"]
DRAFT = "model:"
# A draft's program comes after `model:`.
Speculation = Annotated[
    str,
    Field(pattern=rf"^(none|lookup|{DRAFT}\s*\S.*)$"),
    Takes(f"none, lookup, or {DRAFT}DRAFT with a program", words=("none", "lookup")),
]
# Far above any model's context.
_MOST_TOKENS = 2**20
_PREFILL = 128
# The logits of so many tokens take some GB.
_MOST_EVALUATED = 4096
Size = Annotated[int, Field(ge=1, lt=2**31)]
# Of a text or a list, for calibration.
_MOST_PROMPTS = 4096
AdapterName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$")]
Adapters = Annotated[
    Annotated[str, Field(min_length=1)]
    | Annotated[dict[AdapterName, Annotated[str, Field(min_length=1)]], Field(min_length=1)],
    Takes(
        "a folder or an id on the Hugging Face hub, or a mapping of names (letters, digits, dashes "
        "and underscores) to these",
        words=(),
    ),
]
Warmup = Annotated[
    Annotated[int, Field(ge=0, le=100_000)] | Literal["auto"],
    Takes("a whole number from 0 to 100000, or auto"),
]
Threads = Annotated[
    Annotated[int, Field(ge=0, le=256)]
    | Literal["auto"]
    | Annotated[
        tuple[Annotated[int, Field(ge=1, le=256)], ...],
        Field(strict=False, min_length=1, json_schema_extra={"uniqueItems": True}),
        AfterValidator(all_different),
    ],
    Takes("a whole number from 0 to 256, auto, or a list of different numbers from 1 to 256"),
]
Tokens = Annotated[
    Annotated[
        tuple[Annotated[int, Field(ge=1, le=_MOST_TOKENS)], ...],
        Field(strict=False, min_length=1, json_schema_extra={"uniqueItems": True}),
        AfterValidator(all_different),
    ],
    Takes(f"a list of different whole numbers from 1 to {_MOST_TOKENS}", words=()),
]
Depths = Annotated[
    Annotated[
        tuple[Annotated[int, Field(ge=0, le=_MOST_TOKENS)], ...],
        Field(strict=False, min_length=1, json_schema_extra={"uniqueItems": True}),
        AfterValidator(all_different),
    ],
    Takes(f"a list of different whole numbers from 0 to {_MOST_TOKENS}", words=()),
]


class Section(BaseModel):
    """A part of a recipe; unknown keys are rejected, empty ones (null) have their default."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_default(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {k: v for k, v in data.items() if v is not None or k not in cls.model_fields}

    @model_validator(mode="after")
    def _keep_rules(self) -> Section:
        if rules := RULES.get(type(self).__name__.lower()):
            require(rules(vars(self)))
        return self


class Model(Section):
    """Where the model comes from: one of `example`, `python`, `exported`, `program`, `hf`,
    `timm`, `gguf`, `checkpoint`.
    """

    example: ExampleName | None = None
    """A small bundled model with real layers and random weights."""

    python: str | None = None
    """A factory, as `package.module:factory` or `file.py:factory`.

    It returns `(module, example_inputs)` or `(module, example_inputs, dynamic_shapes)`, as
    torch.export takes them; the example inputs are a tuple, or a dict of inputs by keyword. It may
    also return `(module, args, kwargs, dynamic_shapes)`, or, for a program with several methods, a
    dict of one of these for each method. Inputs are tensors, numbers, booleans and
    None, nested in any way; everything but tensors is fixed in the program. The code is run: name
    only code that you trust. It can import what is installed, modules beside its file, and modules
    in the working folder; if two have the same name, the first in this order wins.
    """

    exported: str | None = None
    """A `.pt2` file that torch.export.save wrote; it contains its example inputs."""

    program: str | None = None
    """A finished `.pte` file, which is not exported and has no expected outputs. Or one in a
    repository of the Hugging Face hub: `ORG/NAME/FILE.pte`, or `ORG/NAME` if there is one only."""

    hf: str | None = Field(default=None, min_length=1)
    """A model as transformers saves it: its id on the Hugging Face hub, like
    `HuggingFaceTB/SmolLM2-135M`, or a folder. A folder of that name comes first. Weights are read
    from safetensors files only; [language-models.md](language-models.md) has more."""

    timm: str | None = Field(default=None, min_length=1)
    """A model of timm with its weights: a name of timm with its tag, like `resnet18.a1_in1k`, an id
    on the Hugging Face hub, like `timm/resnet18.a1_in1k`, or a folder that timm's `save_for_hf`
    wrote. [tasks.md](tasks.md#models-of-timm) has more."""

    gguf: str | None = Field(default=None, min_length=1)
    """A language model in llama.cpp's format: a `.gguf` file, or one in a repository of the Hugging
    Face hub, like `ORG/NAME/model-Q4_0.gguf`. Architecture, tokenizer, chat template and weights
    come from the file; [language-models.md](language-models.md#gguf-files) says what happens to
    weights of each type."""

    checkpoint: str | None = Field(default=None, min_length=1)
    """A language model with Llama's architecture as Meta or torchtune saves it: a file of tensors
    like `consolidated.00.pth`, loaded with weights_only. Its tokenizer is `tokenizer.json` or
    `tokenizer.model` beside it."""

    params: str | None = Field(default=None, min_length=1)
    """The sizes of the model of `checkpoint`; by default `params.json` beside it."""

    revision: str | None = Field(default=None, min_length=1)
    """The branch, tag or commit of a repository that `hf`, `timm`, `gguf` or `program` names; by
    default `main`. The commit is recorded."""

    task: Task | None = None
    """The task of a model of `hf`, named as on the Hugging Face hub. By default the one that the
    class in its config.json is for, and `text-generation` where that file is not on this machine
    yet. Of a model of `timm`, `image-classification` by default, or `feature-extraction`, which
    leaves out its classifier."""

    remote_code: str | None = Field(default=None, min_length=1)
    """Lets the code in the repository or folder of `hf` run, for a model that transformers does not
    have. Repeat the id or folder of `hf`, so that the permission never applies to another model.
    Name only code that you trust."""

    lora: Adapters | None = None
    """A LoRA adapter of the language model, as peft saves it: a folder, or its id on the Hugging
    Face hub. It is merged with the weights when the model is exported. Several adapters are a
    mapping with a name for each (`{poems: ./poems, code: ./code}`); their changes add up.
    [language-models.md](language-models.md#lora-adapters) has more."""

    merge: bool = True
    """Whether the adapters of `lora` are merged with the weights. With `false`, the program has the
    weights once and methods for each adapter, of which a run chooses one by its name."""

    weights: str | None = None
    """A state dict for the factory's module: `.pt` (loaded with weights_only) or `.safetensors`."""

    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the factory or the example."""


class ExportGeneration(Section):
    """The program of a language model."""

    context: int = Field(default=2048, ge=16, le=_MOST_TOKENS)
    """Positions of the cache: a prompt and the generated text have to fit."""

    prefill_tokens: int = Field(default=_PREFILL, ge=2, le=_MOST_TOKENS)
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

    window: int | None = Field(default=None, ge=16, le=_MOST_TOKENS)
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


class Runtime(Section):
    """The C++ side: what the runner is linked against and how it runs.

    Keys that affect how ExecuTorch itself is compiled need the provider `source`; with `auto` they
    select it.
    """

    provider: ProviderName = "auto"
    """`wheel`: prebuilt libraries of the ExecuTorch wheel; `source`: built from a checkout;
    `auto` uses the wheel if it has everything that the program needs and no key below needs a
    build."""

    source: str | None = None
    """A checkout of ExecuTorch for the provider `source`; without it, etdeploy uses the
    one that ETDEPLOY_EXECUTORCH_SOURCE names, or a clone in the cache."""

    threads: Threads = 0
    """Threads of ExecuTorch's thread pool; with 0, ExecuTorch chooses, as it does in an app. `auto`
    takes one for each performance core that the runner may use. A list (`[1, 2, 4]`) measures with
    each number, shows the curve, and uses the fastest for the rest of the run."""

    thread_pool: ThreadPool = "default"
    """How many threads the pool has if `threads` is 0: ExecuTorch's default, one for each
    performance core, or one for each logical core. Needs `source`."""

    selective: bool = True
    """Whether a build from source includes only the operators, and where possible only the data
    types, that the program uses."""

    optimize: OptimizeFor = "speed"
    """What the compiler optimizes ExecuTorch for; `size` also replaces the
    optimized kernels with the portable ones. Needs `source`."""

    log_level: LogLevel = "error"
    """Which of ExecuTorch's log messages a build from source includes; the wheel has its own."""

    kleidiai: bool | None = None
    """Whether a build from source includes Arm's KleidiAI kernels in XNNPACK. They are for
    dynamically quantized weights and for processors with SME; by default, they are included for
    such weights."""

    weight_cache: bool = False
    """Whether XNNPACK's delegates share packed weights; `true` needs `source`."""

    android_api: int = Field(default=30, ge=28, le=36)
    """Minimum Android API level of a build with the NDK."""

    custom_ops: str | None = None
    """A folder with the C++ kernels of custom operators: `.cpp` files and a `.yaml` that lists
    operators and kernels, or a CMakeLists.txt with `custom_ops_target`."""

    custom_ops_target: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.+-]+$")
    """The CMake target of the custom operators' own CMakeLists.txt that the runner links."""

    cmake: dict[str, str | bool | int] = Field(default_factory=dict)
    """Extra cmake options; each is checked, and shown with the reason `recipe`.
    Needs `source`."""


class Tolerance(Section):
    """How far the device's outputs may be from the model's; the defaults follow the data type and
    the quantization, and count in steps where an output is quantized.
    """

    max_abs_error: float | None = Field(default=None, ge=0)
    """Largest absolute difference of any element."""

    cosine_similarity: float | None = Field(default=None, ge=-1, le=1)
    """Minimum cosine of the angle between the outputs. For quantized outputs it replaces
    the limit on the root mean square error. It is computed in 64-bit floats and applied exactly:
    1 requires outputs that are equal, or parallel to the last bit."""


class Cooldown(Section):
    """How cool the device has to be before a start, and how long to wait for it."""

    max_celsius: float = Field(default=37.0, gt=0, le=100)
    """The temperature to wait for: the battery's, or the processor's where there is no battery."""

    timeout_s: float = Field(default=300.0, gt=0, le=86_400)
    """After that many seconds the run starts anyway, and its record says so."""


class BenchmarkGeneration(Section):
    """What is generated on the device: every combination of `prompt_tokens`, `new_tokens` and
    `depth`.
    """

    prompt_tokens: Tokens = (128,)
    """Lengths of prompts, which are made of random tokens."""

    new_tokens: Tokens = (64,)
    """How many tokens are generated after a prompt."""

    depth: Depths = (0,)
    """How many tokens are in the cache before the prompt."""

    speculation: Speculation = "none"
    """Speculative decoding. `lookup` proposes what followed the end of the text when it was there
    before, in the prompt or the generated text, and one call verifies several tokens. The text
    stays the same; what is copied from the prompt is generated faster. `model:DRAFT` proposes what
    a smaller model with the same tokenizer generates: DRAFT is its program, a `.pte` or the folder
    that `etdeploy export --output` writes. It measures whether it pays, and is paused where it does
    not."""

    lora: str | None = None
    """The name of the adapter that generates, if those of `model.lora` are not merged; by default,
    the model generates without one."""

    prompt: str | None = Field(default=None, min_length=1)
    """A text in place of random tokens; `prompt_tokens` is ignored then."""

    temperature: float = Field(default=0, ge=0, le=100)
    """Logits are divided by this before a token is drawn; 0 takes the most probable token."""

    top_k: int = Field(default=0, ge=0, le=_MOST_TOKENS)
    """Draw from that many of the most probable tokens; 0 for all."""

    top_p: float = Field(default=1, gt=0, le=1)
    """Draw from the most probable tokens whose probabilities add up to this."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """The seed for random prompts, and for the tokens that are drawn."""

    min_p: float = Field(default=0, ge=0, le=1)
    """Draw only tokens that have at least this share of the most probable one's probability."""

    repetition_penalty: float = Field(default=1, gt=0, le=100)
    """The logits of all tokens of the text, prompt included, are divided by this (multiplied if
    negative) before a token is chosen; 1 for no penalty."""

    @property
    def draft(self) -> str | None:
        """The program of the draft model; None without one."""
        named = self.speculation.startswith(DRAFT)
        return self.speculation.removeprefix(DRAFT) if named else None


class BenchmarkInput(Section):
    """The input of a model of `hf` or `timm`, from which its processor makes tensors."""

    text: str | None = Field(default=None, min_length=1)
    """A text. By default a sentence that etdeploy brings."""

    image: str | None = None
    """An image file. By default random pixels, with which a run measures time but hides errors."""

    audio: str | None = None
    """A sound file in WAV format. By default random samples."""

    language: str | None = Field(default=None, min_length=1, max_length=32)
    """Of speech, the language that is spoken; of a translation, the one to translate to: a code as
    the model has it, like `en` or `deu_Latn`. By default a speech model detects it."""


class Benchmark(Section):
    """What is measured on the device."""

    method: str | None = Field(default=None, min_length=1)
    """The program's method to run. By default `forward`; without one, the first that the factory
    returned, or the only one of a finished program."""

    runs: int = Field(default=3, ge=1, le=1000)
    """How often the runner is started for the timing. The spread between starts is what a
    comparison with another run has to exceed."""

    warmup: Warmup = "auto"
    """Iterations before timing starts; the very first is reported separately. `auto` warms
    up until the times stop falling, for at most 10 seconds, or three iterations if these take
    longer."""

    iterations: int = Field(default=50, ge=1, le=1_000_000)
    """Timed iterations; the record has each as a raw sample."""

    sizes: dict[str, dict[str, Size]] = Field(default_factory=dict)
    """For a dynamic model: sizes to measure at, each with its own name, like
    `{short: {tokens: 16}, long: {tokens: 128}}`. A dimension is named like its torch.export.Dim,
    or by its input and number: `x.0`. Dimensions that are not named keep the example's size."""

    inputs: str | None = None
    """A function `file.py:function` or `package.module:function` that makes the inputs for one of
    `sizes`. It is called with the sizes by name, `make(tokens=16)`, and returns inputs as the model
    takes them. Without it, the inputs are random, drawn from the values of the example inputs."""

    input: BenchmarkInput | None = None
    """The input of a model of `hf` or `timm` as text or a file; the model's own processor makes
    tensors of it."""

    cooldown: Cooldown | None = None
    """Waits before each start until the device is cool."""

    sustained_s: float = Field(default=0, ge=0, le=86_400)
    """Seconds of back-to-back inferences in a separate pass, from a cool start: how much of the
    speed remains, and when it drops. 0 for none."""

    memory: bool = True
    """Measure the memory in a separate process: its peak, its course, and how the weights are
    loaded."""

    profile: bool = True
    """Record an ETDump, in a separate process because a tracer changes the times. Some
    backends also compile the program for it."""

    timeout_s: float = Field(default=300.0, gt=0, le=86_400)
    """Time limit of each pass, in seconds; for the sustained pass, on top of `sustained_s`."""

    tolerance: Tolerance = Tolerance()
    """When outputs count as equal."""

    generation: BenchmarkGeneration | None = None
    """For a program that generates text; of a model of `hf`, it has these defaults."""


class App(Section):
    """The sample app: `etdeploy app`, and `etdeploy run --as app`."""

    id: str | None = None
    """The application id on Android, the bundle identifier on iOS. By default `org.example.` and
    the recipe's name."""

    name: str | None = Field(default=None, min_length=1, max_length=40)
    """The name below the icon; by default the recipe's name."""

    task: AppTask = "auto"
    """What the app's first screen does: `image-classification` labels photos, `text-generation`
    chats, `automatic-speech-recognition` writes down speech, `tensor` measures alone, which every
    app also can. `auto` follows the model's task as far as the app supports it."""

    runtime: AppRuntime = "auto"
    """Where the app's ExecuTorch comes from. `prebuilt`: ExecuTorch's own release, from Maven on
    Android and by SwiftPM on iOS; `source`: built from a checkout, on Android only; `auto` takes
    the release if it has everything that the program needs."""

    bundled: bool | None = None
    """Whether the app contains the program; by default if it is smaller than 100 MB. Otherwise a
    run copies it to the device beside the app."""

    abis: Abis = ("arm64-v8a",)
    """The processors that an Android app is for. A run builds it for the device's own."""

    build: AppBuild = "auto"
    """What builds an Android app: `gradle`, or `sdk`, the tools of the Android SDK alone. `auto`
    takes Gradle if it is installed."""

    aar: str | None = None
    """The `.aar` of ExecuTorch's release for a build without Gradle; by default the one that Gradle
    or Maven has downloaded before."""

    team: str | None = None
    """The team that signs an iOS app: 10 letters and digits. By default ETDEPLOY_TEAM, else the
    only one of the keychain."""


class Recipe(Section):
    """One deployment: model, export, runtime, benchmark."""

    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """A name for folders and reports; by default that of the file."""

    description: str | None = None
    """A one-sentence description."""

    extends: str | None = None
    """Another recipe that this one changes: a bundled name, a path relative to this file, or
    `package/name` for one that an installed package brings. Its name and description are not
    inherited."""

    model: Model
    """Where the model comes from."""

    export: Export = Export()
    """How the model becomes a program."""

    runtime: Runtime = Runtime()
    """What the runner is linked against."""

    benchmark: Benchmark = Benchmark()
    """What is measured."""

    app: App = App()
    """The sample app."""

    @model_validator(mode="before")
    @classmethod
    def _complete_for_language_models(cls, data: Any) -> Any:
        """Other models have no section `generation`, so that their records have no keys of it."""
        data = llm_config.complete(data) if isinstance(data, dict) else data
        model = data.get("model") if isinstance(data, dict) else None
        if isinstance(model, dict) and model.get("timm") is not None and not model.get("task"):
            return {**data, "model": {**model, "task": IMAGE_CLASSIFICATION}}
        if not isinstance(model, dict) or not any(
            model.get(s) is not None for s in LANGUAGE_MODELS
        ):
            return data
        task = model.get("task") or TEXT_GENERATION
        data = {**data, "model": {**model, "task": task}}
        if task not in _GENERATIVE:
            return data
        sections = {name: _with_generation(data.get(name)) for name in ("export", "benchmark")}
        return {**data, **sections}

    @model_validator(mode="after")
    def _rules(self) -> Recipe:
        sections = {name: getattr(self, name) for name in ("model", "export", "benchmark")}
        require(recipe_rules({n: s.model_dump(exclude_unset=True) for n, s in sections.items()}))
        return self

    @property
    def is_language_model(self) -> bool:
        """Whether the model generates text token by token, from any input."""
        return generates(self.model.task, self.export.generation)

    @property
    def has_other_exporter(self) -> bool:
        """Whether etdeploy does not export the program, which alone shows if it generates text."""
        return self.model.program is not None or self.export.llm_config is not None

    @property
    def embeddings(self) -> str | None:
        """How tables of embeddings are quantized; None where they stay in floats.

        By default to 8 bits beside the quantized layers of a language model: its table is then a
        large part of the file, and only looked up, which costs no time.
        """
        export, backend = self.export, find_backend(self.export.backend)
        if export.embeddings:
            return None if export.embeddings == "none" else export.embeddings
        if not self.is_language_model or export.quantization not in LINEAR_SCHEMES:
            return None
        return "8w" if backend and "8w" in backend.embeddings else None


# Of speech recognition, only the model's configuration tells; `complete_task` reads it.
_GENERATIVE = tuple(n for n, facts in TASKS.items() if facts.generates and n != SPEECH_RECOGNITION)


def _with_generation(section: Any) -> Any:
    """A section with `generation`, which has its defaults; unchanged unless it is a mapping."""
    if section is None:
        return {"generation": {}}
    if not isinstance(section, dict) or section.get("generation") is not None:
        return section
    return {**section, "generation": {}}


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a key holds, also one that may be left out; None for a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(section_of, get_args(annotation))), None)
