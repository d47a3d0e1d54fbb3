"""Recipes at the edges: hostile YAML, empty values, rules between keys, odd paths."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from etdeploy.core.errors import RecipeError
from etdeploy.recipe.document import parse_value, read_document
from etdeploy.recipe.load import load_recipe
from etdeploy.recipe.model import PartQuantization
from tests.support.facts import lacks

MLP = "model: {example: mlp}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, content: str | bytes) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return name


def problems(name: str, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load_recipe(name, overrides)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb: 2.5\nc: true\nd: ~\ne: text\nf: '5'\ng: 0x1f\nh: 1_000\n",
        "a: {b: [1, {c: d}], e: []}\nf: {}\n",
        "base: &base {x: 1, y: 2}\nchild: {<<: *base, y: 3}\n",
        "one: &one {x: 1}\ntwo: &two {x: 2, z: 2}\nboth: {<<: [*one, *two]}\n",
        "a: &a [1, 2]\nb: *a\nc: |\n  two\n  lines\n",
        "'quoted key': \"caf\\u00e9\"\nümlaut: naïve\n",
    ],
)
def test_data_is_what_safe_load_gives(text: str) -> None:
    document = read_document(Path(write("r.yaml", text)))
    assert document.data == yaml.safe_load(text)
    assert document.problems == []


def test_sizes_that_cannot_be_are_told_at_their_places() -> None:
    name = write(
        "r.yaml",
        MLP + "benchmark:\n  sizes:\n    a b: {x.0: 1}\n    none: {x.0: 0}\n    c: 3\n"
        "    d: {x.0: 1.5}\n",
    )
    assert problems(name) == [
        "r.yaml:4:5: benchmark.sizes.a b: the name of a size is part of file names: use up to 32 "
        "letters, digits, dashes and underscores",
        "r.yaml:5:12: benchmark.sizes.none.x.0 should be greater than or equal to 1, not 0",
        "r.yaml:6:5: benchmark.sizes.c takes a mapping, not 3",
        "r.yaml:7:9: benchmark.sizes.d.x.0 takes a whole number, not 1.5",
    ]


def test_inputs_are_made_for_sizes_only() -> None:
    write("model.py", "")
    name = write("r.yaml", MLP + "benchmark: {inputs: model.py:make}\n")
    assert problems(name) == [
        "r.yaml:2:13: benchmark.inputs: this function makes the inputs for `sizes`, and there are "
        "none"
    ]
    gone = Path.cwd() / "gone.py"
    assert problems(name, "benchmark.sizes.a={x.0: 1}", "benchmark.inputs=gone.py:make") == [
        f"--set benchmark.inputs: benchmark.inputs: the file {gone} does not exist"
    ]


def test_sizes_can_be_set_by_name() -> None:
    recipe = load_recipe(write("r.yaml", MLP), ["benchmark.sizes.short.tokens=16"]).recipe
    assert recipe.benchmark.sizes == {"short": {"tokens": 16}}


def test_a_byte_order_mark_and_windows_line_ends_are_read() -> None:
    name = write("r.yaml", b"\xef\xbb\xbfmodel:\r\n  example: mlp\r\n")
    assert load_recipe(name).recipe.model.example == "mlp"


def test_dates_stay_text() -> None:
    name = write("r.yaml", "model: {example: mlp, arguments: {day: 2024-02-30}}\n")
    assert load_recipe(name).recipe.model.arguments == {"day": "2024-02-30"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[" * 500, "r.yaml:1:65: more than 64 levels deep"),
        ("a: " + "{b: " * 500, "r.yaml:1:256: more than 64 levels deep"),
        ("a: &a [*a]\n", "r.yaml:1:4: this value contains itself"),
        ("a: &a {<<: *a}\n", "r.yaml:1:4: this value contains itself"),
        ("a: *b\n", "r.yaml:1:4: this is not YAML: found undefined alias"),
        (MLP + "x: !!python/object/apply:os.system [ls]\n",
         "r.yaml:2:4: python/object/apply:os.system values are not supported"),
        (MLP + "x: !mine {a: 1}\n", "r.yaml:2:4: !mine values are not supported"),
        (MLP + "x: !!set {a, b}\n", "r.yaml:2:4: set values are not supported"),
        (MLP + "x: !!binary aGk=\n", "r.yaml:2:4: binary values are not supported"),
        (MLP + "x: !!int abc\n", "r.yaml:2:4: this cannot be read as int"),
        (MLP + "x: .nan\n", "r.yaml:2:4: a number must be finite"),
        (MLP + "x: {<<: 5}\n", "r.yaml:2:9: `<<` takes a mapping or a list of mappings"),
        (MLP + "[a, b]: 5\n", "r.yaml:2:1: a key must be a plain word"),
        ("a: 1\n---\nb: 2\n",
         "r.yaml:2:1: a second document starts here (a recipe is one document)"),
        ("a: b: c\n", "r.yaml:1:5: this is not YAML: mapping values are not allowed in this "
         "context (text that contains ': ' needs quotes)"),
        ("model:\n  example: \x07\n", "r.yaml:2:12: this is not YAML: unacceptable character "
         "#x0007: control characters are not allowed"),
    ],
)  # fmt: skip
def test_hostile_yaml_is_one_problem(text: str, expected: str) -> None:
    assert problems(write("r.yaml", text))[0] == expected


@pytest.mark.parametrize(
    "value", ["[" * 100_000, "&a [*a]", "!!python/name:os.system", "{a: .inf}"]
)
def test_hostile_overrides_are_told_without_lines(value: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_value(value, "--set a.b")
    [problem] = caught.value.problems
    assert problem.place == "--set a.b"


def test_an_empty_value_stands_for_the_default() -> None:
    name = write("r.yaml", MLP + "export:\n  quantization:\n  calibration: null\nbenchmark:\n")
    recipe = load_recipe(name).recipe
    assert (recipe.export.quantization, recipe.benchmark.iterations) == ("none", 50)


def test_an_empty_value_takes_back_what_is_inherited() -> None:
    write("base.yaml", MLP + "benchmark: {iterations: 7, warmup: 1}\nexport: {seed: 3}\n")
    child = write("child.yaml", "extends: base.yaml\nbenchmark: {iterations: }\nexport: ~\n")
    recipe = load_recipe(child).recipe
    assert (recipe.benchmark.iterations, recipe.benchmark.warmup, recipe.export.seed) == (50, 1, 0)


def test_an_empty_source_is_no_other_source() -> None:
    write("base.yaml", MLP)
    child = write("child.yaml", "extends: base.yaml\nmodel: {program: , arguments: {width: 8}}\n")
    model = load_recipe(child).recipe.model
    assert (model.example, model.arguments) == ("mlp", {"width": 8})


def test_an_unknown_key_without_a_value_is_still_unknown() -> None:
    assert problems(write("r.yaml", MLP + "exprot:\n")) == [
        "r.yaml:2:1: unknown key 'exprot' (did you mean 'export'?)"
    ]


def test_rules_between_keys_are_told_with_all_else() -> None:
    text = """\
