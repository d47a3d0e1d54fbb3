"""What a recipe wants of a program that generates text, and the request to the runner."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from etdeploy.bench.generation_limits import require_measurable
from etdeploy.bench.generation_request import encoder_files, write_request
from etdeploy.bench.generation_workload import (
    GenerationWorkload,
    WorkPoint,
    decode_ids,
    encoded_input,
    make_points,
    make_workload,
    random_ids,
    tokenize_prompt,
)
from etdeploy.bench.passes import Plan, plan_generation
from etdeploy.bench.threads import ThreadCounts
from etdeploy.core.errors import UsageError
from etdeploy.program.folder import MethodValues, Provenance, TensorFile
from etdeploy.program.generation import GenerationAdapter, GenerationEncoder
from etdeploy.runner.generation import Sampling, prompt_bytes
from tests.support.text_values import (
    METHODS,
    generated,
    ids_in,
    make_expected,
    make_generated,
    make_generation,
    make_loaded,
    make_work,
)
from tests.support.tokenizers import save


def _work(grid: dict[str, Any] | None = None, **benchmark: Any) -> GenerationWorkload:
    loaded = make_loaded(benchmark={"generation": grid or {}, **benchmark})
    return make_workload(loaded, make_generation(), Path())


def test_each_prompt_meets_each_number_of_new_tokens_at_each_depth() -> None:
    work = _work({"prompt_tokens": [4, 8], "new_tokens": [2, 3], "depth": [0, 16]})
    assert [(len(p.prompt), p.new_tokens, p.depth) for p in work.points] == [
        (4, 2, 0), (4, 2, 16), (4, 3, 0), (4, 3, 16),
        (8, 2, 0), (8, 2, 16), (8, 3, 0), (8, 3, 16),
    ]  # fmt: skip
    assert (work.prompt, work.stop_ids) == (None, ())


@pytest.mark.parametrize(
    ("new_tokens", "benchmark", "repeated"),
    [
        (64, {}, (1, 1)),
        (11, {}, (1, 5)),
        (11, {"warmup": 0, "iterations": 1}, (0, 1)),
        (11, {"warmup": 21, "iterations": 20}, (3, 2)),
        (1, {"iterations": 25}, (1, 4)),
    ],
    ids=["default", "few tokens", "no warm-up", "given", "prompts only"],
)
def test_iterations_count_tokens(
    new_tokens: int, benchmark: dict[str, Any], repeated: tuple[int, int]
) -> None:
    [point] = _work({"prompt_tokens": [8], "new_tokens": [new_tokens]}, **benchmark).points
    assert (point.warmup, point.repetitions) == repeated


@pytest.mark.parametrize(
    ("sections", "told", "place"),
    [
        ({"benchmark": {"sustained_s": 5}}, "sustained pass", "tiny.yaml:3:5"),
        ({"runtime": {"threads": [1, 2]}}, "sweep of threads", "/recipes/tiny.yaml"),
    ],
)
def test_what_generating_text_does_not_have_is_refused(
    sections: dict[str, Any], told: str, place: str
) -> None:
    loaded = make_loaded({("benchmark", "sustained_s"): 3}, **sections)
    with pytest.raises(UsageError, match=told) as raised:
        make_workload(loaded, make_generation(), Path())
    assert raised.value.place == place


@pytest.mark.parametrize(
    ("point", "method"),
    [
        (WorkPoint(tuple(range(8)), 4, 0, 0, 1), "decode_64"),
        (WorkPoint(tuple(range(8)), 4, 100, 0, 1), "decode"),
        (WorkPoint(tuple(range(8)), 1, 0, 0, 1), "prefill"),
    ],
)
def test_the_method_is_the_one_that_gives_the_first_points_tokens(
    point: WorkPoint, method: str
) -> None:
    assert make_work(point).method == method


def test_what_cannot_fit_is_refused_before_the_export() -> None:
    grid = {"prompt_tokens": [8, 128], "new_tokens": [65], "depth": [0, 64]}
    export = {"generation": {"context": 256}}
    require_measurable(make_loaded(benchmark={"generation": grid}, export=export), 256)
    require_measurable(make_loaded(), 2048)
    longer = make_loaded(benchmark={"generation": {**grid, "depth": [65]}}, export=export)
    with pytest.raises(UsageError, match="context of 256") as raised:
        require_measurable(longer, 256)
    assert "context=257" in str(raised.value.remedy)
    require_measurable(
        make_loaded(benchmark={"generation": {**grid, "prompt": "x"}}, export=export), 256
    )
    with pytest.raises(UsageError, match="sustained pass"):
        require_measurable(make_loaded(benchmark={"sustained_s": 5}), 256)


def test_a_model_with_too_few_positions_is_asked_for_fewer_tokens() -> None:
    grid = {"prompt_tokens": [128], "new_tokens": [64], "depth": [8]}
    with pytest.raises(UsageError, match="context of 100") as raised:
        require_measurable(make_loaded(benchmark={"generation": grid}), 100)
    settings = shlex.split(str(raised.value.remedy).splitlines()[-1])[1::2]
    assert settings == [f"benchmark.generation.{x}" for x in
                        ("prompt_tokens=[67]", "new_tokens=[33]", "depth=[0]")]  # fmt: skip
    fitting = {"prompt_tokens": [67], "new_tokens": [33], "depth": [0]}
    require_measurable(make_loaded(benchmark={"generation": fitting}), 100)


PLACE = "tiny.yaml:3:5"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A program folder with a tokenizer of words."""
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, "good": 3, "morning": 4}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))  # noqa: S106
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(["<s>", "</s>"])
    save(made, tmp_path / "tokenizer")
    return tmp_path


