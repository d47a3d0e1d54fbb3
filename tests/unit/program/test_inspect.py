"""What inspection finds in programs, and what it says of files that are none."""

from __future__ import annotations

import os
import random
import re
import struct
from pathlib import Path

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.program.inspect import inspect_file
from etdeploy.program.model import Delegate, Operator, PlainValue, TensorInfo
from tests.support.program_files import INT64, Plan, Tensor, pte, xnnpack_payload

_MIXED = Plan(
    inputs=(Tensor((2, 16)), Tensor((5,), INT64, dynamism=1), -3, 0.5, True, None),
    operators=(("aten::relu", "out", 1), ("aten::add", "out", 3), ("my::op", "", 0)),
    delegates=(("XnnpackBackend", 0), ("QnnBackend", 1)),
    buffer_sizes=(0, 100, 24),
)


def _file(folder: Path, content: bytes) -> Path:
    path = folder / "model.pte"
    path.write_bytes(content)
    return path


def _mixed() -> bytes:
    segments = (xnnpack_payload(7), b"q" * 11, b"c" * 1000, b"n" * 50)
    return pte(_MIXED, segments=segments, constant_segment=2, named=(3, 3))


def test_method_is_read(tmp_path: Path) -> None:
    program = inspect_file(_file(tmp_path, _mixed()))
    (method,) = program.methods
    assert method.name == "forward"
    assert method.inputs == (
        TensorInfo(dtype="float32", shape=(2, 16)),
        TensorInfo(dtype="int64", shape=(5,), dynamic=True),
        PlainValue(kind="Int", value=-3),
        PlainValue(kind="Double", value=0.5),
        PlainValue(kind="Bool", value=True),
        PlainValue(kind="None"),
    )
    assert method.outputs == (TensorInfo(dtype="float32", shape=(2, 4)),)
    assert method.operators == (
        Operator(name="aten::add.out", calls=3),
        Operator(name="aten::relu.out", calls=1),
        Operator(name="my::op", calls=0),
    )
    assert method.delegates == (
        Delegate(backend_id="XnnpackBackend", size_bytes=len(xnnpack_payload(7)), nodes=7),
        Delegate(backend_id="QnnBackend", size_bytes=11, nodes=None),
    )
    assert method.instructions == 6
    assert method.planned_memory_bytes == 124


def test_sizes_count_every_segment_once(tmp_path: Path) -> None:
    content = _mixed()
    program = inspect_file(_file(tmp_path, content))
    assert program.constant_bytes == 1050
    assert program.size_bytes == len(content)


def test_every_method_is_read(tmp_path: Path) -> None:
    plans = (Plan("prefill", operators=(("aten::mul", "out", 2),)), Plan("decode"))
    program = inspect_file(_file(tmp_path, pte(*plans)))
    assert [m.name for m in program.methods] == ["prefill", "decode"]
    assert program.operators == ("aten::mul.out",)


