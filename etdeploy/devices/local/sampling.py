"""This machine's state, read about every second while a program runs."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etdeploy.core.files.basic import read_text
from etdeploy.devices import sampling
from etdeploy.devices.base import TimedState

_SYS = Path("/sys")


class Samples:
    """What was read; complete when the block of `sampled` has ended."""

    def __init__(self, folder: Path) -> None:
        self._constant, self._files = _chosen(folder)
        self._readings: list[tuple[float, str]] = []
        self._began = time.monotonic()

    @property
    def any(self) -> bool:
        """Whether there is anything to read; virtual machines often have nothing."""
        return bool(self._files)

    def read(self) -> None:
        """Reads every file once; what it means waits for `states`."""
        seconds = round(time.monotonic() - self._began, 2)
        self._readings.append((seconds, _lines(self._files)))

    @property
    def states(self) -> tuple[TimedState, ...]:
        """In their order."""
        return tuple(
            TimedState(seconds, sampling.sampled_state(self._constant + text))
            for seconds, text in self._readings
        )


@contextmanager
def sampled(folder: Path = _SYS) -> Iterator[Samples]:
    """Reads the state while the block runs; a thread sleeps between the readings."""
    samples, ended = Samples(folder), threading.Event()

    def read() -> None:
        number = 0
        while not ended.wait(sampling.period_s(number)):
            samples.read()
            number += 1

    thread = threading.Thread(target=read, name="state of this machine", daemon=True)
    if samples.any:
        thread.start()
    try:
        yield samples
    finally:
        ended.set()
        if samples.any:
            thread.join()


def _chosen(folder: Path) -> tuple[str, list[Path]]:
    """The lines that stay the same, and the files that are read again and again."""
    constant: list[Path] = []
    files: list[Path] = []
    policies = sorted(folder.glob(sampling.POLICIES))
    every = -(-len(policies) // sampling.MOST) or 1
    for policy in policies[::every]:
        constant += (policy / name for name in sampling.CONSTANT_OF_POLICY)
        files += (policy / name for name in sampling.OF_POLICY)
    zones = sorted(folder.glob(sampling.ZONES))
    if len(zones) > sampling.MOST:
        zones = [z for z in zones if re.search(sampling.CHOSEN_ZONES, read_text(z / "type"))]
    for zone in zones[: sampling.MOST]:
        constant.append(zone / "type")
        files.append(zone / "temp")
    for supply in sorted(folder.glob(sampling.SUPPLIES)):
        if read_text(supply / "type").strip() == "Battery":
            constant += (supply / "type", supply / "scope")
            files += (supply / name for name in sampling.OF_BATTERY)
    files.append(folder / sampling.FIRMWARE)
    return _lines(constant), [file for file in files if read_text(file)]


def _lines(files: list[Path]) -> str:
    return "".join(f"{file}:{text}\n" for file in files if (text := read_text(file).strip()))
