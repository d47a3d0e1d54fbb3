"""A program on a device that is given prompts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from etdeploy.bench.text.text_generator import Spoken, opened_speaker
from etdeploy.core import cancel
from etdeploy.core.errors import Interrupted, OutputError, RunError, UsageError
from etdeploy.devices.base import Bundle, Device, ProcessLaunch, RunOutcome
from etdeploy.runner.generation import Sampling
from tests.support.runtime_values import make_recipe
from tests.support.talk_values import GENERATION, STOP, TalkingDevice, printing

_BUNDLE = Bundle(files=(), launch=ProcessLaunch(argv=("runner",)))


def _say(
    device: TalkingDevice, tmp_path: Path, on_token: Callable[[int], None], **given: Any
) -> Spoken:
    recipe = make_recipe(**given)
    log = tmp_path / "log" / "text.txt"
    with opened_speaker(cast(Device, device), _BUNDLE, GENERATION, recipe, log) as speaker:
        return speaker.say((5, 6), 3, Sampling(top_k=4, seed=7), on_token)


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
    with pytest.raises(RunError, match="the runner printed 'hello' where a token id belongs"):
        _say(device, tmp_path, lambda _: None)


def test_a_runner_that_fails_is_told_with_its_words_and_its_log(tmp_path: Path) -> None:
    said = "etdeploy-runner: error: point prompt: the prompt has the id 6\n"
    device = TalkingDevice(lambda *_: RunOutcome(4, None, "", said, 0.1))
    with pytest.raises(RunError, match="exit code 4 in the generation pass: point pro") as caught:
        _say(device, tmp_path, lambda _: None)
    assert caught.value.log is not None
    assert caught.value.log.read_text() == said
    assert not device.open


def test_a_time_limit_is_told_with_the_option_that_raises_it(tmp_path: Path) -> None:
    device = TalkingDevice(lambda *_: RunOutcome(None, None, "", "", 9.0, timed_out=True))
    with pytest.raises(RunError, match="took longer than 9 s") as caught:
        _say(device, tmp_path, lambda _: None, benchmark={"timeout_s": 9})
    assert "--set benchmark.timeout_s=18" in str(caught.value.remedy)


def test_a_stop_of_one_generation_leaves_the_run_going(tmp_path: Path) -> None:
    def end(on_line: Callable[[str], None], _: object) -> RunOutcome:
        on_line("1")
        stop.set()
        cancel.checkpoint()
        raise AssertionError

    device, stop = TalkingDevice(end, printing([4])), cancel.Flag(cancel.current())
    with opened_speaker(
        cast(Device, device), _BUNDLE, GENERATION, make_recipe(), tmp_path / "log"
    ) as speaker:
        with pytest.raises(Interrupted):
            speaker.say((5,), 3, Sampling(), lambda _: None, stop)
        assert not cancel.requested()
        assert speaker.say((5,), 3, Sampling(), lambda _: None).token_ids == (4,)


def test_a_device_that_does_not_stream_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lab does not hand over what a program prints"):
        _say(TalkingDevice(streams=False), tmp_path, lambda _: None)