def test_a_payload_of_an_unknown_format_has_no_node_count(tmp_path: Path) -> None:
    plan = Plan(delegates=(("XnnpackBackend", 0),))
    program = inspect_file(_file(tmp_path, pte(plan, segments=(b"\0" * 64,))))
    assert program.methods[0].delegates[0].nodes is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"abc", "3 bytes are not a program"),
        (b"PK\x03\x04" + b"\0" * 60, "zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"<!doctype html><html></html>", "web page"),
        (b"\x10\0\0\0BP08" + b"\0" * 60, "bundled program"),
        (b"\x10\0\0\0ET99" + b"\0" * 60, "ET99"),
        (b"\x10\0\0\0nope" + b"\0" * 60, "not an ExecuTorch program"),
        (b"\x10\0\0\0ET12" + b"\0" * 60, "no method"),
        (b"\xff\xff\xff\xffET12" + b"\0" * 60, "damaged"),
    ],
)
def test_other_files_are_named_for_what_they_are(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = _file(tmp_path, content)
    with pytest.raises(UsageError, match=message) as raised:
        inspect_file(path)
    assert raised.value.exit_code == 2
    assert raised.value.place == str(path)
    assert raised.value.remedy or message in ("damaged", "no method")


def test_a_truncated_program_tells_both_sizes(tmp_path: Path) -> None:
    content = _mixed()
    with pytest.raises(UsageError, match=f"says {len(content):,} bytes, the file has") as raised:
        inspect_file(_file(tmp_path, content[:-1]))
    assert "sha256sum" in str(raised.value.remedy)


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    content = _mixed()
    for size in range(0, len(content), 13):
        with pytest.raises(UsageError):
            inspect_file(_file(tmp_path, content[:size]))


def test_a_segment_behind_the_end_is_noticed(tmp_path: Path) -> None:
    content = bytearray(_mixed())
    # The size of all segments in the header: with 0, as old files have it, only the segments tell.
    struct.pack_into("<Q", content, 32, 0)
    with pytest.raises(UsageError, match="after the end"):
        inspect_file(_file(tmp_path, bytes(content[:-51])))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        inspect_file(tmp_path / "missing.pte")
    _file(tmp_path, _mixed())
    with pytest.raises(UsageError, match="folder") as raised:
        inspect_file(tmp_path)
    assert str(tmp_path / "model.pte") in str(raised.value.remedy)


def test_names_cannot_steer_a_terminal(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not readable text"):
        inspect_file(_file(tmp_path, pte(Plan("\x1b[2Jforward"))))


def test_a_file_whose_parts_refer_to_each_other_is_refused_quickly(tmp_path: Path) -> None:
    """500 methods that are all the same large table would cost 500 times its size."""
    operators = tuple((f"aten::op{i}", "out", 1) for i in range(500))
    content = bytearray(pte(*(Plan(operators=operators), *(Plan() for _ in range(500)))))
    start, count = _methods_list(content)
    (first,) = struct.unpack_from("<I", content, start)
    for i in range(count):
        struct.pack_into("<I", content, start + 4 * i, first - 4 * i)
    with pytest.raises(UsageError, match="refer to each other"):
        inspect_file(_file(tmp_path, bytes(content)))


def _methods_list(content: bytearray) -> tuple[int, int]:
    (root,) = struct.unpack_from("<I", content)
    (back,) = struct.unpack_from("<i", content, root)
    (field,) = struct.unpack_from("<H", content, root - back + 6)
    vector = root + field + struct.unpack_from("<I", content, root + field)[0]
    return vector + 4, struct.unpack_from("<I", content, vector)[0]


@pytest.mark.parametrize("seed", range(4))
def test_damaged_bytes_give_a_program_or_a_clean_error(tmp_path: Path, seed: int) -> None:
    """250 damaged variants for each seed; any other exception fails the test."""
    sound = _mixed()
    choose = random.Random(seed)
    refused = 0
    for _ in range(250):
        content = bytearray(sound)
        for _ in range(choose.choice((1, 1, 2, 8, 32))):
            place = choose.randrange(len(content))
            content[place] = choose.choice((0, 255, choose.randrange(256), content[place] ^ 1))
        try:
            inspect_file(_file(tmp_path, bytes(content)))
        except UsageError:
            refused += 1
    assert 0 < refused < 250


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.pte")
    with pytest.raises(UsageError) as caught:
        inspect_file(tmp_path / "model.pte")
    assert "FIFO (named pipe)" in caught.value.message
    assert caught.value.place == f"{tmp_path}/model.pte"
    assert str(caught.value.remedy).endswith("cat > model.pte")


def test_paths_in_remedies_can_be_copied(tmp_path: Path) -> None:
    folder = tmp_path / "my models"
    folder.mkdir()
    with pytest.raises(UsageError, match=re.escape(f"ls '{folder}'")):
        inspect_file(folder / "gone.pte")
    (folder / "a$b.pte").touch()
    with pytest.raises(UsageError, match=re.escape(f"such as '{folder}/a$b.pte'")):
        inspect_file(folder)
