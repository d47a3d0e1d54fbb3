"""Each mistake in a recipe is one problem, at its place, with the value and what may be meant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from etdeploy.core.errors import RecipeError
from etdeploy.recipe.document import parse_value
from etdeploy.recipe.load import load_recipe
from tests.support.facts import lacks

MLP = "model: {example: mlp}\n"
HF = "model: {hf: a/b}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems(text: str, *overrides: str) -> list[str]:
    Path("r.yaml").write_text(text)
    return problems_of("r.yaml", *overrides)


def problems_of(name: str, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load_recipe(name, overrides)
    assert caught.value.exit_code == 2
    return [str(problem) for problem in caught.value.problems]


def require(found: list[str], *expected: tuple[str, ...]) -> None:
    """Each problem has its place at the beginning, and all facts."""
    assert len(found) == len(expected), found
    for problem, (place, *facts) in zip(found, expected, strict=True):
        assert problem.startswith(f"{place}: ")
        assert not lacks(problem, *facts), problem


@pytest.mark.parametrize(
    ("text", "place", "fact"),
    [
        ("", "1:1", "empty"),
        ("- a\n", "1:1", "`model`"),
        ("[" * 500, "1:65", "64 levels"),
        ("a: " + "{b: " * 500, "1:256", "64 levels"),
        ("a: &a [*a]\n", "1:4", "contains itself"),
        ("a: &a {<<: *a}\n", "1:4", "contains itself"),
        ("a: *b\n", "1:4", "undefined alias"),
        (MLP + "x: !!python/object/apply:os.system [ls]\n", "2:4", "apply:os.system"),
        (MLP + "x: !mine {a: 1}\n", "2:4", "!mine"),
        (MLP + "x: !!set {a, b}\n", "2:4", "set values"),
        (MLP + "x: !!binary aGk=\n", "2:4", "binary"),
        (MLP + "x: !!int abc\n", "2:4", "as int"),
        (MLP + "x: .nan\n", "2:4", "finite"),
        (MLP + "x: {<<: 5}\n", "2:9", "`<<`"),
        (MLP + "[a, b]: 5\n", "2:1", "a key"),
        ("a: 1\n---\nb: 2\n", "2:1", "second document"),
        ("a: b: c\n", "1:5", "needs quotes"),
        ("model:\n  example: \x07\n", "2:12", "#x0007"),
        ("model:\n\texample: mlp\n", "2:1", "use spaces"),
    ],
)
def test_a_document_that_is_not_a_recipe(text: str, place: str, fact: str) -> None:
    require(problems(text)[:1], (f"r.yaml:{place}", fact))


@pytest.mark.parametrize(
    "value", ["[" * 100_000, "&a [*a]", "!!python/name:os.system", "{a: .inf}"]
)
def test_hostile_overrides_have_no_line(value: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_value(value, "--set a.b")
    [problem] = caught.value.problems
    assert problem.place == "--set a.b"


def test_a_bomb_of_aliases_is_refused() -> None:
    lines = ["a: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"b{i}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]" for i in range(8)]
    require(problems("\n".join(lines)), ("r.yaml", "too many"))


@pytest.mark.parametrize(
    ("text", "place", "facts"),
    [
        ("modle: {example: mlp}", "1:1", ("'modle'", "'model'?")),
        ("model: {exmple: mlp}", "1:9", ("'model.exmple'", "'example'?")),
        (MLP + "exprot:", "2:1", ("'exprot'", "'export'?")),
        ("export: {}", "1:1", ("'model'", "{example: mlp}")),
        ("{}", "1:1", ("'model'",)),
        ("model: {}", "1:1", ("model", "example, python, exported")),
        ("model: {example: mlp, program: r.yaml}", "1:1", ("model", ": example, program")),
        ("model: {python: nothing}", "1:9", ("model.python", "'nothing'", "file.py:function")),
        ("name: ../up\n" + MLP, "1:1", ("'../up'",)),
        (MLP + "export: {quantization: int9}", "2:10", ("export.quantization", "'int9'")),
        ("extends: [a]", "1:1", ("extends",)),
        ("extends: gone.yaml", "1:1", ("'gone.yaml'", "'r.yaml'?")),
        ("extends: r.yaml", "1:1", ("r.yaml -> r.yaml",)),
        # rules between keys
        (MLP + "benchmark: {input: {text: a}}", "2:13", ("benchmark.input", "`hf`")),
        (HF + "benchmark: {input: {text: a}}", "2:21",
         ("benchmark.generation.prompt", "config.json", "--set model.task=TASK")),
        ("model: {hf: a/b, task: fill-mask}\nbenchmark: {input: {image: r.yaml}}", "2:21",
         ("benchmark.input.image", "fill-mask takes text")),
        ("model: {hf: a/b, task: fill-mask}\nexport: {generation: {context: 64}}", "2:10",
         ("export.generation", "fill-mask")),
        (MLP + "export:\n  backend: portable\n  quantization: 8da4w", "4:3",
         ("export.quantization", "portable", "'8da4w'", "from none")),
        (MLP + "export: {soc: SM8650}", "2:10", ("export.soc", "qnn")),
        (MLP + "export: {group_size: 64}", "2:10",
         ("export.group_size", "'none'", "'8da4w'", "'16a4w_block'")),
        (MLP + "benchmark: {inputs: r.yaml:make}", "2:13", ("benchmark.inputs", "`sizes`")),
        (MLP + "export: {quantization: 8da4w, calibration: 'a.b:f'}", "2:31",
         ("export.calibration", "language model")),
        (MLP + "export: {quantization: int8_static, calibration: {prompts: 3}}", "2:37",
         ("export.calibration", "language model", "function")),
        (MLP + "benchmark: {generation: {}}", "2:13", ("benchmark.generation", "`example`")),
        (MLP + "export: {generation: {context: 64}}", "2:10", ("export.generation", "`example`")),
        (MLP + "runtime: {provider: wheel, optimize: size}", "2:28",
         ("runtime.optimize", "provider: source")),
        (MLP + "runtime: {custom_ops_target: x}", "2:11", ("custom_ops_target", "custom_ops,")),
        (MLP + "runtime: {cmake: {A B: 1}}", "2:11", ("runtime.cmake", "'A B'")),
        (MLP + "runtime: {cmake: {ETDEPLOY_X: 1}}", "2:11", ("runtime.cmake", "ETDEPLOY_X")),
        # models of the Hugging Face hub
        ("model: {example: mlp, revision: v1}", "1:23", ("model.revision", "`hf`")),
        ("model: {hf: .., revision: v1}", "1:17", ("model.revision", "{up}")),
        ("model: {hf: ''}", "1:9", ("model.hf", "''")),
        ("model: {hf: a/b, task: translation}", "1:18", ("model.task", "'translation'")),
        ("model: {hf: a/b, weights: r.yaml}", "1:18", ("model.weights", "`python`")),
        ("model: {hf: a/b, remote_code: a/c}", "1:18",
         ("model.remote_code", "'a/c'", "'a/b'")),
        (HF + "export: {generation: {context: 64, prefill_tokens: 65}}", "2:36",
         ("export.generation.prefill_tokens", "65 tokens", "context of 64")),
        (HF + "export: {backend: openvino, generation: {attention: kernel}}", "2:42",
         ("export.generation.attention", "openvino", "portable, xnnpack")),
        (HF + "export: {generation: {attention: kernel, path: plain}}", "2:23",
         ("export.generation.attention", "export.generation.path")),
        (HF + "export: {backend: openvino, generation: {cache: int8}}", "2:42",
         ("export.generation.cache", "int8", "openvino", "portable, xnnpack", "float32")),
        (HF + "export: {generation: {cache: float16, path: plain}}", "2:23",
         ("export.generation.cache", "float16", "path plain", "export.generation.path at auto")),
        (HF + "export: {generation: {attention: stock, cache: int8}}", "2:41",
         ("export.generation.cache", "stock", "export.generation.attention at auto")),
        (HF + "export: {generation: {layout: executorch, cache: int8}}", "2:43",
         ("export.generation.cache", "executorch", "export.generation.layout at auto")),
        (HF + "export: {backend: qnn, quantization: fp16, generation: {path: static, cache: int8}}",
         "2:71", ("export.generation.cache", "qnn", "portable, xnnpack")),
        (HF + "export: {backend: qnn, quantization: fp16, generation: {window: 64}}", "2:57",
         ("export.generation.window", "qnn", "another backend")),
        (HF + "export: {backend: qnn, quantization: fp16, generation: {path: fast, window: 64}}",
         "2:69", ("export.generation.window", "qnn", "another backend")),
        (HF + "export: {generation: {sinks: 2}}", "2:23",
         ("export.generation.sinks", "set window")),
        (HF + "export: {generation: {window: 8}}", "2:23", ("export.generation.window", "16")),
        (HF + "export: {generation: {cache: int4}}", "2:23",
         ("export.generation.cache", "'int4'", "float16", "int8")),
        (HF + "export: {backend: qnn, generation: {layout: executorch}}", "2:37",
         ("export.generation.layout", "qnn", "at auto")),
        ("model: {hf: .., task: image-text-to-text}\nexport: {generation: {layout: executorch}}",
         "2:23", ("export.generation.layout", "encoder", "image-text-to-text", "at auto")),
        ("model: {hf: .., lora: {a: ..}, merge: false}\nexport: {generation: {layout: executorch}}",
         "2:23", ("export.generation.layout", "adapters", "model.merge")),
        (HF + "export: {quantization: int8_static}", "2:10",
         ("export.quantization", "'int8_static'", "none, int8_dynamic, 8da4w, 8da8w")),
        (HF + "export: {backend: qnn, quantization: 16a4w, generation: {path: fast}}", "2:24",
         ("'16a4w'", "none, fp16")),
        (HF + "export: {generation: {path: static}}", "2:23",
         ("export.generation.path", "static", "qnn")),
        (HF + "export: {generation: {methods: kv}}", "2:23",
         ("export.generation.methods", "kv", "qnn")),
        (HF + "export: {backend: qnn, generation: {path: plain, methods: prefill}}", "2:50",
         ("export.generation.methods", "prefill", "static")),
        (HF + "export: {quantization: 8da8w, calibration: none}", "2:31",
         ("export.calibration", "'8da8w'")),
        (HF + "export: {quantization: 8da8w, rounding: gptq}", "2:31",
         ("export.rounding", "4-bit weights of '8da4w'", "'8da8w' has none")),
        (HF + "export:\n  quantization: 8da4w\n  rounding: gptq\n  calibration: none", "4:3",
         ("export.rounding", "export.calibration is none")),
        (HF + "export: {quantization: 8da4w, rounding: awq}", "2:31",
         ("export.rounding", "'awq'", "nearest or gptq")),
        (HF + "export: {quantization: 8da4w, rounding: gptq, calibration: gone.txt}", "2:47",
         ("export.calibration", "gone.txt", "does not exist")),
        (HF + "export: {backend: qnn, quantization: 16a4w_block, rounding: gptq}", "2:51",
         ("export.rounding", "'8da4w'", "'16a4w_block' has none")),
        (HF + "export: {quantization: 8da8w, scaling: awq}", "2:31",
         ("export.scaling", "4-bit weights of '8da4w'", "'8da8w' has none")),
        (HF + "export: {quantization: 8da4w, calibration: none, scaling: awq}", "2:50",
         ("export.scaling", "export.calibration is none")),
        (HF + "export: {quantization: 8da4w, scaling: gptq}", "2:31",
         ("export.scaling", "'gptq'", "auto, none or awq")),
        ("model: {hf: .., lora: {a: ..}, merge: false}\n"
         "export: {quantization: 8da4w, scaling: awq}", "2:31",
         ("export.scaling", "adapters", "model.merge")),
        (HF + "export: {quantization: 8da8w, target_bits: 5}", "2:31",
         ("export.target_bits", "4-bit weights of '8da4w'", "'8da8w' has none")),
        (HF + "export: {quantization: 8da8w, overrides: {a: 8da4w}, target_bits: 5}", "2:54",
         ("export.target_bits", "'8da8w' has none")),
        (HF + "export: {quantization: 8da4w, calibration: none, target_bits: 5}", "2:50",
         ("export.target_bits", "export.calibration is none")),
        (HF + "export: {quantization: 8da4w, target_bits: 4.3}", "2:31",
         ("groups of 32", "4.5 bits", "more than 4.3", "4.5 or more", "export.group_size to 64")),
        (HF + "export: {quantization: 8da4w, group_size: 64, target_bits: 4.01}", "2:47",
         ("groups of 64", "4.25 bits", "4.25 or more")),
        (HF + "export: {quantization: 8da4w, target_bits: 9}", "2:31",
         ("export.target_bits", "8")),
        (MLP + "export: {quantization: 8da4w, target_bits: 5}", "2:31",
         ("export.target_bits", "language model")),
        (MLP + "export: {quantization: 8da4w, scaling: awq}", "2:31",
         ("export.scaling", "language model")),
        (MLP + "export: {quantization: 8da4w, rounding: gptq}", "2:31",
         ("export.rounding", "language model")),
        ("model: {hf: .., task: image-text-to-text}\n"
         "export: {quantization: 8da4w, rounding: gptq}", "2:31",
         ("export.rounding", "image-text-to-text", "does not apply")),
        *((HF + f"export: {{quantization: 8da4w, calibration: {mapping}}}", "2:31",
           ("export.calibration", "text", "prompts", "from 1 to 4096"))
          for mapping in ("{}", "{prompts: 0}", "{prompts: []}", "{prompts: ['']}", "{file: a}")),
        (HF + "export: {quantization: 8da4w, calibration: {text: gone.txt}}", "2:45",
         ("export.calibration.text", "gone.txt", "does not exist")),
        (HF + "export: {calibration: none}", "2:10", ("export.calibration", "'none'")),
        (HF + "export: {generation: {batch: 2}}", "2:23", ("'export.generation.batch'", "one seq")),
        (HF + "export: {generation: 7}", "2:10", ("export.generation", "not 7")),
        (HF + "export: {generation: {evaluate_tokens: 64}}", "2:23", ("generation.evaluate",)),
        (HF + "export:\n  quantization: 8da4w\n  generation: {evaluate: none, evaluate_tokens: 9}",
         "4:32", ("export.generation.evaluate_tokens",)),
        (HF + "benchmark: {generation: {prompt_tokens: 128}}", "2:26",
         ("benchmark.generation.prompt_tokens", "a list", "not 128")),
        (HF + "benchmark: {generation: {new_tokens: [64, 64]}}", "2:26",
         ("benchmark.generation.new_tokens", "different", "[64, 64]")),
        (HF + "benchmark:\n  generation:\n    prompt_tokens:\n      - 8\n      - x", "6:9",
         ("'x'",)),
        (HF + "benchmark: {generation: {top_k: 40}}", "2:26",
         ("generation.top_k", "benchmark.generation.temperature")),
        (HF + "benchmark: {sizes: {short: {tokens: 4}}}", "2:13",
         ("benchmark.sizes", "`benchmark.generation`")),
        # apps
        (MLP + "app: {id: convnet}", "2:7", ("app.id", "'convnet'", "no dot")),
        (MLP + "app: {id: org.new.x}", "2:7", ("app.id", "'new'")),
        (MLP + "app: {name: ' '}", "2:7", ("app.name",)),
        (MLP + 'app: {name: "a\\tb"}', "2:7", ("app.name",)),
        (MLP + "app: {team: abc}", "2:7", ("app.team", "'abc'")),
        (MLP + "app: {abis: [mips]}", "2:14", ("app.abis", "arm64-v8a, x86_64")),
        (MLP + "app: {abis: [x86_64, x86_64]}", "2:7", ("app.abis",)),
        (MLP + "app: {build: gradle, aar: r.yaml}", "2:22", ("app.aar", "`build: sdk`")),
        (MLP + "app: {aar: nothing.aar}", "2:7", ("app.aar", "nothing.aar")),
    ],
)  # fmt: skip
def test_one_problem(folder: Path, text: str, place: str, facts: tuple[str, ...]) -> None:
    facts = tuple(fact.format(up=folder.parent) if "{up}" in fact else fact for fact in facts)
    require(problems(text + "\n"), (f"r.yaml:{place}", *facts))


@pytest.mark.parametrize(
    ("export", "expected"),
    [
        ("quantization: 8da4w, overrides: {head: {quantization: 8da8w, group_size: 64}}",
         [("export.overrides.head", "'8da8w'", "'8da4w' and '16a4w_block'")]),
        ("quantization: 8da4w, overrides: {head: {quantization: 16a8w}}",
         [("export.overrides.head", "xnnpack", "'16a8w'", "none, 8da4w, 8da8w")]),
        *(("quantization: 8da4w, overrides: {head: " + part + "}",
           [("export.overrides.head", "none, fp16, ", "group_size: 64}")])
          for part in ("{quantization: 8da4w, group_size: 33}", "{group_size: 64}", "[]")),
        ("backend: vulkan, quantization: int8_static, overrides: {head: 16a8w}",
         [("export.overrides", "vulkan", "xnnpack, qnn")]),
        ("quantization: int8_static, overrides: {head: 8da8w, stem: none}",
         [("export.overrides.head", "'8da8w'", "xnnpack", "'int8_static'", "choose from none")]),
        ("quantization: none, overrides: {head: 8da8w}",
         [("export.overrides", "'none'", "xnnpack", "int8_static, int8_dynamic, 8da4w, 8da8w")]),
        ("backend: qnn, overrides: {head: 16a8w}",
         [("export.overrides", "'none'", "qnn", "int8_static, 8a4w, 16a8w, 16a4w")]),
        ("backend: vulkan, embeddings: 8w",
         [("export.embeddings", "vulkan", "portable, xnnpack")]),
        ("quantization: int8_dynamic, embeddings: 8w",
         [("export.embeddings", "'int8_dynamic'", "none, 8da4w, 8da8w")]),
        ("group_size: 64, embeddings: 8w", [("export.group_size", "'none'")]),
        ("backend: qnn, options: {performance_mode: turbo, per_channel: 1, cache: 4}",
         [("export.options.performance_mode", "'turbo'", "low_power_saver"),
          ("export.options.per_channel", "not 1"),
          ("export.options.cache", "qnn", "vtcm_mib")]),
        ("backend: qnn, quantization: int8_static, "
         "overrides: {layers.0.*: 8da4w, head: none, '4': 16a9w, right: 16a8w, absent: null}",
         [("export.overrides.layers.0.*", "'8da4w'", "int8_static, 8a4w, 16a8w, 16a4w"),
          ("export.overrides.head", "floats", "int8_static, 8a4w"),
          ("export.overrides.4", "'16a9w'", "'16a8w'?")]),
        ("backend: portable, quantization: int8_dynamic, calibration: 'r:f', sed: 1",
         [("export.quantization", "portable", "'int8_dynamic'"),
          ("export.calibration", "'int8_dynamic'"),
          ("unknown key 'export.sed'", "'seed'?")]),
    ],
)  # fmt: skip
def test_schemes_and_options_that_a_backend_does_not_have(
    export: str, expected: list[tuple[str, ...]]
) -> None:
    found = problems(f"{MLP}export: {{{export}}}\n")
    assert all(text.startswith("r.yaml:2:") for text in found)
    texts = [text.partition(" ")[2] for text in found]
    assert len(texts) == len(expected), texts
    for text, (key, *facts) in zip(texts, expected, strict=True):
        assert text.startswith(key)
        assert not lacks(text, *facts), text


def test_every_problem_is_reported_at_its_place() -> None:
    text = """\
