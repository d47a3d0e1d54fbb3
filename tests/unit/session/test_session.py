"""Sessions of a runner that only answers: turns of branches, states, and what is refused."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import etdeploy
from etdeploy.core.errors import DeviceError, RunError, UsageError
from etdeploy.devices.base import DeviceState, RunOutcome
from etdeploy.program.generation import GenerationEncoder
from etdeploy.session.sampling import resolve_sampling
from etdeploy.session.state import SavedState
from tests.support.runtime_values import make_recipe
from tests.support.talk_values import (
    GENERATION,
    ListeningTalk,
    TalkingDevice,
    opened_session,
    printing,
    told,
)

_WELL = RunOutcome(0, None, "", "", 1.0)


def _said(talk: ListeningTalk) -> list[str]:
    """The lines; of answers, only the position."""
    return [" ".join(line.split()[:2]) if line.startswith("answer") else line for line in talk.said]


def test_a_branch_saves_what_it_replaces(tmp_path: Path) -> None:
    talk = ListeningTalk(
        [told([5, 6], [3], "new_tokens"), told([7, 8], [1], "new_tokens"), ["saved"],
         told([9], [1], "new_tokens"), ["removed"]], _WELL,
    )  # fmt: skip
    with opened_session(TalkingDevice(talks=[talk]), tmp_path) as session:
        list(session.generate([1, 2, 3], 2))
        branch = session.fork()
        list(branch.generate([4], 2, append=True))
        list(session.generate(None, 1))
        assert (branch.tokens, session.tokens) == ((1, 2, 3, 5, 6, 4, 7, 8), (1, 2, 3, 5, 6, 9))
        branch.close()
        with pytest.raises(UsageError, match="is closed"):
            branch.fork()
    # The branch begins in the cache that it shares, beyond which the session had nothing.
    assert _said(talk) == [
        "answer 0", "answer 4", "save branch-2.bin", "answer 4", "remove branch-2.bin",
    ]  # fmt: skip


def test_a_state_has_the_whole_text(tmp_path: Path) -> None:
    device = TalkingDevice(talks=[ListeningTalk(
        [told([5, 6], [3], "new_tokens"), ["saved"], told([8], [1], "new_tokens"),
         ["loaded"], ["removed"], told([8], [1], "new_tokens")], _WELL,
    )])  # fmt: skip
    device.files["image.bin"] = b"image"
    with opened_session(device, tmp_path) as session:
        list(session.generate([1, 2, 3], 2))
        state = session.save(tmp_path / "a.cache")
        assert (state.tokens, state.position) == ((1, 2, 3, 5, 6), 4)
        list(session.generate([4], 1, append=True))
        session.restore(SavedState.read(tmp_path / "a.cache"))
        assert session.tokens == state.tokens
        assert device.files["sent.bin"] == b"image"
        list(session.generate(None, 1))
        assert session.timings.cached_tokens == 4
    copy = state.write(tmp_path / "b.cache")
    assert SavedState.read(tmp_path / "b.cache").tokens == copy.tokens
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not replaced"):
        state.write(tmp_path / "notes.txt")


def test_a_device_that_is_lost_is_said_to_be(tmp_path: Path) -> None:
    class Unplugged(TalkingDevice):
        lost = False

        def state(self) -> DeviceState:
            if self.lost:
                raise DeviceError("it is away")
            return super().state()

    def leave() -> None:
        device.lost = True
        raise DeviceError("no answer")

    device = Unplugged(talks=[ListeningTalk([["taken 2", "token 5 1000", leave]], _WELL)])
    with opened_session(device, tmp_path) as session:
        text = session.generate([1, 2], 9)
        assert next(text) == "5 "
        with pytest.raises(etdeploy.DeviceLostError, match="no answer") as caught:
            next(text)
        assert "session.reopen()" in (caught.value.remedy or "")
        assert (session.tokens, text.answer.stopped) == ((1, 2, 5), "interrupted")


def test_an_error_of_a_device_that_is_there_is_itself(tmp_path: Path) -> None:
    def refuse() -> None:
        raise DeviceError("no room")

    talk = ListeningTalk([[refuse]], _WELL)
    with (
        opened_session(TalkingDevice(talks=[talk]), tmp_path) as session,
        pytest.raises(DeviceError, match="no room") as caught,
    ):
        list(session.generate([1, 2], 9))
    assert not isinstance(caught.value, etdeploy.DeviceLostError)


def test_where_no_process_can_be_talked_with_each_text_has_its_own(tmp_path: Path) -> None:
    device = TalkingDevice(printing([5, 6]), printing([7]))
    with opened_session(device, tmp_path) as session:
        text = session.generate([1, 2], 2)
        assert ("".join(text), text.answer.token_ids) == ("5 6 ", (5, 6))
        assert session.timings.token_ms == (2.0,)
        list(session.generate([3], 1, append=True))
        assert device.prompts == [(1, 2), (1, 2, 5, 6, 3)]
        for refused in (session.save, session.fork, lambda: session.logits([1])):
            with pytest.raises(UsageError, match="cannot stream stdin to a running process"):
                refused()


def test_a_model_with_an_encoder_generates_from_its_input(tmp_path: Path) -> None:
    encoder = GenerationEncoder(prompt_ids=(5,), is_real=True, audio_s=None, preprocess_ms=1.0)
    generation = GENERATION.model_copy(update={"encoder": encoder})
    device = TalkingDevice(printing([6, 7]), talks=[ListeningTalk([], _WELL)])
    with opened_session(device, tmp_path, generation=generation) as session:
        assert "".join(session.generate(max_new_tokens=2)) == "6 7 "
        assert device.prompts == [(5,)]
        with pytest.raises(UsageError, match="it generates its text from an input"):
            session.generate([1])
        with pytest.raises(UsageError, match="save is not possible for a model with an encoder"):
            session.save()


def test_a_stop_ends_a_process_of_its_own(tmp_path: Path) -> None:
    stop = threading.Event()
    device = TalkingDevice(lambda on_line, _: _endless(on_line))
    with opened_session(device, tmp_path) as session:
        text = session.generate([1, 2], 50, stop=stop)
        next(text)
        stop.set()
        list(text)
        assert text.answer.stopped == "interrupted"
        assert session.tokens[:3] == (1, 2, 5)


def _endless(on_line: object) -> RunOutcome:
    from etdeploy.core import cancel

    while True:
        on_line("5")  # type: ignore[operator]
        cancel.checkpoint()


def test_what_no_session_can_do(tmp_path: Path) -> None:
    talk = ListeningTalk([told([5], [1], "new_tokens")], RunOutcome(1, None, "", "boom", 1.0))
    with opened_session(TalkingDevice(talks=[talk]), tmp_path) as session:
        with pytest.raises(UsageError, match="no tokenizer"):
            session.encode("a text")
        for tokens in (-1, 1):
            with pytest.raises(UsageError, match="cannot be removed"):
                session.rewind(tokens)
        with pytest.raises(UsageError, match="has not ended"):
            session.generate([1], 1).answer  # noqa: B018
        with pytest.raises(UsageError, match="positions is 3"):
            session.logits([1, 2], positions=3)
        with pytest.raises(UsageError, match="one of them is empty"):
            session.score([1], [])
        with pytest.raises(UsageError, match="has no text"):
            session.kv_cache(0)
        list(session.generate([1], 1))
        with pytest.raises(RunError):
            list(session.generate(None, 1))
    for closed in (session.save, session.fork, lambda: session.generate([1])):
        with pytest.raises(UsageError, match="is closed"):
            closed()
    session.close()


def test_a_recurrent_branch_has_a_copy_from_the_start(tmp_path: Path) -> None:
    talk = ListeningTalk(
        [told([5, 6], [3], "new_tokens"), ["saved"], told([7], [1], "new_tokens"), ["saved"],
         ["loaded"], told([8], [1], "new_tokens")], _WELL,
    )  # fmt: skip
    recurrent = GENERATION.model_copy(update={"rewind": 0})
    with opened_session(TalkingDevice(talks=[talk]), tmp_path, generation=recurrent) as session:
        list(session.generate([1, 2, 3], 2))
        branch = session.fork()
        list(session.generate(None, 1))
        list(branch.generate(None, 1))
        assert branch.timings.cached_tokens == 4
    assert _said(talk) == [
        "answer 0", "save branch-2.bin", "answer 4", "save branch-1.bin",
        "load 4 cached-tokens.bin branch-2.bin", "answer 4",
    ]  # fmt: skip


def test_sampling_is_that_of_the_recipe_unless_a_call_says_more() -> None:
    recipe = make_recipe(model={"hf": "m"}, benchmark={"generation": {"temperature": 0.5}})
    first, second = (resolve_sampling(recipe, {"top_k": 3}) for _ in range(2))
    assert (first.temperature, first.top_k) == (0.5, 3)
    assert first.seed != second.seed
    assert resolve_sampling(recipe, {"seed": 4}).seed == 4
    with pytest.raises(UsageError, match="top_p has no effect at temperature 0"):
        resolve_sampling(recipe, {"temperature": 0, "top_p": 0.5})
    with pytest.raises(UsageError, match=r"min_p: .* not 2"):
        resolve_sampling(recipe, {"min_p": 2})


@pytest.mark.parametrize("context", [0, "512", True, 2.5])
def test_a_context_is_a_number(context: object) -> None:
    with pytest.raises(UsageError, match=r"context is .* whole number"):
        etdeploy.open(context=context)  # type: ignore[arg-type]


def test_names_of_the_package_are_imported_when_used() -> None:
    assert set(etdeploy.__all__) <= set(dir(etdeploy))
    assert all(getattr(etdeploy, name) for name in etdeploy.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        etdeploy.nothing  # noqa: B018
