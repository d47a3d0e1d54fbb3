from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from etdeploy.core.values import cached_property


class Device:
    """One that answers when all others are asked, too."""

    together = threading.Barrier(3, timeout=60)
    asked = 0

    @cached_property
    def facts(self) -> str:
        """What it is."""
        self.asked += 1
        self.together.wait()
        return f"facts {id(self)}"


def test_objects_do_not_wait_for_each_other_and_each_computes_once() -> None:
    devices = [Device() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda d: d.facts, devices)) == [f"facts {id(d)}" for d in devices]
    assert [device.facts for device in devices] == [f"facts {id(d)}" for d in devices]
    assert [device.asked for device in devices] == [1, 1, 1]
    assert Device.facts.__doc__ == "What it is."
