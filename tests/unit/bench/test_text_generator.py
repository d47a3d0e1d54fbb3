"""A program on a device that is given prompts, and the text of its answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from etdeploy import __version__
from etdeploy.backends.values import Simulated
from etdeploy.bench.snapshot import (
    Snapshot,
    SnapshotHeader,
    program_digest,
    require_replaceable,
    save_snapshot,
)
from etdeploy.bench.text_generator import (
    Answer,
    GenerationOutput,
    StreamedText,
    find_repetition,
    make_answer,
    open_generator,
    remaining_context,
    summary,
)
from etdeploy.core import cancel
from etdeploy.core.errors import Interrupted, OutputError, RunError, UsageError
from etdeploy.devices.base import Bundle, BundleFile, Device, ProcessLaunch, RunOutcome
from etdeploy.program.generation import GenerationEncoder
from etdeploy.program.tokenizer import Tokenizer
from etdeploy.runner.generation import Sampling
from tests.support.runtime_values import make_recipe
from tests.support.talk_values import GENERATION, STOP, TalkingDevice, printing
from tests.support.tokenizers import byte_level

_BUNDLE = Bundle(files=(), launch=ProcessLaunch(argv=("runner",)))


def _say(
    device: TalkingDevice, tmp_path: Path, on_token: Callable[[int], None], **given: Any
) -> GenerationOutput:
    recipe = make_recipe(**given)
    log = tmp_path / "log" / "text.txt"
    with open_generator(cast(Device, device), _BUNDLE, GENERATION, recipe, log) as generator:
        return generator.generate((5, 6), 3, Sampling(top_k=4, seed=7), on_token)


def test_an_encoder_gets_its_inputs_with_the_request(tmp_path: Path) -> None:
    device, log = TalkingDevice(printing([1])), tmp_path / "log.txt"
    inputs = {"encoder-0.bin": tmp_path / "0.bin", "encoder-0.txt": tmp_path / "list.txt"}
    encoder = GenerationEncoder(prompt_ids=(5,), is_real=True, audio_s=None, preprocess_ms=1.0)
    generation = GENERATION.model_copy(update={"encoder": encoder})
    for path in inputs.values():
        path.write_bytes(b"values")
    with open_generator(
        cast(Device, device), _BUNDLE, generation, make_recipe(), log, inputs
    ) as generator:
        generator.generate((5, 6), 1, Sampling(), lambda _: None)
    assert device.given[0]["encoder-0.bin"] == b"values"
    assert b"encoder encoder 1 encoder-0.txt\n" in device.given[0]["request.txt"]


def test_tokens_come_one_by_one_and_results_at_the_end(tmp_path: Path) -> None:
    device, tokens = TalkingDevice(printing([1, 2, 3])), list[int]()
    generated = _say(device, tmp_path, tokens.append, runtime={"threads": 3})
    assert tokens == [1, 2, 3]
    assert (generated.token_ids, generated.first_token_ms) == ((1, 2, 3), 10.0)
    assert device.prompts == [(5, 6)]
    lines = device.given[0]["request.txt"].decode().splitlines()
    assert lines == [
        "sampling 0.0 4 1.0 7 0.0 1.0",
        f"stop {STOP}",
        "point prompt 0 3 1 prompt.bin",
    ]
    words = dict(zip(device.arguments[0][::2], device.arguments[0][1::2], strict=True))
    assert (words["--program"], words["--threads"], words["--stream"]) == (
        "{bundle}/program.pte", "3", "1",
    )  # fmt: skip
    assert not device.open


IMAGE = b"keys and values"


def _saved(tmp_path: Path) -> Path:
    """A cache of the tokens 5, 6, 7, 8."""
    path, image = tmp_path / "a.cache", tmp_path / "image"
    image.write_bytes(IMAGE)
    header = SnapshotHeader(program="abc", lora=None, tokens=(5, 6, 7, 8), furthest=4)
    assert save_snapshot(path, header, image) == Snapshot.open(path).header
    return path


def test_a_prompt_may_have_a_part_of_a_saved_text(tmp_path: Path) -> None:
    load = Snapshot.open(_saved(tmp_path))
    assert b"".join(load.parts()) == IMAGE
    assert [load.reused(p, None) for p in ((5, 6, 7, 3), (6, 5), (5, 7, 7))] == [3, 0, 0]
    # A ring buffer cannot go back from 4 to 3.
    assert [load.reused((5, 6, 7, 3), rewind) for rewind in (0, 1)] == [0, 3]
    assert load.reused((5, 6, 7, 8, 3), 0) == 4


@pytest.mark.parametrize(
    ("damage", "message", "remedy"),
    [
        (lambda file: file[:-3], "it has .* bytes, and was saved with", "--save-cache"),
        (lambda file: file[:40], "its first line is incomplete|is of etdeploy", "--save-cache"),
        (lambda file: file[:-1] + b"!", "its bytes are not those", "--save-cache"),
        (lambda file: file.replace(b"[5,6", b"[5,9"), "its bytes are not those", "--save-cache"),
        (lambda file: b"other" + file, "no cache of etdeploy's", "--save-cache"),
        (lambda file: file[:0], "no cache of etdeploy's", "--save-cache"),
        (lambda file: file.replace(b'cache":1', b'cache":2'), "is of etdeploy", "save the cache"),
        (
            lambda file: file.replace(f'"release":"{__version__}"'.encode(), b'"release":"0.0.1"'),
            r"is of etdeploy 0\.0\.1, and this is", "save the cache",
        ),
    ],
)  # fmt: skip
def test_a_file_that_is_no_sound_cache_is_refused(
    tmp_path: Path, damage: Callable[[bytes], bytes], message: str, remedy: str
) -> None:
    path = _saved(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UsageError, match=message) as caught:
        Snapshot.open(path)
    assert caught.value.place == str(path)
    assert remedy in (caught.value.remedy or "")


def test_a_cache_of_another_program_or_adapter_is_refused(tmp_path: Path) -> None:
    found = Snapshot.open(_saved(tmp_path))
    found.require("abc", None)
    with pytest.raises(UsageError, match="another program"):
        found.require("abd", None)
    with pytest.raises(UsageError, match="no adapter, and this text has the adapter poems"):
        found.require("abc", "poems")
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        Snapshot.open(tmp_path / "none")


def test_no_other_file_is_replaced_by_a_cache(tmp_path: Path) -> None:
    other, path = tmp_path / "notes.txt", _saved(tmp_path)
    other.write_text("mine")
    require_replaceable(path)
    require_replaceable(tmp_path / "new.cache")
    for wrong, why in (
        (other, "is not replaced"), (tmp_path, "a folder"), (other / "x", "does not exist"),
        (tmp_path / "none" / "x", "does not exist"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=why):
            require_replaceable(wrong)
    # It came there while the text was generated.
    with pytest.raises(UsageError, match="is not replaced"):
        save_snapshot(other, Snapshot.open(path).header, tmp_path / "image")
    assert other.read_text() == "mine"


def test_weights_in_other_files_are_part_of_the_program() -> None:
    def digest(**files: str) -> str:
        listed = [
            BundleFile(source="s", path=name.replace("_", "."), sha256=sha, size_bytes=1)
            for name, sha in files.items()
        ]
        return program_digest(_BUNDLE.model_copy(update={"files": tuple(listed)}))

    alone = digest(program_pte="a", runner="r")
    assert alone == digest(program_pte="a", runner="another") == "a"
    assert len({alone, digest(program_pte="a", w_ptd="b"), digest(program_pte="a", w_ptd="c")}) == 3


def test_what_showing_a_token_raises_ends_the_runner(tmp_path: Path) -> None:
    asked: list[bool] = []

    def end(on_line: Callable[[str], None], _: object) -> RunOutcome:
        on_line("1")
        asked.append(cancel.requested())
        on_line("2")
        raise Interrupted

    def show(token: int) -> None:
        raise OutputError(f"no reader of {token}")

    with pytest.raises(OutputError, match="no reader of 1"):
        _say(TalkingDevice(end), tmp_path, show)
    assert asked == [True]
    assert not cancel.requested()


def test_what_is_no_token_is_told(tmp_path: Path) -> None:
    device = TalkingDevice(printing([1], lines=["hello"]))
    with pytest.raises(RunError, match="'hello'"):
        _say(device, tmp_path, lambda _: None)


def test_a_runner_that_fails_is_told_with_its_words_and_its_log(tmp_path: Path) -> None:
    said = "etdeploy-runner: error: point prompt: the prompt has the id 6\n"
    device = TalkingDevice(lambda *_: RunOutcome(4, None, "", said, 0.1))
    with pytest.raises(RunError, match="exit code 4") as caught:
        _say(device, tmp_path, lambda _: None)
    assert caught.value.log is not None
    assert caught.value.log.read_text() == said
    assert not device.open


def test_a_stop_of_one_generation_leaves_the_run_going(tmp_path: Path) -> None:
    def end(on_line: Callable[[str], None], _: object) -> RunOutcome:
        on_line("1")
        stop.set()
        cancel.checkpoint()
        raise AssertionError

    device, stop = TalkingDevice(end, printing([4])), cancel.Flag(cancel.current())
    with open_generator(
        cast(Device, device), _BUNDLE, GENERATION, make_recipe(), tmp_path / "log"
    ) as generator:
        with pytest.raises(Interrupted):
            generator.generate((5,), 3, Sampling(), lambda _: None, stop)
        assert not cancel.requested()
        assert generator.generate((5,), 3, Sampling(), lambda _: None).token_ids == (4,)


def test_a_device_that_does_not_stream_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"lab "):
        _say(TalkingDevice(streams=False), tmp_path, lambda _: None)


def _answer(
    new: int = 5,
    *,
    remaining: int = 61,
    requested: int = 5,
    stopped: bool = False,
    first_ms: float = 20,
    prefilled: int = 4,
) -> Answer:
    output = GenerationOutput(
        prefilled=prefilled, first_token_ms=first_ms, token_ms=(4.0,) * (new - 1),
        token_ids=tuple(range(new)), stopped=stopped,
    )  # fmt: skip
    return make_answer(output, (1, 2, 3, 4), "text", remaining, requested)


def test_rates_are_of_the_prompt_and_of_the_tokens_after_the_first() -> None:
    answer = _answer()
    assert (answer.prompt_tokens, answer.ttft_ms) == (4, 20.0)
    assert answer.prefill_tokens_per_s == pytest.approx(200)
    assert answer.decode_tokens_per_s == pytest.approx(250)
    assert _answer(1).decode_tokens_per_s is None
    assert _answer(first_ms=0).prefill_tokens_per_s == 0


@pytest.mark.parametrize(
    ("asked", "stopped", "words"),
    [
        ({}, "max_new_tokens", "ended by --max-new-tokens 5"),
        ({"stopped": True}, "stop_token", "ended by the stop token 4"),
        (
            {"remaining": 5, "requested": 9},
            "context_full",
            "ended because the context of 64 tokens is full (--context 128)",
        ),
        ({"remaining": 5, "requested": 9, "stopped": True}, "stop_token", "stop token"),
    ],
)
def test_the_end_has_a_reason(asked: dict[str, int], stopped: str, words: str) -> None:
    answer = _answer(**asked)  # type: ignore[arg-type]
    assert answer.stopped == stopped
    assert words in summary(answer, GENERATION)


def test_what_was_in_the_cache_is_not_counted_as_prefilled() -> None:
    answer = _answer(prefilled=1)
    assert (answer.prompt_tokens, answer.cached_tokens) == (4, 3)
    assert answer.prefill_tokens_per_s == pytest.approx(50)
    assert "50.0 tokens/s (1 of 4)" in summary(answer, GENERATION)


def test_a_simulated_text_has_no_times() -> None:
    simulated = Simulated(backend="qnn", by="QNN 2.49.40", soc="SM8750")
    text = summary(_answer(), GENERATION, simulated)
    assert "simulated by QNN 2.49.40" in text
    assert "tokens/s" not in text
    assert " ms" not in text


@pytest.mark.parametrize(("tokens", "words"), [(65, "--context 128"), (0, "--prompt")])
def test_a_prompt_that_cannot_be_answered(tokens: int, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        remaining_context(GENERATION, tokens)
    assert words in str(caught.value.remedy)


_TOKENIZER = Tokenizer(Path("tokenizer"), byte_level())


def test_text_comes_in_pieces_and_without_its_stop_token() -> None:
    shown: list[str] = []
    stop = _TOKENIZER.encode("!")[0]
    streamed = StreamedText(_TOKENIZER, _TOKENIZER.encode("a"), (stop,), shown.append)
    for token in (*_TOKENIZER.encode("b\u00e9"), stop):
        streamed.take(token)
    streamed.end()
    assert (shown, streamed.text) == (["b", "\u00e9"], "b\u00e9")
    assert streamed.tokens[-1] == stop


def test_half_a_character_at_the_end_is_shown() -> None:
    shown: list[str] = []
    streamed = StreamedText(_TOKENIZER, (), (), shown.append)
    streamed.take(_TOKENIZER.encode("\u00e9")[0])
    assert shown == []
    streamed.end()
    assert (shown, streamed.text) == (["\ufffd"], "\ufffd")


def test_without_a_tokenizer_ids_are_shown() -> None:
    shown: list[str] = []
    streamed = StreamedText(None, (1,), (9,), shown.append)
    for token in (3, 9):
        streamed.take(token)
    streamed.end()
    assert ("".join(shown), streamed.text) == ("3 9 ", None)


@pytest.mark.parametrize(
    ("tokens", "period"),
    [
        ([7] * 96, 1),
        ([7] * 95, 0),
        ([1, 2, 3] * 33, 3),
        ([5] * 200 + [6], 0),
        ([*range(50)] * 4, 50),
        ([*range(50)] * 3, 0),
        ([*range(300)], 0),
    ],
)
def test_a_text_that_repeats_itself(tokens: list[int], period: int) -> None:
    assert find_repetition(tokens) == period