model: {example: mlp, weights: r.yaml}
export:
  backend: portable
  quantization: int8_dynamic
  calibration: r:f
  group_size: 64
  soc: SM8650
  sed: 1
"""
    assert problems(write("r.yaml", text)) == [
        "r.yaml:1:23: model.weights: weights need a `python` model source",
        "r.yaml:4:3: export.quantization: the backend portable does not support "
        "quantization 'int8_dynamic'; choose from none",
        "r.yaml:5:3: export.calibration: quantization 'int8_dynamic' does not use calibration "
        "inputs",
        "r.yaml:6:3: export.group_size: quantization 'int8_dynamic' does not use groups; only "
        "'8da4w' and '16a4w_block' do",
        "r.yaml:7:3: export.soc: soc applies to the qnn backend only",
        "r.yaml:8:3: unknown key 'export.sed' (did you mean 'seed'?)",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("modle: {example: mlp}", "r.yaml:1:1: unknown key 'modle' (did you mean 'model'?)"),
        (
            "export: {}",
            "r.yaml:1:1: the key 'model' is missing (e.g. model: {example: mlp})",
        ),
        (
            "model: {example: mlp}\nexport: {quantization: int9}",
            "r.yaml:2:10: export.quantization takes none, fp16, int8_static, int8_dynamic, 8da4w, "
            "8da8w, 8a4w, 16a8w, 16a4w or 16a4w_block, not 'int9'",
        ),
    ],
)
def test_each_mistake_is_one_problem(text: str, problem: str) -> None:
    assert problems(write("r.yaml", text + "\n")) == [problem]


def test_a_misspelt_source_is_told_once() -> None:
    assert problems(write("r.yaml", "model: {exmple: mlp}\n")) == [
        "r.yaml:1:9: unknown key 'model.exmple' (did you mean 'example'?)"
    ]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("benchmark.tolerance.max_abs_error=1e-3",
         "takes a number, not '1e-3' (YAML needs a decimal point and a sign: 1.0e-3)"),
        ("description=5", "description takes text, not 5 (put it in quotes)"),
        ("runtime.threads=4.0", "runtime.threads takes a whole number from 0 to 256, auto, or a "
         "list of different numbers from 1 to 256, not 4.0"),
        ("runtime.threads=autos", "not 'autos' (did you mean 'auto'?)"),
        *((f"runtime.threads={wrong}", f"256, not {wrong}") for wrong in ("[]", "[1, 1]")),
        *((f"runtime.threads={wrong}", f"in {wrong}")
          for wrong in ("[0, 2]", "[1, 257]", "[1, -2]", "[1, '2']")),
        ("benchmark.warmup=true",
         "benchmark.warmup takes a whole number from 0 to 100000, or auto, not true"),
        ("benchmark.warmup=atuo", "or auto, not 'atuo' (did you mean 'auto'?)"),
        ("benchmark.warmup=-1", "from 0 to 100000, or auto, not -1"),
        ("benchmark.runs=0", "benchmark.runs should be greater than or equal to 1, not 0"),
        ("benchmark.iterations=0", "iterations should be greater than or equal to 1, not 0"),
        ("export.quantization=no", "or 16a4w_block, not false"),
        ("export.group_size=40", "export.group_size should be a multiple of 32, not 40"),
        ("extends=portable", "--set extends: only a file can extend a recipe"),
        (".a=1", "--set .a=1: write it as key.path=value"),
        ("=1", "--set =1: write it as key.path=value"),
        ("export.backend.x=1", "openvino, not a mapping"),
        ("model.weights=~nobody_here/w.pt", "cannot be the path of a file"),
        ('model.weights="a\\0b"', "cannot be the path of a file"),
        ("model.weights=" + "x" * 5000, "cannot be the path of a file"),
        ("model.weights=.", "is a folder"),
        ("model.weights=/dev/null", "the file /dev/null is a device"),
        ("runtime.source=/etc/passwd", "the folder /etc/passwd is a file"),
    ],
)  # fmt: skip
def test_overrides_that_do_not_fit(override: str, expected: str) -> None:
    found = problems("xnnpack", override)
    assert all(text.startswith(f"--set {override.partition('=')[0]}") for text in found)
    assert any(expected in text for text in found)


def test_a_recipe_in_a_folder_is_named_so_that_it_can_be_copied(tmp_path: Path) -> None:
    folder = tmp_path / "my recipes"
    folder.mkdir()
    (folder / "a b.yaml").write_text(MLP)
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(folder))
    assert caught.value.remedy == f"Name a file in it: '{folder}/a b.yaml'"


def test_the_order_of_overrides_of_different_keys_does_not_matter() -> None:
    write("make.py", "")
    write("w.pt", "")
    overrides = ["model.weights=w.pt", "model.python=make.py:make"]
    one = load_recipe("xnnpack", overrides).recipe.model
    assert one == load_recipe("xnnpack", overrides[::-1]).recipe.model
    assert one.weights == f"{Path.cwd()}/w.pt"


def test_two_sources_on_the_command_line_are_a_problem() -> None:
    write("m.pte", "")
    [text] = problems("xnnpack", "model.example=mlp", "model.program=m.pte")
    assert text.endswith(": example, program")


def test_whole_sections_can_be_overridden_and_keep_their_place() -> None:
    recipe = load_recipe("xnnpack", ["benchmark={iterations: 3}"]).recipe
    assert (recipe.benchmark.iterations, recipe.benchmark.warmup) == (3, "auto")
    assert problems("xnnpack", "benchmark={itrations: 3}") == [
        "--set benchmark: unknown key 'benchmark.itrations' (did you mean 'iterations'?)"
    ]


def test_a_circle_through_two_recipes_is_told() -> None:
    write("a.yaml", "extends: b.yaml\n")
    write("b.yaml", "extends: a.yaml\n")
    assert problems("a.yaml") == [
        "b.yaml:1:1: recipes extend each other in a circle: a.yaml -> b.yaml -> a.yaml"
    ]


def test_problems_of_both_files_are_told_at_their_own_places() -> None:
    write("base.yaml", MLP + "benchmark: {iterations: 0}\n")
    child = write("child.yaml", "extends: base.yaml\nruntime: {threads: -1}\n")
    assert sorted(text.split(": ")[0] for text in problems(child)) == [
        "base.yaml:2:13", "child.yaml:2:11",
    ]  # fmt: skip


def test_a_missing_file_that_a_child_replaces_is_no_problem() -> None:
    write("make.py", "")
    write("base.yaml", "model: {python: make.py:make, weights: gone.pt}\n")
    write("w.pt", "")
    child = write("child.yaml", "extends: base.yaml\nmodel: {weights: w.pt}\n")
    assert load_recipe(child).recipe.model.weights == f"{Path.cwd()}/w.pt"
    assert problems("base.yaml") == [
        f"base.yaml:1:31: model.weights: the file {Path.cwd()}/gone.pt does not exist"
    ]


def test_paths_that_no_recipe_can_have() -> None:
    write("my.yaml", MLP)
    os.mkfifo("pipe.yaml")
    Path("loop.yaml").symlink_to("loop.yaml")
    Path("dangling.yaml").symlink_to("gone.yaml")
    found: dict[str, Any] = {
        name: problems(name)[0].partition(": ")[2]
        for name in ("my", "./my", "pipe.yaml", "dangling.yaml", "", "x" * 5000, "my.yaml/x.yaml")
    }
    assert found["my"] == "there is no such recipe (did you mean 'my.yaml'?)"
    assert found["./my"] == "there is no such recipe (did you mean './my.yaml'?)"
    assert found["pipe.yaml"] == "a recipe is a YAML file, and this is a FIFO (named pipe)"
    assert found["dangling.yaml"] == "there is no such recipe"
    assert found[""] == "a recipe is a YAML file, and this is a folder"
    assert "this path cannot be used" in found["x" * 5000]
    assert found["my.yaml/x.yaml"] == "there is no such recipe"
    assert problems("loop.yaml")


def test_options_of_the_htp_are_checked() -> None:
    text = """\
