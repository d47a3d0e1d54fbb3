"""Large files on an Android device: in parts of 1 MiB here, against a real adbd."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, Interrupted
from etdeploy.core.values import Progress
from etdeploy.devices.base import Bundle, Device
from etdeploy.devices.registry import open_device
from etdeploy.devices.remote import store
from tests.support.adbd import adb_server, make_android, no_adb_server
from tests.support.bundles import make_bundle, of_size
from tests.support.reached import Reached, no_request_left, reached, wait_until_empty

pytestmark = pytest.mark.integration

__all__ = ["adb_server", "make_android", "no_adb_server", "no_request_left", "reached"]

PART_BYTES = 1 << 20
SIZE_BYTES = 40 * PART_BYTES + 12345
ROOT = "data/local/tmp/etdeploy"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PART_BYTES", PART_BYTES)


@pytest.fixture
def big(tmp_path: Path) -> Bundle:
    return make_bundle({"big": of_size(tmp_path, SIZE_BYTES)}, ("big",))


def when(limit: float, do: Callable[[], object]) -> Progress:
    """A Progress that does something once, as soon as so much has been pushed."""
    done = False

    def progress(text: str, fraction: float | None = None) -> None:
        nonlocal done
        if fraction and fraction > limit and not done:
            done = True
            do()

    return progress


def cut(reached: Reached, bundle: Bundle, fraction: float = 0.9) -> Path:
    """Stops a push there; returns what the device keeps of the file."""
    with pytest.raises(Interrupted):
        reached.device.push(bundle, when(fraction, cancel.request))
    with cancel.trapped_signals():
        pass  # the next push is another run
    assert reached.is_quiet()
    return partial(reached, bundle)


def partial(reached: Reached, bundle: Bundle) -> Path:
    return reached.root.path(f"{ROOT}/partial/{bundle.files[0].sha256}")


def stored(reached: Reached, bundle: Bundle) -> Path:
    return reached.root.path(f"{ROOT}/store/{bundle.files[0].sha256}")


def is_tidy(reached: Reached) -> bool:
    """Whether nothing is left of pushes; what a push has there goes a moment after it."""
    return all(wait_until_empty(reached.root.path(f"{ROOT}/{n}")) for n in ("incoming", "partial"))


def is_right(reached: Reached, bundle: Bundle) -> bool:
    """Whether the store has the file, as it is here, and nothing else is left."""
    content = Path(bundle.files[0].source).read_bytes()
    return stored(reached, bundle).read_bytes() == content and is_tidy(reached)


def test_a_large_file_arrives_whole_and_executable(reached: Reached, big: Bundle) -> None:
    report = reached.device.push(big)
    assert (report.pushed_bytes, report.resumed_bytes) == (SIZE_BYTES, 0)
    big_file = stored(reached, big)
    assert big_file.stat().st_mode & 0o777 == 0o644
    assert is_right(reached, big)
    again = reached.device.push(big)
    assert (again.pushed_files, again.pushed_bytes) == (0, 0)


def test_a_push_goes_on_where_the_connection_broke(reached: Reached, big: Bundle) -> None:
    with pytest.raises(DeviceError, match=r"went away .*big"):
        reached.device.push(big, when(0.9, reached.root.kill_adbd))
    reached.come_back()
    assert wait_until_empty(reached.root.path(f"{ROOT}/incoming"))
    missing = SIZE_BYTES - partial(reached, big).stat().st_size
    assert missing < SIZE_BYTES / 2
    texts: list[str] = []
    report = reached.device.push(big, lambda text, _=None: texts.append(text))
    assert missing <= report.pushed_bytes < missing + PART_BYTES
    assert report.resumed_bytes == SIZE_BYTES - report.pushed_bytes
    assert any("MB were already there)" in text for text in texts)
    assert is_right(reached, big)


def test_a_stopped_push_goes_on(reached: Reached, big: Bundle) -> None:
    missing = SIZE_BYTES - cut(reached, big).stat().st_size
    # And is stopped again.
    missing_then = SIZE_BYTES - cut(reached, big, 0.97).stat().st_size
    assert missing_then < missing
    report = reached.device.push(big)
    assert missing_then <= report.pushed_bytes < missing_then + PART_BYTES
    assert is_right(reached, big)


def test_a_push_goes_on_after_a_restart_of_the_device(reached: Reached, big: Bundle) -> None:
    there = cut(reached, big)
    left = reached.root.path(f"{ROOT}/incoming") / "0123456789abcdef.99999"
    left.mkdir()
    there.rename(left / f"{there.name}.part")
    (left / "other").write_bytes(bytes(10 << 20))
    report = reached.device.push(big)
    assert report.resumed_bytes > SIZE_BYTES / 2
    assert is_right(reached, big)


@pytest.mark.parametrize("damage", ["content", "truncated", "zeros", "longer", "empty"])
def test_what_was_damaged_is_sent_again(reached: Reached, big: Bundle, damage: str) -> None:
    there = cut(reached, big)
    whole_parts = there.stat().st_size // PART_BYTES
    expected = whole_parts
    if damage == "content":
        with there.open("r+b") as file:
            file.seek(3 * PART_BYTES + 5)
            file.write(b"damaged")
        expected = whole_parts - 1
    elif damage == "truncated":
        os.truncate(there, 7 * PART_BYTES + 1)
        expected = 7
    elif damage == "zeros":
        # As a file system leaves it that lost its power: the size is right.
        size = there.stat().st_size
        os.truncate(there, 5 * PART_BYTES)
        os.truncate(there, size)
        expected = 5
    elif damage == "longer":
        os.truncate(there, SIZE_BYTES + 1)
        expected = 0
    else:
        os.truncate(there, 0)
        expected = 0
    report = reached.device.push(big)
    assert report.resumed_bytes == expected * PART_BYTES
    assert report.pushed_bytes == SIZE_BYTES - report.resumed_bytes
    assert is_right(reached, big)


def test_a_source_that_changed_since_is_named(reached: Reached, big: Bundle) -> None:
    cut(reached, big)
    source = Path(big.files[0].source)
    source.write_bytes(os.urandom(SIZE_BYTES))
    with pytest.raises(DeviceError, match=r"big .* changed"):
        reached.device.push(big)
    assert not stored(reached, big).exists()


def test_a_source_that_changes_meanwhile_is_named(reached: Reached, big: Bundle) -> None:
    source = Path(big.files[0].source)

    def change() -> None:
        with source.open("r+b") as file:
            file.seek(SIZE_BYTES - 5)
            file.write(b"other")

    with pytest.raises(DeviceError, match=r"big .* changed"):
        reached.device.push(big, when(0.2, change))
    assert not stored(reached, big).exists()


@pytest.mark.parametrize("tool", ["sha256sum", "dd"])
def test_a_device_without_a_tool_gets_the_whole_file(
    reached: Reached, big: Bundle, tool: str
) -> None:
    reached.root.hide_tool(tool)
    assert reached.device.push(big).pushed_bytes == SIZE_BYTES
    assert is_right(reached, big)
    reached.device.clean()
    cut(reached, big)
    report = reached.device.push(big)
    assert (report.pushed_bytes, report.resumed_bytes) == (SIZE_BYTES, 0)
    assert is_right(reached, big)


def fill(reached: Reached, leave_bytes: int = 0) -> Path:
    """Fills the device up."""
    filler = reached.root.path("data/local/tmp/filler")
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 20)):
            pass
    os.truncate(filler, max(0, filler.stat().st_size - leave_bytes))
    return filler


@pytest.mark.parametrize("resumed", [False, True])
def test_nothing_is_kept_on_a_full_device(reached: Reached, big: Bundle, resumed: bool) -> None:
    if resumed:
        cut(reached, big, 0.5)
    filling = when(0.7 if resumed else 0.2, lambda: fill(reached))
    with pytest.raises(DeviceError, match=r"big needs 42\.0 MB"):
        reached.device.push(big, filling)
    assert is_tidy(reached)
    assert reached.is_quiet()
    reached.root.path("data/local/tmp/filler").unlink()
    assert reached.device.push(big).pushed_bytes == SIZE_BYTES


def test_what_was_begun_is_kept_for_a_device_with_more_room(reached: Reached, big: Bundle) -> None:
    there = cut(reached, big, 0.5)
    filler = fill(reached, leave_bytes=PART_BYTES)
    with pytest.raises(DeviceError, match=r"needs 2[01]\.\d MB"):
        reached.device.push(big)
    filler.unlink()
    assert there.exists()
    assert reached.device.push(big).resumed_bytes > 0


def test_without_room_for_a_part_beside_the_file_it_is_sent_whole(
    reached: Reached, big: Bundle
) -> None:
    there = cut(reached, big)
    fill(reached, leave_bytes=SIZE_BYTES - there.stat().st_size + PART_BYTES // 2)
    report = reached.device.push(big)
    assert (report.pushed_bytes, report.resumed_bytes) == (SIZE_BYTES, 0)
    assert is_right(reached, big)


def test_what_was_begun_makes_room_and_is_removed_with_the_rest(
    reached: Reached, big: Bundle, tmp_path: Path
) -> None:
    there_bytes = cut(reached, big).stat().st_size
    other = make_bundle({"other": of_size(tmp_path, 40 << 20, "other")}, ("other",))
    assert reached.device.push(other).removed_bytes == there_bytes
    assert is_right(reached, other)
    reached.device.clean()
    cut(reached, big)
    assert reached.device.clean()["partial"] > SIZE_BYTES / 2
    assert not reached.root.path(ROOT).exists()


def test_what_was_begun_long_ago_goes_with_the_next_push(
    reached: Reached, big: Bundle, tmp_path: Path
) -> None:
    there = cut(reached, big)
    os.utime(there, (0, 0))
    reached.device.push(make_bundle({"small": of_size(tmp_path, 10, "small")}, ("small",)))
    assert is_tidy(reached)


def test_two_pushes_of_one_large_file_at_once(reached: Reached, tmp_path: Path) -> None:
    # The device has room for it twice.
    big = make_bundle({"big": of_size(tmp_path, 20 * PART_BYTES + 7)}, ("big",))
    cut(reached, big)
    other = open_device(reached.root.spec)
    resumed_bytes: list[int] = []

    def push(device: Device) -> None:
        resumed_bytes.append(device.push(big).resumed_bytes)

    threads = [threading.Thread(target=push, args=(d,)) for d in (reached.device, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    assert len(resumed_bytes) == 2
    # What was begun goes to one of them.
    assert min(resumed_bytes) == 0
    assert is_right(reached, big)