def test_random_prompts_begin_alike_and_never_end_a_text() -> None:
    generation = make_generation(vocabulary=6)
    short, long = random_ids((4, 200), generation, seed=0)
    assert long[:4] == short
    assert long[0] == generation.bos_id
    assert set(long[1:]) == {0, 1, 4, 5}
    assert random_ids((200,), generation, seed=0) == (long,)
    assert random_ids((200,), generation, seed=1) != (long,)
    generation = make_generation(bos_id=None, vocabulary=4, stop_ids=(1, 2, 3))
    assert random_ids((3,), generation, seed=5) == ((0, 0, 0),)


def test_a_text_becomes_what_the_models_tokenizer_makes_of_it(folder: Path) -> None:
    generation = make_generation(tokenizer="tokenizer")
    assert tokenize_prompt("good morning", generation, folder, PLACE) == (1, 3, 4)
    assert decode_ids((3, 4, 2), generation, folder) == "good morning"


def test_a_prompt_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no tokenizer") as raised:
        tokenize_prompt("good", make_generation(), tmp_path, PLACE)
    assert raised.value.place == PLACE
    assert decode_ids((1,), make_generation(), tmp_path) is None


def test_a_tokenizer_that_is_gone_is_named(tmp_path: Path) -> None:
    generation = make_generation(tokenizer="tokenizer")
    with pytest.raises(UsageError, match="tokenizer cannot be read") as raised:
        tokenize_prompt("good", generation, tmp_path, PLACE)
    assert raised.value.place == str(tmp_path / "tokenizer" / "tokenizer.json")
    assert decode_ids((1,), generation, tmp_path) is None


def _plan(simulated: bool = False, texts: int = 0, **benchmark: Any) -> Plan:
    recipe = make_loaded(benchmark=benchmark).recipe
    work = make_work(generation=make_generation(expected=(make_expected(),) * texts))
    return plan_generation(recipe, work, ThreadCounts((3,)), simulated=simulated)


def test_known_texts_have_a_pass_of_their_own() -> None:
    plan = _plan(texts=2, runs=1)
    assert [step.key for step in plan.steps] == ["timing", "text", "memory", "profile"]
    text = plan.steps[1]
    assert (text.request, text.warmup, text.iterations) == ("generation/text.txt", 0, 2)
    # Of a simulated run, the outputs are all that counts.
    assert [s.key for s in _plan(simulated=True, texts=1).steps] == ["timing", "text"]


