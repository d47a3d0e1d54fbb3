"""What is to be exported: the part of a recipe that determines the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etdeploy.backends.options import OptionValue
from etdeploy.backends.schemes import AUTO_SCALED, NEAREST
from etdeploy.backends.values import ExportRequest
from etdeploy.core.values import Value
from etdeploy.program.tokenizer import Speech
from etdeploy.recipe.sections.export import ExportGeneration

# Texts that a language model reads when it is exported, unless the recipe names others. They were
# written for etdeploy and are dedicated to the public domain. No model was trained on them, and the
# two have nothing in common but the language.
CALIBRATION_TEXT, EVALUATION_TEXT = (
    str(Path(__file__).parent / "texts" / name) for name in ("calibration.txt", "evaluation.txt")
)
BUNDLED_TEXTS = frozenset({CALIBRATION_TEXT, EVALUATION_TEXT})
# Beside a checkpoint of Meta, unless a recipe names another file.
PARAMS = "params.json"
# The pair that is tested; pyproject.toml pins the same for the extra `export`.
TESTED_VERSIONS: dict[str, str] = {"torch": "2.13.0", "executorch": "1.5.1"}


class CodeReference(Value):
    """A function in a Python file (an absolute path) or in an importable module (a dotted name)."""

    file: str | None = None
    module: str | None = None
    name: str

    def __str__(self) -> str:
        return f"{Path(self.file).name if self.file else self.module}:{self.name}"


class HfModel(Value):
    """A model as transformers or timm saves it, or in a GGUF file.

    Attributes:
        folder: Its absolute path, or that of the folder with the GGUF file; None for an id.
        id: On the Hugging Face hub; None for a folder.
        gguf: The GGUF file in the folder or the repository.
        pte: The finished program in the repository; empty for the only one.
        checkpoint, params: Paths of the files of a model as Meta saves it; None for another.
        revision: Of an id, as the recipe names it.
        remote_code: Whether code in its repository or folder may run.
        timm: Whether timm loads it, and not transformers.
    """

    folder: str | None = None
    id: str | None = None
    gguf: str | None = None
    pte: str | None = None
    checkpoint: str | None = None
    params: str | None = None
    revision: str = "main"
    remote_code: bool = False
    timm: bool = False

    @property
    def kind(self) -> str:
        """The key of a recipe that names it."""
        if self.pte is not None:
            return "program"
        kinds = {"checkpoint": self.checkpoint, "gguf": self.gguf, "timm": self.timm}
        return next((kind for kind, named in kinds.items() if named), "hf")

    @property
    def path(self) -> Path | None:
        """Of the folder or the file; None for an id."""
        return Path(self.folder, self.gguf or "") if self.folder else None

    @property
    def name(self) -> str:
        """As a person reads it, and the same on every machine."""
        if self.checkpoint:
            return Path(self.checkpoint).name
        if inside := self.gguf or self.pte:
            return f"{self.id}/{inside}" if self.id else inside
        return self.id or Path(str(self.folder)).name


class TaskInput(Value):
    """What the model of a task is given, as a person has it; files are absolute paths."""

    text: str | None = None
    image: str | None = None
    audio: str | None = None
    language: str | None = None


class NodeObservation(Value):
    """Values of a graph's nodes that a program returns beside its outputs.

    Attributes:
        nodes: Their names; None for as many as fit, none for a program as every run exports it.
        limit_bytes: Of the values together, if no names are given.
        most: How many, likewise.
        sensitivity: Whether the export measures what the quantization of each module costs.
    """

    nodes: tuple[str, ...] | None = None
    limit_bytes: int = 128 << 20
    most: int = 1000
    sensitivity: bool = False


class ExportSpec(Value):
    """Everything that the export step reads; paths are absolute.

    Attributes:
        example, python, exported, program, hf: The model source; exactly one is given, unless
            `llm_config` names it.
        hub_program: A finished program that is still to be taken from the hub.
        llm_config: What ExecuTorch's own exporter is asked for. Files have their names alone;
            `llm_files` has their paths by their dotted keys.
        task: Of a model of `hf`, as `recipe.tasks` names it; None for other models.
        input: What it runs with, and what its expected outputs are for.
        lora: Adapters that are merged with a language model.
        adapters: Those that have methods of their own, by their names.
        weights: State dict for the factory's module.
        arguments: Keyword arguments for the factory or the example.
        generation: How the program of a language model is made; None for other models.
        recipe_context: The recipe's context, where the model has fewer positions, all of which
            `generation` asks for.
        backend, quantization: None for a finished program.
        overrides: Patterns of module paths with their schemes; the first that matches counts.
        override_groups: Group sizes that differ from `group_size`, by these patterns.
        embeddings: How tables of embeddings are quantized; None where they stay in floats.
        calibration: Yields calibration inputs.
        calibration_text: That a language model reads, so that the scales of its weights are chosen
            by the activations that occur; None where the weights alone decide.
        calibration_prompts: How many parts of that text are read, each as long as a prompt that is
            computed at once; or prompts that are read after it.
        rounding: Of 4-bit weights, as `backends.schemes` names it.
        scaling: Of their inputs, as `backends.schemes` names it.
        target_bits: The most bits per weight of linear layers on average; None for the defaults.
        group_size: Weights that share a scale; None where the scheme has no groups.
        soc: That a program is compiled for, `auto` until a device has been queried.
        options: The value of each option that the backend declares.
        rewrites: Those of the graph that are tried, in order.
        profiled: Whether the program is compiled to report the times of its operators, for a
            backend where that is decided then.
        custom_ops: A Python file or a shared library that registers operators with PyTorch.
        strict: Whether torch.export traces with TorchDynamo.
        seed: Of random weights and inputs.
        sizes: Sizes to measure at, by name: dimensions with their sizes.
        inputs: Makes the inputs for such sizes.
        places: Where keys of the recipe are, by their dotted names.
        method: The method that a recipe runs; None where it names none. The inputs of a finished
            program are made for it, and those of sizes.
        wanted_versions: The versions that are tested together, by distribution.
        speech: What a language model is to understand; a model that cannot is not exported.
        shortened: Whether lowering may leave out what ExecuTorch repeats.
        references: Folder for what a language model gives before it is quantized; None for none.
        etrecord: Whether the ETRecord is written, with which a trace names the model's modules. It
            is several times as large as the program.
        observation: What the program returns beside its outputs, to locate a wrong node.
    """

    example: str | None = None
    python: CodeReference | None = None
    exported: str | None = None
    program: str | None = None
    hf: HfModel | None = None
    task: str | None = None
    input: TaskInput = TaskInput()
    lora: tuple[HfModel, ...] = ()
    adapters: dict[str, HfModel] = {}
    hub_program: HfModel | None = None
    llm_config: dict[str, Any] | None = None
    llm_files: dict[str, str] = {}
    weights: str | None = None
    arguments: dict[str, Any] = {}
    generation: ExportGeneration | None = None
    recipe_context: int | None = None
    backend: str | None = None
    quantization: str | None = None
    # Pairs, since their order counts, and a key of the cache has mappings in another.
    overrides: tuple[tuple[str, str], ...] = ()
    override_groups: dict[str, int] = {}
    embeddings: str | None = None
    calibration: CodeReference | None = None
    calibration_text: str | None = None
    calibration_prompts: int | tuple[str, ...] | None = None
    rounding: str = NEAREST
    scaling: str = AUTO_SCALED
    target_bits: float | None = None
    group_size: int | None = None
    soc: str | None = None
    options: dict[str, OptionValue] = {}
    rewrites: tuple[str, ...] = ()
    profiled: bool = False
    custom_ops: str | None = None
    strict: bool = False
    seed: int = 0
    sizes: dict[str, dict[str, int]] = {}
    inputs: CodeReference | None = None
    places: dict[str, str] = {}
    method: str | None = None
    wanted_versions: dict[str, str] = TESTED_VERSIONS
    speech: Speech | None = None
    shortened: bool = True
    references: str | None = None
    etrecord: bool = True
    observation: NodeObservation | None = None

    @property
    def source(self) -> str:
        """The model source as a person reads it."""
        if self.example:
            return f"example {self.example}"
        if named := self.hf or self.hub_program:
            return named.name
        if self.llm_config is not None:
            kind = (self.llm_config.get("base") or {}).get("model_class", "llama3")
            checkpoint = self.llm_files.get("base.checkpoint")
            return Path(checkpoint).name if checkpoint else str(kind)
        path = self.exported or self.program
        return Path(path).name if path else str(self.python)

    @property
    def hub_models(self) -> tuple[HfModel, ...]:
        """The model and the adapters that the Hugging Face hub has."""
        named = (self.hf, self.hub_program)
        return tuple(each for each in (*named, *self.all_adapters) if each and each.id)

    @property
    def all_adapters(self) -> tuple[HfModel, ...]:
        """Those that are merged, and those that are not."""
        return (*self.lora, *self.adapters.values())

    @property
    def is_finished(self) -> bool:
        """Whether nothing is exported."""
        return bool(self.program or self.hub_program)

    @property
    def method_counts(self) -> bool:
        """Whether another method needs another export; all have their example inputs."""
        return bool(self.is_finished or self.sizes)

    @property
    def runs_user_code(self) -> bool:
        """Whether user code, which may read further files, determines the program."""
        return bool(self.python or self.calibration or self.custom_ops or self.inputs)

    @property
    def request(self) -> ExportRequest:
        """What the backend is asked with."""
        return ExportRequest(self.quantization or "none", self.soc, self.options, self.overrides)

    def place(self, *keys: str) -> str:
        """Where a key of the recipe is; its dotted name where that is not known."""
        if keys == ("model", "hf") and (named := self.hf or self.hub_program):
            keys = ("model", named.kind)
        name = ".".join(keys)
        return self.places.get(name, name)

    @property
    def reads_calibration(self) -> bool:
        """Whether a language model reads texts or prompts that calibrate it."""
        return self.calibration_text is not None or self.calibration_prompts is not None

    def functions(self) -> dict[str, CodeReference]:
        """Functions of the user that the spec names, by the recipe's keys."""
        candidates = {
            "model.python": self.python,
            "export.calibration": self.calibration,
            "benchmark.inputs": self.inputs,
        }
        return {key: reference for key, reference in candidates.items() if reference}

    def named_files(self) -> dict[str, str]:
        """Files that the spec names, by what they are for."""
        candidates = {
            "factory": self.python.file if self.python else None,
            "calibration": self.calibration.file if self.calibration else None,
            "calibration_text": self.calibration_text,
            "inputs": self.inputs.file if self.inputs else None,
            "exported": self.exported,
            "program": self.program,
            "weights": self.weights,
            "checkpoint": self.hf.checkpoint if self.hf else None,
            "params": self.hf.params if self.hf else None,
            "custom_ops": self.custom_ops,
            "evaluated": self.generation.evaluate if self.generation else None,
            "image": self.input.image,
            "audio": self.input.audio,
        }
        files = {f"llm_config.{key}": path for key, path in self.llm_files.items()}
        return {role: path for role, path in candidates.items() if path} | files