model:
  exmaple: mlp
  program: nothing.pte
  program: again.pte
export:
  backend: xnpack
  quantisation: int8
benchmark:
  iterations: many
  warmup: 3.5
  profile: "yes"
  tolerance: 7
  sizes:
    a b: {x.0: 1}
    none: {x.0: 0}
    c: 3
    d: {x.0: 1.5}
"""
    require(
        problems(text, "benchmark.itrations=4", "foo", "x.y=[", "runtime.threads=-1"),
        ("r.yaml:4:3", "'program'", "r.yaml:3:3"),
        ("--set foo", "key.path=value"),
        ("--set x.y", "not YAML"),
        ("--set benchmark.itrations", "'iterations'?"),
        ("--set runtime.threads", "0 to 256", "not -1"),
        ("r.yaml:2:3", "'model.exmaple'", "'example'?"),
        ("r.yaml:6:3", "export.backend", "openvino", "'xnpack'", "'xnnpack'?"),
        ("r.yaml:7:3", "'export.quantisation'", "'quantization'?"),
        ("r.yaml:9:3", "benchmark.iterations", "whole number", "'many'"),
        ("r.yaml:10:3", "benchmark.warmup", "or auto", "3.5"),
        ("r.yaml:11:3", "benchmark.profile", "true or false", "'yes'"),
        ("r.yaml:12:3", "benchmark.tolerance", "7"),
        ("r.yaml:14:5", "benchmark.sizes.a b", "32"),
        ("r.yaml:15:12", "benchmark.sizes.none.x.0", "not 0"),
        ("r.yaml:16:5", "benchmark.sizes.c", "not 3"),
        ("r.yaml:17:9", "benchmark.sizes.d.x.0", "not 1.5"),
        ("r.yaml:3:3", "model.program", f"{Path.cwd()}/nothing.pte"),
    )


def test_a_misspelt_key_of_another_section_is_found() -> None:
    text = f"{HF}export: {{generation: {{itterations: 3, contxt: 64}}}}\nquantisation: 8da4w\n"
    found = [each.partition("did you mean ")[2] for each in problems(text, "benchmark.threads=3")]
    assert found == [
        "'runtime.threads'?)", "'benchmark.iterations'?)", "'context'?)", "'export.quantization'?)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("benchmark.tolerance.max_abs_error=1e-3", "1.0e-3"),
        ("description=5", "(put it in quotes)"),
        *((f"runtime.threads={wrong}", f"256, not {wrong}") for wrong in ("4.0", "[]", "[1, 1]")),
        *((f"runtime.threads={wrong}", f"in {wrong}")
          for wrong in ("[0, 2]", "[1, 257]", "[1, -2]", "[1, '2']")),
        ("runtime.threads=autos", "'auto'?"),
        ("benchmark.warmup=true", "or auto, not true"),
        ("benchmark.warmup=atuo", "'auto'?"),
        ("benchmark.warmup=-1", "not -1"),
        ("benchmark.runs=0", "benchmark.runs"),
        ("export.quantization=no", "not false"),
        ("export.group_size=40", "multiple of 32"),
        ("extends=portable", "only a file"),
        (".a=1", "--set .a=1: "),
        ("=1", "--set =1: "),
        ("export.backend.x=1", "not a mapping"),
        ("benchmark={itrations: 3}", "'iterations'?"),
        ("model.weights=~nobody_here/w.pt", "the path of a file"),
        ('model.weights="a\\0b"', "the path of a file"),
        ("model.weights=" + "x" * 5000, "the path of a file"),
        ("model.weights=.", "is a folder"),
        ("model.weights=/dev/null", "/dev/null is a device"),
        ("runtime.source=/etc/passwd", "/etc/passwd is a file"),
    ],
)  # fmt: skip
def test_overrides_that_do_not_fit(override: str, expected: str) -> None:
    found = problems_of("xnnpack", override)
    assert all(text.startswith(f"--set {override.partition('=')[0]}") for text in found)
    assert any(expected in text for text in found)


def test_two_sources_on_the_command_line_are_a_problem() -> None:
    Path("m.pte").touch()
    [text] = problems_of("xnnpack", "model.example=mlp", "model.program=m.pte")
    assert text.endswith(": example, program")


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("./gone", ("{here}/gone does not exist",)),
        ("gone/", ("{here}/gone does not exist",)),
        ("a/b/c", ("{here}/a/b/c does not exist",)),
        ("r.yaml", ("{here}/r.yaml is a file",)),
        ("two words", ("'two words'", "SmolLM2-135M")),
        ("org/mo:del", ("'org/mo:del'", "SmolLM2-135M")),
        ("https://huggingface.co/datasets/a/b", ("'https://huggingface.co/datasets/a/b'",)),
        ("https://x.org/a/b", ("'https://x.org/a/b'",)),
    ],
)
def test_a_model_that_is_neither_a_folder_nor_an_id(
    folder: Path, name: str, facts: tuple[str, ...]
) -> None:
    facts = ("model.hf", *(fact.format(here=folder) for fact in facts))
    require(problems(HF, f"--model={name}"), ("--model", *facts))
    require(problems(f"model:\n  hf: {name!r}\n"), ("r.yaml:2:3", *facts))


@pytest.mark.parametrize("key", ["generation: {evaluate: t.txt}", "calibration: t.txt"])
def test_texts_that_are_not_files(folder: Path, key: str) -> None:
    text = f"{HF}export: {{quantization: 8da4w, {key}}}\n"
    require(problems(text)[:1], ("r.yaml:2:31" if "cal" in key else "r.yaml:2:44", "not exist"))
    (folder / "t.txt").mkdir()
    assert f"{folder / 't.txt'} is a folder" in problems(text)[0]


def test_paths_that_no_recipe_can_have() -> None:
    Path("some").mkdir()
    for name in ("my.yaml", "some/my.yaml"):
        Path(name).write_text(MLP)
    os.mkfifo("pipe.yaml")
    Path("loop.yaml").symlink_to("loop.yaml")
    Path("dangling.yaml").symlink_to("gone.yaml")
    Path("latin.yaml").write_bytes(b"name: caf\xe9\n")
    for name, fact in {
        "my": "'my.yaml'?",
        "./my": "'./my.yaml'?",
        "some/mine.yaml": "'some/my.yaml'?",
        "xnpack": "'xnnpack'?",
        "pipe.yaml": "a FIFO",
        "some": "a folder",
        "": "a folder",
        "dangling.yaml": "no such recipe",
        "my.yaml/x.yaml": "no such recipe",
        "latin.yaml": "byte 9",
        "x" * 5000: "cannot be used",
        "loop.yaml": "",
    }.items():
        require(problems_of(name), (name, fact))


def test_a_recipe_in_a_folder_is_named_so_that_it_can_be_copied(tmp_path: Path) -> None:
    folder = tmp_path / "my recipes"
    folder.mkdir()
    (folder / "a b.yaml").write_text(MLP)
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(folder))
    assert f"'{folder}/a b.yaml'" in str(caught.value.remedy)


def test_problems_of_two_files_are_reported_at_their_own_places() -> None:
    Path("base.yaml").write_text(MLP + "benchmark: {iterations: 0}\n")
    found = problems("extends: base.yaml\nruntime: {threads: -1}\n")
    assert sorted(text.split(": ")[0] for text in found) == ["base.yaml:2:13", "r.yaml:2:11"]
    Path("base.yaml").write_text("extends: r.yaml\n")
    require(problems("extends: base.yaml\n"), ("base.yaml:1:1", "r.yaml -> base.yaml -> r.yaml"))


@pytest.mark.parametrize("scheme", ["fp16", "8a4w"])
def test_overrides_that_would_need_calibration(scheme: str) -> None:
    path = "generation: {path: fast}"
    export = f"{{backend: qnn, quantization: {scheme}, {path}, overrides: {{lm_head: 16a4w}}}}"
    last = problems(f"{HF}export: {export}\n")[-1]
    assert not lacks(last, "export.overrides", "qnn", "language model", "to xnnpack only")
