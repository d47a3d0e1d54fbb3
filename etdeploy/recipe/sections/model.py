"""The section `model` of a recipe."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from etdeploy.recipe.choice import Takes
from etdeploy.recipe.sections.base import Section

ExampleName = Literal["mlp", "convnet", "encoder", "transformer"]
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
