"""A draft model: which programs can be one, and where it goes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etdeploy.bench.bundle import make_bundle
from etdeploy.bench.generation_limits import require_fitting_draft
from etdeploy.bench.generation_request import write_request
from etdeploy.bench.generation_workload import make_points, make_workload
from etdeploy.bench.snapshot import program_digest
from etdeploy.core.errors import UsageError
from etdeploy.core.hashing import sha256_file
from etdeploy.export.finished import DraftProgram, read_draft
from etdeploy.export.spec import ExportSpec, HfModel
from etdeploy.program.folder import PROGRAM_FILE
from etdeploy.program.generation import Generation
from etdeploy.recipe.sections.export import ExportGeneration
from tests.support.bench_values import make_program_folder, make_runner
from tests.support.program_files import INT64, Plan, Tensor, pte
from tests.support.text_values import (
    METHODS,
    generated,
    make_expected,
    make_generated,
    make_generation,
    make_loaded,
    make_work,
)

_FORWARD = Plan(
    inputs=(Tensor((1, 63), INT64, dynamism=1), Tensor((1,), INT64)), outputs=(Tensor((1, 100)),)
)
_PLACE = "tiny.yaml:7:5"
_VERIFYING = tuple(
    m.model_copy(update={"verify_tokens": 16 * (m.role == "prefill")}) for m in METHODS
)


def _write(folder: Path, forward: Plan = _FORWARD, **facts: Any) -> Path:
    folder.mkdir(exist_ok=True)
    known = {"get_max_context_len": (256,), "get_vocab_size": (100,)} | facts
    methods = (Plan(name=name, inputs=(), outputs=value) for name, value in known.items() if value)
    (folder / PROGRAM_FILE).write_bytes(pte(forward, *methods))
    return folder / PROGRAM_FILE


def _draft(folder: Path, **facts: Any) -> DraftProgram:
    return read_draft(_write(folder, **facts), _PLACE)


def _tokenizer(folder: Path, tokens: list[str], unigram: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    vocab = [[t, -1.0] for t in tokens] if unigram else {t: i for i, t in enumerate(tokens)}
    added = [{"id": len(tokens), "content": "<end>"}]
    content = {"model": {"vocab": vocab}, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder / "tokenizer.json"


def test_a_draft_is_known_by_its_file(tmp_path: Path) -> None:
    tokenizer = _tokenizer(tmp_path / "small", ["a"])
    made = _draft(tmp_path / "small", get_rewind=(129,))
    path = tmp_path / "small" / PROGRAM_FILE
    assert (made.path, made.tokenizer, made.data) == (path, tokenizer, ())
    draft = made.draft
    assert (draft.name, draft.sha256, draft.size_bytes) == (
        "small", sha256_file(path), path.stat().st_size,
    )  # fmt: skip
    assert (draft.vocabulary, draft.context, draft.rewind) == (100, 256, 129)
    assert draft.load_mode == "mmap"
    assert [method.name for method in draft.methods] == ["forward"]


@pytest.mark.parametrize(
    ("forward", "facts", "why"),
    [
        (_FORWARD, {"get_max_context_len": (), "get_vocab_size": ()}, "it is a language model"),
        (replace(_FORWARD, name="encode"), {}, "it has no method forward, but encode"),
        (replace(_FORWARD, inputs=_FORWARD.inputs[:1]), {}, "without a KV cache"),
        (_FORWARD, {"get_rewind": (0,)}, "recurrent state"),
    ],
)
def test_a_program_that_cannot_draft_is_refused(
    tmp_path: Path, forward: Plan, facts: dict[str, Any], why: str
) -> None:
    path = _write(tmp_path / "x", forward, **facts)
    with pytest.raises(UsageError, match=why) as raised:
        read_draft(path, _PLACE)
    assert raised.value.place == _PLACE
    assert f"{path} cannot be the draft" in raised.value.message
    assert "etdeploy export" in str(raised.value.remedy)
    assert "--output draft" in str(raised.value.remedy)


_SPEC = ExportSpec(program="target.pte")


def _refusal(
    draft: DraftProgram,
    generation: Generation | None,
    folder: Path | None = None,
    spec: ExportSpec = _SPEC,
) -> UsageError | None:
    try:
        require_fitting_draft(draft, spec, generation, folder)
    except UsageError as error:
        return error if error.place == _PLACE else None
    return None


@pytest.mark.parametrize(
    ("changes", "why", "remedy"),
    [
        ({"vocabulary": 101}, "a vocabulary of 100 tokens, and the program one of 101",
         "without speculation"),
        ({"context": 512}, "a context of 256 tokens, and the program one of 512", "--context 512"),
    ],
)  # fmt: skip
def test_a_draft_has_the_vocabulary_and_at_least_the_context(
    tmp_path: Path, changes: dict[str, Any], why: str, remedy: str
) -> None:
    draft = _draft(tmp_path / "draft")
    assert _refusal(draft, make_generation()) is None
    assert _refusal(draft, make_generation(context=64)) is None
    error = _refusal(draft, make_generation(**changes))
    assert error is not None
    assert why in error.message
    assert remedy in str(error.remedy)


@pytest.mark.parametrize("unigram", [False, True])
def test_a_draft_has_the_same_tokens(tmp_path: Path, unigram: bool) -> None:
    _tokenizer(tmp_path / "draft", ["a", "b", "c"])
    draft = _draft(tmp_path / "draft")
    generation = make_generation(tokenizer="tokenizer")
    for tokens, first in ((["a", "b", "c"], None), (["a", "x", "y"], "1, 'b' in place of 'x'")):
        (tmp_path / "target").mkdir(exist_ok=True)
        _tokenizer(tmp_path / "target" / "tokenizer", tokens, unigram)
        error = _refusal(draft, generation, tmp_path / "target")
        assert (error is None) == (first is None)
        assert error is None or f"2 tokens differ, the first of which is {first}" in error.message
    assert _refusal(draft, make_generation(), tmp_path / "target") is None  # there is nothing known


def test_the_program_itself_is_no_draft(tmp_path: Path) -> None:
    draft = _draft(tmp_path / "draft")
    error = _refusal(draft, make_generation(), tmp_path / "draft")
    assert error is not None
    assert "it is the program itself" in error.message


def test_before_the_export_the_models_own_files_tell(tmp_path: Path) -> None:
    _tokenizer(tmp_path / "draft", ["a", "b"])
    draft = _draft(tmp_path / "draft")
    model = tmp_path / "model"
    _tokenizer(model, ["a", "b"])
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 100}
    (model / "config.json").write_text(json.dumps(config))
    spec = ExportSpec(hf=HfModel(folder=str(model)), generation=ExportGeneration(context=256))
    assert _refusal(draft, None, spec=spec) is None
    longer = spec.model_copy(update={"generation": ExportGeneration(context=300)})
    assert "a context of 256" in str(_refusal(draft, None, spec=longer))
    _tokenizer(model, ["a", "c"])
    assert "its tokenizer is another one: 1 token" in str(_refusal(draft, None, spec=spec))
    (model / "config.json").write_text(json.dumps({**config, "vocab_size": 99}))
    assert "the program one of 99" in str(_refusal(draft, None, spec=spec))


def test_a_draft_goes_to_the_device_with_the_program(tmp_path: Path) -> None:
    provenance = make_program_folder(tmp_path / "program")
    runner = make_runner(tmp_path / "runner")
    weights = tmp_path / "draft" / "weights.ptd"
    made = _draft(tmp_path / "draft")
    weights.write_bytes(b"weights")
    folders = tmp_path / "program", provenance, tmp_path / "state" / "inputs.txt"
    plain = make_bundle(runner, *folders)
    bundle = make_bundle(runner, *folders, draft=replace(made, data=(weights,)))
    more = bundle.files[len(plain.files) :]
    assert [(f.path, Path(f.source)) for f in more] == [
        ("draft/program.pte", made.path), ("draft/weights.ptd", weights),
    ]  # fmt: skip
    assert sum(f.size_bytes for f in more) == made.draft.size_bytes + 7
    assert bundle.process.argv == (
        *plain.process.argv, "--draft", "{bundle}/draft/program.pte",
        "--draft-data", "{bundle}/draft/weights.ptd",
    )  # fmt: skip
    assert (bundle.draft, plain.draft) == (made.draft, None)
    assert program_digest(bundle) == program_digest(plain)


def test_requests_of_times_and_memory_have_the_draft(tmp_path: Path) -> None:
    draft = _draft(tmp_path / "draft", get_rewind=(129,)).draft
    draft = draft.model_copy(update={"load_mode": "file"})
    loaded = make_loaded(benchmark={"generation": {"speculation": "model:/draft/program.pte"}})
    generation = make_generation(methods=_VERIFYING, expected=(make_expected(),))
    work = make_workload(loaded, generation, Path(), draft=draft)
    files = write_request(work, tmp_path)
    lines = {name: path.read_bytes().splitlines() for name, path in files.items()}
    drafting = [name for name, found in lines.items() if b"speculation draft" in found]
    assert drafting == ["generation/timing.txt", "generation/memory.txt"]
    for name, found in lines.items():
        own = [line for line in found if line.startswith(b"draft")]
        expected = [
            b"draft forward prefill 63 1 256", b"draft_rewind 129", b"draft_load_mode file",
        ]  # fmt: skip
        assert own == (expected if name in drafting else [])


def test_a_point_has_the_drafts_time(tmp_path: Path) -> None:
    draft = _draft(tmp_path / "draft").draft
    counts: dict[str, Any] = {"calls": 3, "verified_calls": 2, "proposed": 8, "accepted": 5}
    run = generated("point-0", 5, [1.0] * 8, **counts, draft_ms=620.0)
    work = make_work(speculation="model:/x.pte", draft=draft)
    [point] = make_points(work, [make_generated(run, run)], Path())
    assert point.speculation is not None
    assert point.speculation.draft_ms == 1240
    assert point.speculation.text.endswith("62 % of 16 proposed tokens accepted, draft 1.24 s")
