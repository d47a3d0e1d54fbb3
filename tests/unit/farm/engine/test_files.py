"""Files between hosts: read by digest, fetched once, sent in chunks; without a network."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import DeviceError, UsageError
from etdeploy.core.files.basic import folder_files
from etdeploy.farm.engine.transfer import (
    CHUNK_BYTES,
    Records,
    ServedFiles,
    fetch_artifact,
    pack,
    sweep_parts,
)
from etdeploy.farm.model import BuildArtifact
from tests.support.parcels import plain_artifact

CONTENT = os.urandom(CHUNK_BYTES + 1000)


class Reader:
    """The coordinator, which may break off."""

    def __init__(self, made: BuildArtifact) -> None:
        self.artifacts = ServedFiles()
        self.artifacts.add(made)
        self.asked: list[tuple[str, int]] = []
        self.left = 1000

    def __call__(self, digest: str, offset: int) -> bytes:
        self.asked.append((digest, offset))
        self.left -= 1
        if self.left < 0:
            raise DeviceError("the connection to the coordinator is lost")
        return self.artifacts.read(digest, offset)


def test_files_that_several_artifacts_share_are_fetched_once(tmp_path: Path) -> None:
    first = plain_artifact(tmp_path / "p", {"program/x.pte": CONTENT, "runner": b"elf"})
    second = plain_artifact(
        tmp_path / "q", {"program/x.pte": CONTENT, "plan.json": b"{}"}, key="1" * 64
    )
    read = Reader(first)
    read.artifacts.add(second)
    workspace = Workspace(tmp_path / "cache")
    with workspace.in_use(), ThreadPoolExecutor(4) as pool:
        done = pool.map(
            lambda p: fetch_artifact(p, workspace, read), [first, second, first, second]
        )
        folders = list(done)
    assert [p for p in folder_files(folders[0]) if not p.startswith(".")] == [
        "program/x.pte",
        "runner",
    ]
    assert (folders[1] / "program" / "x.pte").read_bytes() == CONTENT
    assert not (folders[1] / "program" / "x.pte").is_symlink()
    # Two chunks and the end of the large one, one and the end of the small ones.
    assert len(read.asked) == 3 + 2 + 2


def test_a_fetch_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    made = plain_artifact(tmp_path / "p", {"x": CONTENT})
    read, workspace = Reader(made), Workspace(tmp_path / "cache")
    read.left = 1
    with pytest.raises(DeviceError):
        fetch_artifact(made, workspace, read)
    assert not workspace.entry(CacheKind.PARCELS, made.key).path.exists()
    read.left = 1000
    folder = fetch_artifact(made, workspace, read)
    assert (folder / "x").read_bytes() == CONTENT
    offsets = [offset for _, offset in read.asked]
    assert offsets == [0, CHUNK_BYTES, CHUNK_BYTES, len(CONTENT)]


def test_a_file_that_arrives_changed_is_not_kept(tmp_path: Path) -> None:
    made = plain_artifact(tmp_path / "p", {"x": CONTENT})
    (tmp_path / "p" / "x").write_bytes(b"other")
    workspace = Workspace(tmp_path / "cache")
    with pytest.raises(DeviceError, match="did not arrive"):
        fetch_artifact(made, workspace, Reader(made))
    (tmp_path / "p" / "x").write_bytes(CONTENT)
    folder = fetch_artifact(made, workspace, Reader(made))
    assert (folder / "x").read_bytes() == CONTENT


def test_a_path_of_an_artifact_stays_in_its_folder(tmp_path: Path) -> None:
    made = plain_artifact(tmp_path / "p", {"x": b"x"}).model_copy(
        update={"files": {"../x": "0" * 64}}
    )
    with pytest.raises(UsageError):
        ServedFiles().add(made)
    with pytest.raises(UsageError):
        fetch_artifact(made, Workspace(tmp_path / "cache"), lambda *_: b"")
    assert not (tmp_path / "cache" / "parcels" / "x").exists()


def test_only_files_of_artifacts_are_read(tmp_path: Path) -> None:
    made = plain_artifact(tmp_path / "p", {"x": b"x"})
    secret = tmp_path / "p" / "secret"
    secret.write_text("secret")
    digest = hashlib.sha256(b"secret").hexdigest()
    read = Reader(made).artifacts.read
    for asked in (digest, str(secret), "x"):
        with pytest.raises(UsageError, match="only files of artifacts"):
            read(asked, 0)
    with pytest.raises(UsageError):
        read(made.files["x"], -1)


def test_a_part_that_nobody_wants_is_swept(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "cache")
    parts = workspace.folder(CacheKind.FETCHED) / ".parts"
    parts.mkdir(parents=True)
    (parts / "old").write_text("x")
    (parts / "new").write_text("x")
    os.utime(parts / "old", (time.time() - 100_000,) * 2)
    sweep_parts(workspace)
    assert [path.name for path in parts.iterdir()] == ["new"]


KEY = ("night-3", 1)


def _sent(tmp_path: Path) -> tuple[bytes, str]:
    source = tmp_path / "source"
    source.mkdir()
    (source / "record.json").write_text("{}")
    pack(source, tmp_path / "a")
    data = (tmp_path / "a").read_bytes()
    return data, hashlib.sha256(data).hexdigest()


def test_records_arrive_in_chunks_and_appear_complete(tmp_path: Path) -> None:
    data, digest = _sent(tmp_path)
    records = Records(tmp_path / "results")
    assert records.store(KEY, 0, data[:10]) == 10
    # A host that lost the answer asks again, and one that was started anew begins anew.
    assert records.store(KEY, 0, data[:10]) == 10
    assert records.store(KEY, 99, b"x") == 10
    assert records.store(KEY, 10, data[10:]) == len(data)
    folder = records.finish(KEY, digest)
    assert folder == tmp_path / "results" / "night-3-attempt-1"
    arrived = ["night-3-attempt-1/record.json"]
    assert folder_files(tmp_path / "results") == arrived
    # A cut upload leaves nothing.
    records.store(KEY, 0, data[:-1])
    with pytest.raises(UsageError, match="did not arrive"):
        records.finish(KEY, digest)
    records.store(KEY, 0, data[:-1])
    Records(tmp_path / "results")
    assert folder_files(tmp_path / "results") == arrived


def test_records_have_a_bound_and_a_visit_names_no_folder_outside(tmp_path: Path) -> None:
    data, digest = _sent(tmp_path)
    with pytest.raises(UsageError, match="more than 5 bytes"):
        Records(tmp_path / "results", limit_bytes=5).store(KEY, 0, data)
    records = Records(tmp_path / "results")
    records.store(("../../evil", 1), 0, data)
    assert records.finish(("../../evil", 1), digest).parent == tmp_path / "results"