model: {example: mlp}
export:
  backend: qnn
  options: {performance_mode: turbo, per_channel: 1, cache: 4}
"""
    assert problems(write("r.yaml", text)) == [
        "r.yaml:4:13: export.options.performance_mode: takes default, "
        "sustained_high_performance, burst, high_performance, power_saver, low_power_saver, "
        "high_power_saver, low_balanced or balanced, not 'turbo'",
        "r.yaml:4:38: export.options.per_channel: takes true or false, not 1",
        "r.yaml:4:54: export.options.cache: the backend qnn has no option 'cache' (it has "
        "performance_mode, per_channel, dlbc, vtcm_mib, weight_sharing)",
    ]


def test_overrides_are_checked_at_their_places() -> None:
    text = """\
model: {example: mlp}
export:
  backend: qnn
  quantization: int8_static
  overrides:
    layers.0.*: 8da4w
    head: none
    "4": 16a9w
    right: 16a8w
    absent: null
"""
    assert problems(write("r.yaml", text)) == [
        "r.yaml:6:5: export.overrides.layers.0.*: the backend qnn does not mix '8da4w' with other "
        "schemes; choose from int8_static, 8a4w, 16a8w, 16a4w",
        "r.yaml:7:5: export.overrides.head: the backend qnn leaves no part of a quantised model in "
        "floats; choose from int8_static, 8a4w, 16a8w, 16a4w",
        "r.yaml:8:5: export.overrides.4 takes none, fp16, int8_static, int8_dynamic, 8da4w, "
        "8da8w, 8a4w, 16a8w, 16a4w, 16a4w_block, or one of them with groups of its own: "
        "{quantization: 8da4w, group_size: 64}, not '16a9w' (did you mean '16a8w'?)",
    ]


@pytest.mark.parametrize(
    ("backend", "scheme", "message"),
    [
        (
            "vulkan",
            "int8_static",
            "the backend vulkan quantises the whole model by one scheme; overrides apply to "
            "xnnpack, qnn only",
        ),
        (
            "xnnpack",
            "int8_static",
            "with quantization 'int8_static', xnnpack has no overrides; the quantization has to be "
            "one of 8da4w, 8da8w",
        ),
        (
            "xnnpack",
            "none",
            "with quantization 'none', xnnpack has no overrides; the quantization has to be one of "
            "8da4w, 8da8w",
        ),
        (
            "qnn",
            "none",
            "with quantization 'none', qnn has no overrides; the quantization has to be one of "
            "int8_static, 8a4w, 16a8w, 16a4w",
        ),
    ],
)
def test_overrides_that_cannot_apply_are_refused(backend: str, scheme: str, message: str) -> None:
    text = f"""\
