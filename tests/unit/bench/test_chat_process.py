"""A program that stays loaded, and what is computed of each prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from etdeploy.bench.chat_process import ChatProcess
from etdeploy.bench.text_generator import (
    open_generator,
)
from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, Interrupted, OutputError, RunError
from etdeploy.devices.base import Bundle, Device, ProcessLaunch, RunOutcome
from etdeploy.program.generation import Generation
from etdeploy.runner.generation import Sampling
from tests.support.runtime_values import make_recipe
from tests.support.talk_values import GENERATION, STOP, ListeningTalk, TalkingDevice, answered, told

_BUNDLE = Bundle(files=(), launch=ProcessLaunch(argv=("runner",)))
_WELL = RunOutcome(0, None, "", "", 1.0)
Lines = list[str | Callable[[], None]]


@contextmanager
def _opened(
    tmp_path: Path,
    *talks: ListeningTalk,
    generation: Generation = GENERATION,
    device: TalkingDevice | None = None,
) -> Iterator[ChatProcess]:
    opened = cast(Device, device or TalkingDevice(talks=talks))
    recipe = make_recipe(runtime={"threads": 3}, benchmark={"timeout_s": 9})
    with (
        open_generator(opened, _BUNDLE, generation, recipe, tmp_path / "log") as generator,
        ChatProcess(generator, idle_timeout_s=7) as chat,
    ):
        yield chat


def _asked(line: str) -> tuple[int, int, float, list[int]]:
    """Position, number of new tokens, temperature and prompt of a question to the runner."""
    kind, position, new, temperature, *others = line.split()
    assert (kind, others[:5]) == ("answer", ["0", "1.0", "0", "0.0", "1.0"])
    return int(position), int(new), float(temperature), [int(each) for each in others[5:]]


def _nothing(_token: int) -> None:
    pass


def test_only_what_is_new_is_computed(tmp_path: Path) -> None:
    talk = ListeningTalk(
        [told([5, 6, STOP], [3]), told([8], [2]), told([9], [1], "new_tokens")], _WELL
    )
    heard: list[int] = []
    with _opened(tmp_path, talk) as chat:
        first = answered(chat, (1, 2, 3), 9, Sampling(), heard.append)
        second = answered(chat, (1, 2, 3, 5, 6, 7, 4), 9, Sampling(temperature=0.5), heard.append)
        third = answered(chat, (1, 2, 3), 1, Sampling(), heard.append)
    # The stop token was never fed back, and a prompt's last token gives the logits.
    assert [_asked(line) for line in talk.said] == [
        (0, 9, 0.0, [1, 2, 3]), (5, 9, 0.5, [7, 4]), (2, 1, 0.0, [3]),
    ]  # fmt: skip
    assert heard == [5, 6, STOP, 8, 9]
    assert (first.token_ids, first.first_token_ms, first.token_ms) == ((5, 6, STOP), 10, (2, 2))
    assert [said.prefilled for said in (first, second, third)] == [3, 2, 1]
    assert [said.stopped for said in (first, second, third)] == [True, True, False]
    assert talk.closed


def test_a_cache_that_forgets_is_filled_anew_where_it_cannot_go_back(tmp_path: Path) -> None:
    talk = ListeningTalk([told([5, 6, STOP], [3]), told([8], [1]), told([9], [3])], _WELL)
    ring = GENERATION.model_copy(update={"rewind": 2})
    with _opened(tmp_path, talk, generation=ring) as chat:
        answered(chat, (1, 2, 3), 9, Sampling(), _nothing)
        answered(chat, (1, 2, 3, 5, 7), 1, Sampling(), _nothing)
        answered(chat, (1, 2, 4), 1, Sampling(), _nothing)
    # Position 4 is one before the fifth; position 2 is three before it, though the cache held four
    # tokens and one more meanwhile.
    assert [line.split()[1] for line in talk.said] == ["0", "4", "0"]
    assert talk.said[2].endswith(" 1 2 4")


def test_a_stop_ends_the_answer_and_keeps_what_came_of_it(tmp_path: Path) -> None:
    stop = cancel.Flag(cancel.current())
    answer: Lines = [
        "taken 2",
        "token 5 1000",
        "token 6 1000",
        stop.set,
        "token 7 1000",
        "token 8 1",
    ]
    talk = ListeningTalk([answer, told([9], [1])], _WELL)
    with _opened(tmp_path, talk) as chat:
        with pytest.raises(Interrupted):
            answered(chat, (1, 2), 9, Sampling(), _nothing, stop)
        assert answered(chat, (1, 2, 5, 6, 7), 9, Sampling(), _nothing).token_ids == (9,)
    assert talk.said[1] == "stop"
    assert _asked(talk.said[2]) == (4, 9, 0.0, [7])


def test_an_earlier_stop_reaches_the_runner_with_the_request(tmp_path: Path) -> None:
    stop = cancel.Flag(cancel.current())
    stop.set()
    talk = ListeningTalk([told([5, 6])], _WELL)
    with _opened(tmp_path, talk) as chat, pytest.raises(Interrupted):
        answered(chat, (1, 2), 9, Sampling(), _nothing, stop)
    assert talk.said[1:] == ["stop"]
    assert talk.writes == 1


def test_a_stop_in_the_prefill_keeps_what_was_computed(tmp_path: Path) -> None:
    stop = cancel.Flag(cancel.current())
    talk = ListeningTalk([[stop.set, "taken 2", "taken 3"], told([9], [2])], _WELL)
    with _opened(tmp_path, talk) as chat:
        with pytest.raises(Interrupted):
            answered(chat, (1, 2, 3, 4), 9, Sampling(), _nothing, stop)
        assert answered(chat, (1, 2, 3, 4), 9, Sampling(), _nothing).prefilled == 2


def test_a_runner_that_was_forgotten_is_started_again(tmp_path: Path) -> None:
    gone = ListeningTalk([told([5], [3])], _WELL)
    again = ListeningTalk([told([6], [4])], _WELL)
    with _opened(tmp_path, gone, again) as chat:
        answered(chat, (1, 2, 3), 9, Sampling(), _nothing)
        assert answered(chat, (1, 2, 3, 4), 9, Sampling(), _nothing).prefilled == 4
    assert [_asked(line) for line in again.said] == [(0, 9, 0.0, [1, 2, 3, 4])]


def test_a_crash_is_told(tmp_path: Path) -> None:
    talk = ListeningTalk([["taken 1"]], RunOutcome(139, "SIGSEGV", "", "boom", 1.0))
    with _opened(tmp_path, talk) as chat, pytest.raises(RunError, match="SIGSEGV"):
        answered(chat, (1,), 9, Sampling(), _nothing)
    assert (tmp_path / "log").read_text() == "boom"
    assert talk.closed


def test_an_answer_that_takes_too_long_is_told(tmp_path: Path) -> None:
    def hang() -> None:
        raise TimeoutError

    slow = RunOutcome(None, None, "", "", 9.0, timed_out=True)
    talk = ListeningTalk([["taken 1", hang]], slow)
    with _opened(tmp_path, talk) as chat, pytest.raises(RunError, match="longer than 9 s"):
        answered(chat, (1,), 9, Sampling(), _nothing)


def test_a_program_that_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    said = "etdeploy-runner: error: method decode cannot be loaded: 32\n"
    talk = ListeningTalk([], RunOutcome(3, None, "", said, 1.0))
    talk.read_line(0)
    with pytest.raises(RunError, match="method decode"), _opened(tmp_path, talk):
        pass
    assert talk.closed


def test_a_device_that_goes_away_is_told_and_the_next_line_starts_anew(tmp_path: Path) -> None:
    def leave() -> None:
        raise DeviceError("it left")

    again = ListeningTalk([told([6], [2])], _WELL)
    with _opened(tmp_path, ListeningTalk([["taken 1", leave]], _WELL), again) as chat:
        with pytest.raises(DeviceError, match="it left"):
            answered(chat, (1, 2), 9, Sampling(), _nothing)
        assert answered(chat, (1, 2), 9, Sampling(), _nothing).prefilled == 2


def test_what_showing_a_token_raises_ends_the_runner(tmp_path: Path) -> None:
    def show(token: int) -> None:
        raise OutputError(f"no reader of {token}")

    talk = ListeningTalk([told([5, 6])], _WELL)
    with _opened(tmp_path, talk) as chat, pytest.raises(OutputError, match="no reader of 5"):
        answered(chat, (1,), 9, Sampling(), show)
    assert talk.closed


@pytest.mark.parametrize("line", ["hello", "token 1", "end soon", "taken x"])
def test_what_tells_nothing_of_an_answer_is_told(tmp_path: Path, line: str) -> None:
    talk = ListeningTalk([[line]], _WELL)
    with _opened(tmp_path, talk) as chat, pytest.raises(RunError, match=f"printed {line!r}"):
        answered(chat, (1,), 9, Sampling(), _nothing)
