"""Texts that end at a stop, and the queue."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etdeploy.core.errors import DeviceLostError
from etdeploy.serve.schema import RequestError
from etdeploy.serve.service import StopTexts, TextService


def shown(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    """What a client sees of pieces, until a stop is found."""
    ends, text = StopTexts(stops), ""
    for piece in pieces:
        text += ends.take(piece)
        if ends.is_found:
            return text, True
    return text + ends.end(), False


@given(
    st.lists(st.text("ab\n", max_size=4), max_size=12),
    st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
)
def test_a_text_ends_where_its_first_stop_begins(pieces: list[str], stops: list[str]) -> None:
    """However the text is divided: nothing of the stop is shown, and nothing before it is lost."""
    text, is_found = shown(pieces, stops)
    whole = "".join(pieces)
    assert whole.startswith(text)
    ends = [whole.find(stop) for stop in stops if stop in whole]
    assert is_found == bool(ends)
    assert not any(stop in text for stop in stops)
    if not ends:
        assert text == whole


def test_what_may_be_a_stop_is_held_back() -> None:
    ends = StopTexts(["\n\nUser"])
    assert [ends.take(piece) for piece in ("Hi\n", "\nUs", "ed", "\n\nUs")] == [
        "Hi",
        "",
        "\n\nUsed",
        "",
    ]
    assert (ends.is_found, ends.end()) == (False, "\n\nUs")


class FakeSession:
    """A session whose device may be away."""

    def __init__(self) -> None:
        self.reopened = 0

    async def reopen(self) -> None:
        self.reopened += 1
        if self.reopened == 1:
            raise DeviceLostError("still away")


def service(session: Any = None, most: int = 2) -> TextService:
    return TextService(cast(Any, session or FakeSession()), "m", None, most)


def test_requests_beyond_the_queue_are_refused() -> None:
    async def use() -> None:
        served = service()
        async with served.turn(), served.turn():
            with pytest.raises(RequestError) as refused:
                async with served.turn():
                    pass
            assert (refused.value.status, served.waiting) == (429, 2)
        assert served.waiting == 0
        async with served.turn():
            assert served.waiting == 1

    asyncio.run(use())


def test_a_lost_device_is_connected_again_by_the_next_request() -> None:
    async def use() -> None:
        session = FakeSession()
        served = service(session)
        with pytest.raises(DeviceLostError, match="gone"):
            async with served.turn():
                raise DeviceLostError("gone")
        with pytest.raises(DeviceLostError, match="still"):
            async with served.turn():
                pass
        async with served.turn():
            assert session.reopened == 2
        async with served.turn():
            assert (session.reopened, served.waiting) == (2, 1)

    asyncio.run(use())
