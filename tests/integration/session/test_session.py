"""Sessions on this machine, with the real runner."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

import etdeploy
from etdeploy.core import cancel
from tests.support.session_export import CONTEXT, TEXT, VOCABULARY

pytestmark = pytest.mark.integration

_TOKENS = 24


@pytest.fixture
def session(model: str) -> Iterator[etdeploy.Session]:
    with etdeploy.open(model=model, quiet=True) as session:
        yield session


def _said(session: etdeploy.Session, prompt: str | list[int] | None, tokens: int) -> str:
    return "".join(session.generate(prompt, tokens))


def _end_runner() -> None:
    """Kills the runners of this process."""
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # or a zombie, of an earlier session
            if "--listen" in each.cmdline():
                each.kill()  # whoever started it collects its exit code


def test_a_text_comes_in_pieces_and_is_continued(session: etdeploy.Session) -> None:
    text = session.generate(TEXT, _TOKENS)
    pieces = list(text)
    assert len(pieces) > 5
    answer = text.answer
    assert (answer.text, answer.stopped) == ("".join(pieces), "max_new_tokens")
    assert session.tokens == (*session.encode(TEXT), *answer.token_ids)
    assert session.decode(answer.token_ids) == answer.text
    timings = session.timings
    assert (timings.prompt_tokens, timings.cached_tokens) == (len(TEXT), 0)
    assert timings.load_ms > 0
    assert len(timings.token_ms) == _TOKENS - 1
    whole = session.tokens
    session.rewind(10)
    _said(session, None, 10)
    assert session.tokens == whole
    # All of the text but its last token is in the cache.
    assert session.timings.cached_tokens == len(whole) - 11
    more = session.generate(" and", 4, append=True)
    list(more)
    assert session.tokens == (*whole, *session.encode(" and"), *more.answer.token_ids)
    full = session.generate([5], 999)
    list(full)
    assert (full.answer.stopped, len(full.answer.token_ids)) == ("context_full", CONTEXT)


def test_logits_choose_the_text_and_leave_it(session: etdeploy.Session) -> None:
    _said(session, TEXT, _TOKENS)
    whole = session.tokens
    rows = session.logits(whole[:-1], positions=_TOKENS)
    assert rows.shape == (_TOKENS, VOCABULARY)
    assert rows.dtype == np.float32
    assert list(rows.argmax(axis=1)) == list(whole[-_TOKENS:])
    assert session.logits("Paris is").shape == (VOCABULARY,)
    score = session.score(TEXT, whole[len(TEXT) :])
    assert score.is_greedy.all()
    shifted = rows - rows.max(axis=1, keepdims=True)
    expected = shifted.max(axis=1) - np.log(np.exp(shifted).sum(axis=1))
    np.testing.assert_allclose(score.log_probabilities, expected, atol=1e-4)
    assert score.log_probability == pytest.approx(expected.sum(), abs=1e-3)
    assert session.tokens == whole
    _said(session, None, 1)
    assert session.timings.cached_tokens == len(whole) - 1


def test_a_text_goes_on_after_its_runner_was_killed(
    session: etdeploy.Session, tmp_path: Path
) -> None:
    _said(session, TEXT, _TOKENS)
    whole = session.tokens
    _said(session, TEXT, 9)
    state = session.save(tmp_path / "a.cache")
    assert (state.tokens, state.position) == (session.tokens, len(session.tokens) - 1)
    _end_runner()
    with pytest.raises(etdeploy.RunError, match="SIGKILL"):
        _said(session, None, 5)
    session.reopen()
    session.restore(etdeploy.SavedState.read(tmp_path / "a.cache"))
    _said(session, None, _TOKENS - 9)
    assert session.tokens == whole
    assert session.timings.cached_tokens == state.position
    # Without a state, the text is computed again.
    _end_runner()
    session.reopen()
    session.rewind(3)
    _said(session, None, 3)
    assert session.tokens == whole


def test_branches_say_what_sessions_of_their_own_say(session: etdeploy.Session) -> None:
    _said(session, TEXT, 12)
    begun = session.tokens
    branches = [session.fork() for _ in range(3)]
    texts = {}
    for turn in range(2):
        for number, branch in enumerate(branches):
            if turn == 0:
                list(branch.generate(f" {number}", 6, append=True))
            else:
                before = len(branch.tokens)
                list(branch.generate(None, 6))
                # Nothing of it was computed again, though others had the cache meanwhile.
                assert branch.timings.cached_tokens == before - 1
            texts[number] = branch.tokens
    for number, branch in enumerate(branches):
        ids = [*begun, *session.encode(f" {number}")]
        _said(session, ids, 12)
        assert session.tokens == texts[number]
        branch.close()
    with pytest.raises(etdeploy.UsageError, match="closed"):
        branches[0].generate()


def test_keys_and_values_are_those_of_the_eager_model(
    session: etdeploy.Session, text_programs: Path
) -> None:
    _said(session, TEXT, 3)
    found = session.kv_cache(0)
    eager = np.array(json.loads((text_programs / "session" / "keys.json").read_text()))
    assert found.keys.shape == found.values.shape == (2, len(TEXT) + 2, 8)
    np.testing.assert_allclose(found.keys[:, : len(TEXT)], eager, atol=1e-4)
    again = session.kv_cache(1)
    session.rewind(2)
    np.testing.assert_array_equal(session.kv_cache(1).values, again.values[:, :-2])
    with pytest.raises(etdeploy.UsageError, match="no layer 2: the program has 2"):
        session.kv_cache(2)


def test_a_loop_that_is_left_stops_the_runner(session: etdeploy.Session) -> None:
    with session.generate(TEXT, 200) as text:
        for _ in text:
            if len(text.token_ids) > 3:
                break
        with pytest.raises(etdeploy.SessionBusyError, match="still generates"):
            session.logits(TEXT)
    assert text.answer.stopped == "interrupted"
    assert session.tokens == (*session.encode(TEXT), *text.token_ids)
    stop = threading.Event()
    stop.set()
    text = session.generate(TEXT, 200, stop=stop)
    list(text)
    assert text.answer.stopped == "interrupted"
    assert len(text.token_ids) < 20


def test_ctrl_c_ends_the_text_and_not_the_session(session: etdeploy.Session) -> None:
    before = signal.getsignal(signal.SIGINT)
    text = session.generate([7], CONTEXT)

    def press() -> None:
        for _ in text:
            if len(text.token_ids) == 5:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        press()
    text.close()
    tokens = session.tokens
    assert len(tokens) > 5
    _said(session, None, 2)
    assert session.tokens[:-2] == tokens
    assert signal.getsignal(signal.SIGINT) is before
    assert not cancel.requested()


def test_another_thread_is_told_and_a_second_session_waits(
    session: etdeploy.Session, model: str
) -> None:
    failures: list[Exception] = []
    opened: list[etdeploy.Session] = []

    def use() -> None:
        try:
            session.logits(TEXT)
        except Exception as error:
            failures.append(error)

    def open_another() -> None:
        opened.append(etdeploy.open(model=model, quiet=True))
        opened[0].close()

    text = session.generate(TEXT, 50)
    next(text)
    thread = threading.Thread(target=use, name="other")
    thread.start()
    thread.join()
    assert isinstance(failures[0], etdeploy.SessionBusyError)
    assert "thread other" in str(failures[0])
    text.close()
    with pytest.raises(etdeploy.UsageError, match=r"session\.fork\(\)"):
        etdeploy.open(model=model, quiet=True)
    waiting = threading.Thread(target=open_another)
    waiting.start()
    waiting.join(1)
    assert (waiting.is_alive(), opened) == (True, [])
    session.close()
    waiting.join()
    assert opened[0].is_closed


def test_tasks_share_a_session_and_may_be_cancelled(model: str) -> None:
    async def use() -> None:
        async with etdeploy.open_async(model=model, quiet=True) as session:
            text = session.generate(TEXT, 8)
            pieces = [piece async for piece in text]
            assert "".join(pieces) == text.answer.text
            found = await asyncio.gather(
                session.logits(TEXT), session.score(TEXT, " blue"), session.logits("x", 1)
            )
            assert [found[0].shape, found[2].shape] == [(VOCABULARY,), (1, VOCABULARY)]

            async def endless() -> None:
                async for _ in session.generate([5], CONTEXT):
                    begun.set()

            begun = asyncio.Event()
            task = asyncio.create_task(endless())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async for _ in session.generate(TEXT, 100):
                break  # nothing refers to the text: it is closed
            assert (await session.logits(TEXT)).shape == (VOCABULARY,)
            text = session.generate(TEXT, 100)
            async for _ in text:
                with pytest.raises(etdeploy.SessionBusyError, match="this task has begun"):
                    await session.logits(TEXT)
                break
            await text.aclose()
            assert text.answer.stopped == "interrupted"
            branch = await session.fork()
            state = await branch.save()
            assert state.tokens == session.tokens
            with pytest.raises(etdeploy.UsageError, match="this task already has a session"):
                await etdeploy.open_async(model=model, quiet=True)
            # A thread that waits runs no task.
            with pytest.raises(etdeploy.UsageError, match="a task of this thread already has"):
                etdeploy.open(model=model, quiet=True)
            text = session.generate(TEXT, 100)
            await anext(text)  # the end of the block stops it
        with pytest.raises(etdeploy.UsageError, match="closed"):
            await session.logits(TEXT)

    asyncio.run(use())


def test_a_task_does_not_wait_for_its_own_thread(model: str) -> None:
    """As the next cell of a notebook, which would never end."""

    async def use() -> None:
        with pytest.raises(etdeploy.UsageError, match="the thread of this task already has"):
            await etdeploy.open_async(model=model, quiet=True)

    with etdeploy.open(model=model, quiet=True):
        asyncio.run(use())


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("x" * 100_000_000, "100,000,000 characters"),
        ([3] * (CONTEXT + 1), "257 tokens"),
        ([VOCABULARY], "the id 261"),
        ("", "empty"),
        (["a"], "text or token ids"),
        (None, "no text to continue"),
    ],
)  # fmt: skip
def test_a_prompt_that_cannot_be_one(
    session: etdeploy.Session, prompt: str | list[int] | None, message: str
) -> None:
    with pytest.raises(etdeploy.UsageError, match=message):
        session.generate(prompt)
    assert _said(session, TEXT, 2)


def test_a_state_of_another_program_is_refused(
    session: etdeploy.Session, model: str, tmp_path: Path
) -> None:
    state = session.save()
    assert (state.tokens, state.position) == ((), 0)
    _said(session, TEXT, 5)
    path = session.save(tmp_path / "a.cache").snapshot.path
    tokens = session.tokens
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(etdeploy.UsageError, match="damaged"):
        etdeploy.SavedState.read(path)
    header = state.snapshot.header.model_copy(update={"program": "other"})
    object.__setattr__(state.snapshot, "header", header)
    with pytest.raises(etdeploy.UsageError, match="another program"):
        session.restore(state)
    assert session.tokens == tokens


def test_a_benchmark_leaves_the_text(session: etdeploy.Session, tmp_path: Path) -> None:
    _said(session, TEXT, 5)
    tokens = session.tokens
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        record = session.benchmark()
    assert record.device.facts.name == "host"
    assert record.workload.kind == "generation"
    _said(session, None, 2)
    assert session.tokens[:-2] == tokens
    assert session.timings.cached_tokens == len(tokens) - 1


def test_methods_take_and_give_arrays(programs: Path, model: str) -> None:
    """`model` sets the cache."""
    assert model
    folder = programs / "two_inputs"
    described = json.loads((folder / "tensors.json").read_text())
    x, index, *expected = (
        np.fromfile(folder / each["path"], each["dtype"]).reshape(each["shape"])
        if "path" in each
        else each["value"]
        for each in (*described["inputs"], *described["expected"])
    )
    with etdeploy.open("portable", model=folder / "program.pte", quiet=True) as session:
        for given in ([x, index], {"input_0": x, "input_1": index}, (x, [5, 0, 3])):
            found = session.run(given)
            assert list(found) == [f"output_{i}" for i in range(len(expected))]
            for array, wanted in zip(found.values(), expected, strict=True):
                np.testing.assert_allclose(array, wanted, rtol=1e-5)
        assert session.timings.run_ms
        # The first size is dynamic.
        assert session.run([x[:1], index])["output_0"].shape[0] == 1
        undefined = x.copy()
        undefined.flat[0] = np.nan
        for wrong, message in (
            ([undefined, index], "1 NaN of 12"),
            ([x.astype("float64"), index], r"astype\('float32'\)"),
            ([x, index[:2]], r"has the shape \[2\], and the method takes int64 \[3\]"),
            ([np.zeros((9, 6), "float32"), index], r"\[9, 6\], and the method takes float32 up to"),
            ({"pixels": x}, "has no input pixels and needs input_0, input_1"),
            ([x], "1 inputs are given"),
            ([[["a"]], index], "cannot be made float32"),
        ):
            with pytest.raises(etdeploy.UsageError, match=message):
                session.run(wrong)
        assert session.run([undefined, index], allow_nan=True)
        # The program does not say which of its sizes is dynamic; its kernels do.
        with pytest.raises(etdeploy.RunError, match="exit code 5"):
            session.run([x[:, :5], index])
        assert session.run([x, index])
        with pytest.raises(etdeploy.UsageError, match="Its methods: forward"):
            session.run([x, index], method="encode")
        with pytest.raises(etdeploy.UsageError, match="generates no text"):
            session.generate("x")
        with pytest.raises(etdeploy.UsageError, match="generates no text"):
            session.save()
