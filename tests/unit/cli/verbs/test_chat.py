"""A chat: commands, the conversation, and what ends an answer."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from etdeploy.bench.conversation import Conversation
from etdeploy.cli.verbs import chat as module
from etdeploy.cli.verbs.chat import Chat, start_conversation
from etdeploy.core import cancel
from etdeploy.core.errors import Interrupted, RunError, UsageError
from etdeploy.devices.base import RunOutcome
from etdeploy.program.tokenizer import ChatTemplate, Tokenizer
from etdeploy.runner.generation import Sampling
from etdeploy.session.sampling import resolve_sampling
from tests.support.runtime_values import make_recipe
from tests.support.talk_values import (
    GENERATION,
    STOP,
    Ending,
    ListeningTalk,
    TalkingDevice,
    opened_session,
    printing,
    told,
)
from tests.support.tokenizers import byte_level, save

_WELL = RunOutcome(0, None, "", "", 1.0)
Capture = pytest.CaptureFixture[str]
_TOKENIZER = Tokenizer(Path("tokenizer"), byte_level())
_TEMPLATE = ChatTemplate(
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}", {}, "template"
)


def _saying(text: str) -> Ending:
    return printing((*_TOKENIZER.encode(text), STOP), stopped=True)


@contextmanager
def _chat(
    device: TalkingDevice, tmp_path: Path, *, quiet: bool = True, as_json: bool = False
) -> Iterator[Chat]:
    conversation = Conversation(_TOKENIZER, _TEMPLATE, GENERATION)
    with opened_session(device, tmp_path, tokenizer=_TOKENIZER) as session:
        yield Chat(session, conversation, Sampling, 100, quiet, as_json)


def _prompts(device: TalkingDevice) -> list[str]:
    return [_TOKENIZER.decode(ids) for ids in device.prompts]


def test_the_whole_conversation_is_the_prompt(tmp_path: Path, capsys: Capture) -> None:
    device = TalkingDevice(_saying("hi"), _saying("no"), _saying("yes"))
    with _chat(device, tmp_path) as chat:
        chat.conversation.system = "Be."
        for line in ("one", "", "two", "/reset", "three"):
            chat.process(line)
    assert _prompts(device) == ["s:Be.;u:one;", "s:Be.;u:one;a:hi;u:two;", "s:Be.;u:three;"]
    assert capsys.readouterr() == ("hi\nno\nyes\n", "")


def test_an_answer_is_followed_by_how_fast_it_came(tmp_path: Path, capsys: Capture) -> None:
    with _chat(TalkingDevice(_saying("hi")), tmp_path, quiet=False) as chat:
        chat.process("one")
    assert re.findall(r"\d[\d.]*", capsys.readouterr().err) == [
        "10.00", "600.0", "6", "500.0", "3", "260",
    ]  # fmt: skip


def test_an_unknown_command_is_not_sent(tmp_path: Path, capsys: Capture) -> None:
    device = TalkingDevice()
    with _chat(device, tmp_path) as chat:
        chat.process("/quit now")
    shown = capsys.readouterr().err
    assert "/quit" in shown
    assert "/reset" in shown
    assert device.given == []


def test_a_conversation_that_is_too_long_goes_on_without_the_line(
    tmp_path: Path, capsys: Capture
) -> None:
    device = TalkingDevice(_saying("hi"), _saying("ho"))
    with _chat(device, tmp_path) as chat:
        for line in ("one", "x" * 80, "two"):
            chat.process(line)
    shown = capsys.readouterr().err
    assert "context of 64" in shown
    assert "/reset" in shown
    assert _prompts(device)[-1] == "u:one;a:hi;u:two;"


def test_the_oldest_lines_are_dropped_with_a_message(tmp_path: Path, capsys: Capture) -> None:
    device = TalkingDevice(_saying("hi"), _saying("ho"), _saying("yes"))
    with _chat(device, tmp_path) as chat:
        for line in ("one" * 5, "two", "three" * 3):
            chat.process(line)
    assert _prompts(device)[-1] == "u:two;a:ho;u:threethreethree;"
    assert "--context 128" in capsys.readouterr().err


def test_each_line_is_answered_by_a_line_of_json(tmp_path: Path, capsys: Capture) -> None:
    device = TalkingDevice(_saying("hi"))
    with _chat(device, tmp_path, quiet=False, as_json=True) as chat:
        chat.process("one")
        chat.process("x" * 80)
    answer, refused = map(json.loads, capsys.readouterr().out.splitlines())
    assert (answer["prompt"], answer["text"], answer["stopped"]) == ("one", "hi", "stop_token")
    assert (answer["ttft_ms"], answer["decode_tokens_per_s"]) == (10.0, 500.0)
    assert refused["prompt"] == "x" * 80
    assert "context of 64" in refused["error"]


def test_a_full_context_is_told_even_when_quiet(tmp_path: Path, capsys: Capture) -> None:
    device = TalkingDevice(printing(_TOKENIZER.encode("hi")))
    with _chat(device, tmp_path) as chat:
        chat.process("one")
    assert "--context 128" in capsys.readouterr().err


def test_an_answer_that_repeats_itself_is_stopped(tmp_path: Path, capsys: Capture) -> None:
    [token] = _TOKENIZER.encode("a")

    def looping(on_line: Callable[[str], None], _: object) -> RunOutcome:
        for _each in range(200):
            on_line(str(token))
            cancel.checkpoint()
        raise AssertionError

    device = TalkingDevice(looping, looping, _saying("yes"))
    with _chat(device, tmp_path) as chat:
        chat.process("one")
        told = capsys.readouterr()
        assert (told.out, "--repetition-penalty" in told.err) == ("a" * 96 + "\n", True)
    with _chat(device, tmp_path, as_json=True) as chat:
        chat.process("one")
        assert json.loads(capsys.readouterr().out)["stopped"] == "repetition"
        chat.process("/reset")
        chat.process("two")
        assert json.loads(capsys.readouterr().out)["text"] == "yes"


def test_each_answer_has_another_seed_unless_one_is_named(tmp_path: Path, capsys: Capture) -> None:
    drawn: dict[bool, list[int]] = {}
    for seeded in (True, False):
        asked = {"temperature": 1.0, **({"seed": 5} if seeded else {})}
        recipe = make_recipe(model={"hf": "m"}, benchmark={"generation": asked})
        device = TalkingDevice(_saying("hi"), _saying("ho"))
        with _chat(device, tmp_path) as chat:
            chat = replace(chat, sampling=partial(resolve_sampling, recipe, {}))
            for line in ("one", "two"):
                chat.process(line)
        lines = [files["request.txt"].decode().splitlines()[0] for files in device.given]
        drawn[seeded] = [int(line.split()[4]) for line in lines]
    assert capsys.readouterr().out == "hi\nho\n" * 2
    assert drawn[True] == [5, 5]
    assert len({5, *drawn[False]}) == 3


class Typed(io.StringIO):
    """What somebody writes on a keyboard."""

    def isatty(self) -> bool:
        return True


def test_ctrl_c_ends_the_answer_and_not_the_chat(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Typed())

    def stopped(on_line: Callable[[str], None], _: object) -> RunOutcome:
        for token in _TOKENIZER.encode("half"):
            on_line(str(token))
        cancel.current().set()
        cancel.checkpoint()
        raise AssertionError

    device = TalkingDevice(stopped, _saying("yes"))
    with _chat(device, tmp_path, quiet=False) as chat:
        chat.process("one")
        chat.process("two")
    assert _prompts(device)[-1] == "u:one;a:half;u:two;"
    out, err = capsys.readouterr()
    assert out == "half\nyes\n"
    assert err.startswith("[stopped]\n")


def test_ctrl_c_is_handed_to_the_runner_and_a_second_one_ends_the_chat(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Typed())

    def press() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def press_again() -> None:
        press()
        cancel.checkpoint()

    said = told(_TOKENIZER.encode("half"))[:3]
    talk = ListeningTalk([[*said, press, "token 33 1"], [press, press_again]], _WELL)
    with cancel.trapped_signals(), _chat(TalkingDevice(talks=[talk]), tmp_path) as chat:
        chat.process("one")
        assert talk.said[1:] == ["stop"]
        with pytest.raises(Interrupted):
            chat.process("two")
        assert talk.closed
    assert capsys.readouterr().out.startswith("ha")


def test_ctrl_c_before_the_answer_begins_is_for_the_answer(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Typed())
    said = told(_TOKENIZER.encode("half"))
    talk = ListeningTalk([[*said[:2], "end stop"], told(_TOKENIZER.encode("yes"))], _WELL)
    with cancel.trapped_signals(), _chat(TalkingDevice(talks=[talk]), tmp_path) as chat:
        own = chat.conversation.ask

        def asked(*of: Any) -> Any:
            os.kill(os.getpid(), signal.SIGINT)
            return own(*of)

        monkeypatch.setattr(chat.conversation, "ask", asked)
        chat.process("one")
        assert talk.said[1:] == ["stop"]
        monkeypatch.setattr(chat.conversation, "ask", own)
        chat.process("two")
    assert capsys.readouterr().out.endswith("\nyes\n")


def test_ctrl_c_after_an_answer_ends_the_chat(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("two\n"))
    with cancel.trapped_signals(), _chat(TalkingDevice(_saying("hi")), tmp_path) as chat:
        chat.process("one")
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted):
            module._next_line()
    assert capsys.readouterr().out == "hi\n"


def test_where_nobody_types_ctrl_c_ends_the_chat(tmp_path: Path) -> None:
    def press() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        cancel.checkpoint()

    talk = ListeningTalk([[press]], _WELL)
    with (
        cancel.trapped_signals(),
        _chat(TalkingDevice(talks=[talk]), tmp_path) as chat,
        pytest.raises(Interrupted),
    ):
        chat.process("one")


def test_a_stop_of_everything_ends_the_chat(tmp_path: Path) -> None:
    def stopped(*_: object) -> RunOutcome:
        os.kill(os.getpid(), signal.SIGTERM)
        while True:  # the main thread handles it
            cancel.checkpoint()

    with (
        cancel.trapped_signals(),
        _chat(TalkingDevice(stopped), tmp_path) as chat,
        pytest.raises(Interrupted),
    ):
        chat.process("one")


def test_a_runner_that_crashes_ends_the_chat(tmp_path: Path) -> None:
    crash = TalkingDevice(lambda *_: RunOutcome(139, "SIGSEGV", "", "", 0.1))
    with _chat(crash, tmp_path) as chat, pytest.raises(RunError, match="SIGSEGV"):
        chat.process("one")


def test_lines_end_with_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(" one \r\n\n/exit"))
    lines = [module._next_line() for _ in range(4)]
    assert lines == ["one", "", "/exit", None]


@pytest.mark.parametrize("missing", ["tokenizer", "chat template"])
def test_a_model_that_cannot_chat_is_refused(tmp_path: Path, missing: str) -> None:
    save(byte_level(), tmp_path, template=None)
    tokenizer = None if missing == "tokenizer" else Tokenizer(tmp_path, byte_level())
    with (
        opened_session(TalkingDevice(), tmp_path, tokenizer=tokenizer) as session,
        pytest.raises(UsageError, match=f"no {missing}"),
    ):
        start_conversation(session)
