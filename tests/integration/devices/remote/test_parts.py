"""The commands for large files, with the shells and tools of Linux boards."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from etdeploy.devices.remote import device, store
from etdeploy.devices.remote.shell import DevicePaths
from etdeploy.devices.remote.store import BLOCK_BYTES, Part

pytestmark = pytest.mark.integration

CONTENT = os.urandom(5 * BLOCK_BYTES + 321)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PARTS = store.split_parts(len(CONTENT), 2 * BLOCK_BYTES)


@dataclass(frozen=True)
class Board:
    """A shell with its tools, and a folder in which etdeploy keeps things."""

    words: tuple[str, ...]
    path: str
    place: DevicePaths

    @property
    def folder(self) -> str:
        """Of a push."""
        return f"{self.place.incoming}/0123456789abcdef.1"

    @property
    def part(self) -> Path:
        return Path(store.part_name(self.folder, SHA256))

    @property
    def kept(self) -> Path:
        return Path(self.place.partial) / SHA256

    @contextmanager
    def running(self, command: str) -> Iterator[subprocess.Popen[bytes]]:
        pipe = subprocess.PIPE
        with subprocess.Popen(
            # What is said to a script of a push comes at this descriptor.
            [*self.words, "-c", f"exec 3<&0\n{command}"],
            env={"PATH": self.path},
            stdin=pipe,
            stdout=pipe,
            bufsize=0,
        ) as running:
            yield running

    def output(self, command: str, said: str = "") -> list[str]:
        with self.running(command) as running:
            return running.communicate(said.encode())[0].decode().splitlines()


@pytest.fixture(params=["sh", "busybox"])
def board(request: pytest.FixtureRequest, tmp_path: Path) -> Board:
    tools = os.environ["PATH"]
    words: tuple[str, ...] = ("sh",)
    if request.param == "busybox":
        busybox = shutil.which("busybox")
        if not busybox:
            pytest.skip("needs busybox: apt install busybox")
        folder = tmp_path / "tools"
        folder.mkdir()
        subprocess.run([busybox, "--install", "-s", str(folder)], check=True)
        words, tools = (busybox, "sh"), str(folder)
    board = Board(words, tools, DevicePaths(str(tmp_path / "it's here")))
    Path(board.folder).mkdir(parents=True)
    board.kept.parent.mkdir()
    return board


def digest(part: Part) -> str:
    return hashlib.sha256(CONTENT[part.start : part.end]).hexdigest()


@pytest.mark.parametrize("step", [100_000, 3 * BLOCK_BYTES])
def test_a_file_is_hashed_while_it_grows(board: Board, step: int) -> None:
    new = Path(store.new_name(board.folder, SHA256))
    command = store.follow_command(board.folder, SHA256, executable=False)
    with board.running(command) as follower, new.open("wb", buffering=0) as file:
        assert follower.stdin
        assert follower.stdout
        for start in range(0, len(CONTENT), step):
            file.write(CONTENT[start : start + step])
            follower.stdin.write(b"more\n")
            if start == 0:
                assert follower.stdout.readline() == f"{store.BEGUN}\n".encode()
                assert not new.exists()
        follower.stdin.write(f"{store.END}\n".encode())
        assert follower.stdout.readline().split()[0].decode() == SHA256
    assert board.part.read_bytes() == CONTENT


def test_a_hasher_ends_with_its_input(board: Board) -> None:
    Path(store.new_name(board.folder, SHA256)).write_bytes(CONTENT)
    # Its digest is that of what it was told of.
    lines = board.output(
        store.follow_command(board.folder, SHA256, executable=False), "more\nmore\n"
    )
    assert lines[0] == store.BEGUN
    assert (
        board.output(store.follow_command("/nothing/there", SHA256, executable=False), "more\n")
        == []
    )


def test_parts_are_written_where_they_belong(board: Board) -> None:
    first, second, last = PARTS
    board.part.write_bytes(bytes(4 * BLOCK_BYTES + 5))
    for part in PARTS:
        new = Path(store.new_name(board.folder, SHA256, part))
        new.write_bytes(CONTENT[part.start : part.end])
    said = [store.verify_line(first), *(store.join_line(part) for part in (last, first, second))]
    lines = board.output(
        store.continue_command(board.folder, SHA256, executable=False),
        "".join(f"{line}\n" for line in said),
    )
    zeros = hashlib.sha256(bytes(first.size)).hexdigest()
    assert lines == [
        f"0 {zeros}",
        *(f"{part.number} {digest(part)}" for part in (last, first, second)),
    ]
    assert board.part.read_bytes() == CONTENT
    assert [path.name for path in Path(board.folder).iterdir()] == [board.part.name]


def test_a_part_that_cannot_be_written_is_told(board: Board) -> None:
    board.part.mkdir()
    command = store.continue_command(board.folder, SHA256, executable=False)
    (line,) = board.output(command, f"{store.join_line(PARTS[1])}\n")
    assert line.startswith("1 failed dd: ")


def test_what_was_begun_goes_from_push_to_push(board: Board) -> None:
    board.part.write_bytes(CONTENT[:-1])
    Path(store.new_name(board.folder, SHA256, PARTS[0])).write_bytes(b"x")
    (Path(board.folder) / ("b" * 64)).write_bytes(b"a small file")
    Path(store.new_name(board.folder, "c" * 64)).write_bytes(b"")
    # The folder's holder is gone.
    board.output(device.sweep_command(board.place))
    assert not Path(board.folder).exists()
    assert [path.name for path in board.kept.parent.iterdir()] == [SHA256]
    Path(board.folder).mkdir()
    command = store.take_command(board.place, board.folder, SHA256)
    assert store.parse_size("\n".join(board.output(command))) == len(CONTENT) - 1
    assert board.part.read_bytes() == CONTENT[:-1]
    # Another push finds nothing any more.
    assert store.parse_size("\n".join(board.output(command))) == 0


def test_a_holder_keeps_what_was_begun_when_its_connection_ends(board: Board) -> None:
    with board.running(device.hold_command(board.place, "fedcba9876543210")) as holder:
        assert holder.stdout
        folder = Path(board.place.incoming) / holder.stdout.readline().decode().strip()
        Path(store.part_name(str(folder), SHA256)).write_bytes(CONTENT)
        holder.communicate()
    assert not folder.exists()
    assert board.kept.read_bytes() == CONTENT
