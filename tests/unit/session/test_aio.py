"""Sessions for asyncio, without a device."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from etdeploy.core import cancel
from etdeploy.session.aio import AsyncOpening


def test_a_stop_of_the_command_line_stops_what_is_opened_in_another_thread() -> None:
    flags: list[cancel.Flag] = []

    def start(_: object, flag: cancel.Flag) -> Any:
        flags.append(flag)
        assert cancel.current() is flag
        return object()

    async def use() -> None:
        await AsyncOpening(cast(Any, start))

    run = cancel.Flag()
    with cancel.bound(run):
        asyncio.run(use())
    [flag] = flags
    assert not flag.is_set()
    run.set()
    assert flag.is_set()