model: {{example: mlp}}
export:
  backend: {backend}
  quantization: {scheme}
  overrides: {{head: 16a8w}}
"""
    assert problems(write("r.yaml", text)) == [f"r.yaml:5:3: export.overrides: {message}"]


def test_a_part_may_have_groups_of_its_own() -> None:
    text = """\
model: {example: mlp}
export:
  quantization: 8da8w
  overrides:
    head: {quantization: 8da4w, group_size: 64}
    body: none
"""
    overrides = load_recipe(write("r.yaml", text)).recipe.export.overrides
    assert overrides == {
        "head": PartQuantization(quantization="8da4w", group_size=64),
        "body": "none",
    }


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            "{quantization: 8da8w, group_size: 64}",
            "quantization '8da8w' does not use groups; only '8da4w' and '16a4w_block' do",
        ),
        (
            "{quantization: 16a8w}",
            "the backend xnnpack does not mix '16a8w' with other schemes; choose from none, 8da4w, "
            "8da8w",
        ),
    ],
)
def test_parts_that_do_not_fit(part: str, message: str) -> None:
    text = (
        f"model: {{example: mlp}}\nexport:\n  quantization: 8da4w\n  overrides: {{head: {part}}}\n"
    )
    assert problems(write("r.yaml", text)) == [f"r.yaml:4:15: export.overrides.head: {message}"]


@pytest.mark.parametrize(
    "part", ["{quantization: 8da4w, group_size: 33}", "{group_size: 64}", "[]"]
)
def test_a_part_that_cannot_be_read_says_what_it_takes(part: str) -> None:
    text = (
        f"model: {{example: mlp}}\nexport:\n  quantization: 8da4w\n  overrides: {{head: {part}}}\n"
    )
    [problem] = problems(write("r.yaml", text))
    assert problem.startswith("r.yaml:4:15: export.overrides.head takes none, fp16, ")
    assert "{quantization: 8da4w, group_size: 64}" in problem


@pytest.mark.parametrize(
    ("backend", "scheme", "message"),
    [
        (
            "vulkan",
            "none",
            "a program for the backend vulkan has its tables of embeddings in floats; embeddings "
            "apply to portable, xnnpack only",
        ),
        (
            "xnnpack",
            "int8_dynamic",
            "with quantization 'int8_dynamic', tables of embeddings stay in floats; the "
            "quantization has to be one of none, 8da4w, 8da8w",
        ),
    ],
)
def test_embeddings_that_cannot_be_quantised(backend: str, scheme: str, message: str) -> None:
    text = (
        "model: {example: transformer}\n"
        f"export: {{backend: {backend}, quantization: {scheme}, embeddings: 8w}}\n"
    )
    [problem] = problems(write("r.yaml", text))
    assert problem.endswith(f": export.embeddings: {message}")
    assert (
        load_recipe(write("r.yaml", text.replace("8w", "none"))).recipe.export.embeddings == "none"
    )


def test_embeddings_in_groups_use_the_group_size() -> None:
    text = "model: {example: transformer}\nexport: {group_size: 64, embeddings: 4w}\n"
    assert load_recipe(write("r.yaml", text)).recipe.export.embeddings == "4w"
    [problem] = problems(write("r.yaml", text.replace("4w", "8w")))
    assert not lacks(problem, "'none'", "'8da4w'", "'16a4w_block'")


def test_overrides_of_nothing_are_none() -> None:
    text = "model: {example: mlp}\nexport: {overrides: {head: null}}\n"
    loaded = load_recipe(write("r.yaml", text))
    assert loaded.recipe.export.overrides == {"head": None}


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("{id: convnet}", "app.id: 'convnet' is no id of an app: it has no dot"),
        ("{id: org.new.x}", "'new' is a word of Java or Kotlin"),
        ("{id: org.1.x}", "'1' is no part of an id"),
        ("{name: ' '}", "app.name: the name needs letters or digits"),
        ('{name: "a\\tb"}', "app.name: the name needs letters or digits"),
        ("{team: abc}", "app.team: 'abc' is no team"),
        ("{abis: [mips]}", "app.abis takes a list of arm64-v8a, x86_64, or both"),
        ("{abis: [x86_64, x86_64]}", "app.abis takes a list of"),
        ("{build: gradle, aar: recipe.yaml}", "app.aar: Gradle downloads"),
        ("{aar: nothing.aar}", "nothing.aar does not exist"),
    ],
)
def test_an_app_that_no_phone_takes_is_refused(tmp_path: Path, app: str, said: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"model: {{example: mlp}}\napp: {app}\n")
    with pytest.raises(RecipeError) as error:
        load_recipe(str(recipe))
    assert said in str(error.value)


def test_a_bundled_name_with_a_suffix_is_that_recipe_unless_there_is_such_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("qnn.yaml", "qnn.yml"):
        assert load_recipe(name).path == load_recipe("qnn").path
    Path("qnn.yaml").write_text("model: {example: mlp}\n")
    assert load_recipe("qnn.yaml").path == tmp_path / "qnn.yaml"
    Path("extending.yaml").write_text("extends: xnnpack.yaml\n")
    assert load_recipe("extending.yaml").recipe.export == load_recipe("xnnpack").recipe.export
    with pytest.raises(RecipeError):
        load_recipe("./xnnpack.yaml")