def test_every_point_follows_its_own_warm_up(tmp_path: Path) -> None:
    work = make_work(WorkPoint((5, 6, 7), 4, 0, 1, 2), WorkPoint((5,), 1, 16, 0, 3), stop_ids=(2,))
    files = write_request(work, tmp_path)
    assert list(files) == [
        "generation/timing.txt", "generation/memory.txt", "generation/profile.txt",
        "generation/prompt-0.bin", "generation/prompt-1.bin",
    ]  # fmt: skip
    assert files["generation/timing.txt"].read_text().splitlines()[3:] == [
        "sampling 0.0 0 1.0 0 0.0 1.0",
        "stop 2",
        "point warmup-0 0 4 1 prompt-0.bin",
        "point point-0 0 4 2 prompt-0.bin",
        "point point-1 16 1 3 prompt-1.bin",
    ]
    assert [ids_in(files[f"generation/prompt-{i}.bin"]) for i in (0, 1)] == [(5, 6, 7), (5,)]


def test_the_memory_is_that_of_the_first_point_once(tmp_path: Path) -> None:
    points = WorkPoint((5,), 4, 0, 1, 9), WorkPoint((6,), 1, 16, 0, 3)
    work = make_work(*points, generation=make_generation(rewind=129))
    text = write_request(work, tmp_path)["generation/memory.txt"].read_text()
    assert [line for line in text.splitlines() if line.startswith("point")] == [
        "point point-0 0 4 1 prompt-0.bin"
    ]
    assert "\nrewind 129\n" in text


def test_known_texts_are_greedy_whatever_the_recipe_samples_with(tmp_path: Path) -> None:
    texts = (make_expected(), make_expected((10, 11), (10, 11, 12, 13), prompt=(7,)))
    work = make_work(
        generation=make_generation(expected=texts), sampling=Sampling(temperature=2), stop_ids=(2,)
    )
    files = write_request(work, tmp_path)
    sampling, stop, _, *points = files["generation/text.txt"].read_text().splitlines()[3:]
    assert (sampling, stop) == ("sampling 0.0 0 1.0 0 0.0 1.0", "stop")
    assert points == ["follow point-0 3 text-prompt-0.bin", "follow point-1 4 text-prompt-1.bin"]
    assert ids_in(files["generation/text-prompt-0.bin"]) == (1, 5, 6, 10, 11)
    # The quantized model's tokens.
    assert ids_in(files["generation/text-prompt-1.bin"]) == (7, 10, 11, 12)


def test_the_first_point_is_traced_last_and_the_shortest_and_longest_before(tmp_path: Path) -> None:
    points = [
        WorkPoint((5,), new, depth, 1, 9) for new, depth in ((8, 50), (8, 0), (2, 20), (9, 99))
    ]
    text = write_request(make_work(*points, stop_ids=(2,)), tmp_path)["generation/profile.txt"]
    lines = text.read_text().splitlines()
    # No token ends a text, which could leave a method without a trace.
    assert "stop" in lines
    assert [line for line in lines if line.startswith("point")] == [
        "point warmup-3 99 4 1 prompt-3.bin",
        "point point-3 99 9 1 prompt-3.bin",
        "point warmup-1 0 4 1 prompt-1.bin",
        "point point-1 0 8 1 prompt-1.bin",
        "point warmup-0 50 4 1 prompt-0.bin",
        "point point-0 50 8 1 prompt-0.bin",
    ]


def test_an_adapter_generates_with_its_own_methods_and_texts() -> None:
    methods = tuple(m.model_copy(update={"name": f"poems_{m.name}"}) for m in METHODS)
    expected = make_expected([1, 2], [3, 4])
    made = make_generation(
        expected=(expected,),
        adapters={"poems": GenerationAdapter(methods=methods)},
    )
    loaded = make_loaded(
        model={"hf": "org/tiny", "lora": {"poems": "org/poems"}, "merge": False},
        benchmark={"generation": {"lora": "poems"}},
    )
    work = make_workload(loaded, made, Path())
    assert work.generation.methods == methods
    assert (work.method, work.generation.expected) == ("poems_decode", ())
    assert make_workload(make_loaded(), made, Path()).generation == made


ENCODER_FACTS = GenerationEncoder(
    prompt_ids=(7, 8, 9), is_real=True, audio_s=2.0, preprocess_ms=12.0
)


def _encoded(grid: dict[str, Any], **changes: Any) -> GenerationWorkload:
    encoder = ENCODER_FACTS.model_copy(update=changes)
    generation = make_generation(methods=METHODS[1:2], bos_id=None, encoder=encoder)
    return make_workload(make_loaded(benchmark={"generation": grid}), generation, Path())


def test_a_text_from_an_input_is_as_long_as_there_is_room_and_ends_by_itself() -> None:
    work = _encoded({"new_tokens": [4, 300, 400], "prompt_tokens": [128]})
    assert [(p.prompt, p.new_tokens, p.depth) for p in work.points] == [
        ((7, 8, 9), 4, 0), ((7, 8, 9), 254, 0),
    ]  # fmt: skip
    assert work.stop_ids == (2, 3)
    assert _encoded({}, is_real=False).stop_ids == ()


def test_the_encoder_runs_before_the_prompts_and_has_its_inputs_beside_them(
    tmp_path: Path,
) -> None:
    work = _encoded({})
    requests = write_request(work, tmp_path)
    timed = requests["generation/timing.txt"].read_text().splitlines()
    assert timed[1] == "encoder encoder 4 encoder-0.txt"
    assert "encoder encoder 1 encoder-0.txt" in requests["generation/memory.txt"].read_text()
    values = TensorFile(path="inputs/encoder/0.bin", dtype="float32", shape=(1, 80, 300), name="x")
    made = Provenance(
        source="tiny",
        method="decode",
        methods={"encoder": MethodValues(inputs=(values,)), "decode": MethodValues()},
        generation=work.generation,
    )
    files = encoder_files(made, Path("/program"), tmp_path)
    assert files == {
        "encoder-0.bin": Path("/program/inputs/encoder/0.bin"),
        "encoder-0.txt": tmp_path / "encoder-0.txt",
    }
    assert files["encoder-0.txt"].read_text() == "float32 3 1 80 300 encoder-0.bin\n"


def test_an_image_of_two_tiles_is_encoded_in_two_calls(tmp_path: Path) -> None:
    work = _encoded(
        {}, method="vision_encoder", calls=2, image_id=49, positions=((0, 2, 2), (0, 1, 5))
    )
    requests = write_request(work, tmp_path)
    assert requests["generation/timing.txt"].read_text().splitlines()[1:5] == [
        "encoder vision_encoder 4 encoder-0.txt",
        "encoder vision_encoder 4 encoder-1.txt",
        "embedding token_embedding 49",
        "positions 2 positions.bin",
    ]
    tiles = tuple(
        TensorFile(path=f"inputs/{i}.bin", dtype="float32", shape=(1, 3, 32, 32), name="pixels")
        for i in range(2)
    )
    made = Provenance(
        source="tiny",
        method="decode",
        methods={"vision_encoder": MethodValues(inputs=tiles), "decode": MethodValues()},
        generation=work.generation,
    )
    files = encoder_files(made, Path("/program"), tmp_path)
    assert files["encoder-1.txt"].read_text() == "float32 4 1 3 32 32 encoder-1.bin\n"
    assert files["encoder-1.bin"] == Path("/program/inputs/1.bin")
    assert files["positions.bin"].read_bytes() == prompt_bytes((0, 2, 2, 0, 1, 5))


def test_real_time_is_that_of_encoder_and_text(tmp_path: Path) -> None:
    work = _encoded({"new_tokens": [4]})
    run = generated("point-0", 30.0, [10.0, 10.0, 10.0])
    times = {"load_methods_ms": {"encoder": 1.0}, "encode_ms": [900.0, 140.0, 150.0, 130.0]}
    start = make_generated(generation={**times, "runs": [run]})
    [point] = make_points(work, [start], tmp_path)
    found = encoded_input(work, [start], point)
    assert found is not None
    assert found.encode_ms.samples == (140.0, 150.0, 130.0)
    assert found.real_time_factor == pytest.approx((140 + 30 + 3 * 10) / 2000)
    silent = encoded_input(_encoded({"new_tokens": [4]}, audio_s=None), [start], point)
    assert silent is not None
    assert silent.real_time_factor is None
    assert encoded_input(make_work(), [start], point) is None


_LOOKUP = {"generation": {"speculation": "lookup"}}
_VERIFYING = tuple(
    m.model_copy(update={"verify_tokens": 16 * (m.role == "prefill")}) for m in METHODS
)


def test_timing_and_memory_speculate_and_known_texts_and_traces_do_not(tmp_path: Path) -> None:
    loaded = make_loaded(benchmark=_LOOKUP)
    generation = make_generation(methods=_VERIFYING, expected=(make_expected(),))
    files = write_request(make_workload(loaded, generation, Path()), tmp_path)
    speculating = {name for name, path in files.items() if b"speculation" in path.read_bytes()}
    assert speculating == {"generation/timing.txt", "generation/memory.txt"}


def test_a_point_tells_what_speculation_did() -> None:
    counts: dict[str, Any] = {"calls": 3, "verified_calls": 2, "proposed": 8, "accepted": 5}
    run = generated("point-0", 5, [1.0] * 8, **counts)
    results = make_generated(run, run)
    [point] = make_points(make_work(speculation="lookup"), [results], Path())
    assert point.speculation is not None
    assert point.speculation.model_dump() == {
        "calls": 6, "verified_calls": 4, "proposed": 16, "accepted": 10,
        "acceptance_rate": 0.625, "tokens_per_call": 16 / 6, "draft_ms": None,
    }  # fmt: skip
    assert point.speculation.text == "2.67 tokens per call, 62 % of 16 proposed tokens accepted"
    [plain] = make_points(make_work(), [results], Path())
    assert plain.speculation is None
    [idle] = make_points(
        make_work(speculation="lookup"), [make_generated(generated("point-0", 5, []))], Path()
    )
    assert idle.speculation is not None
    assert idle.speculation.text == "nothing proposed"


@pytest.mark.parametrize(
    ("export", "says", "remedy"),
    [
        ({"generation": {"verify_tokens": 0}}, "verify_tokens is 0", "verify_tokens=16"),
        ({"backend": "vulkan"}, "vulkan computes elsewhere", "--speculate none"),
        ({"generation": {"layout": "executorch"}}, "ExecuTorch's contract", "layout=etdeploy"),
    ],
)
def test_speculation_is_refused_before_the_export_where_nothing_verifies(
    export: dict[str, Any], says: str, remedy: str
) -> None:
    places: dict[tuple[str, ...], int] = {("benchmark", "generation", "speculation"): 7}
    loaded = make_loaded(places, benchmark=_LOOKUP, export=export)
    with pytest.raises(UsageError, match=says) as raised:
        require_measurable(loaded, 2048)
    assert raised.value.place == "tiny.yaml:7:5"
    assert remedy in str(raised.value.remedy)
    require_measurable(make_loaded(export=export), 2048)


def test_speculation_is_refused_for_a_program_that_cannot_go_back() -> None:
    loaded = make_loaded(benchmark=_LOOKUP)
    require_measurable(loaded, 2048)
    with pytest.raises(UsageError, match="a recurrent state"):
        make_workload(loaded, make_generation(rewind=0), Path())
    with pytest.raises(UsageError, match="the logits of the last token alone"):
        make_workload(loaded, make_generation(), Path())
