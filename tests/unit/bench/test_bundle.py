"""What goes to a device, and how the runner starts there."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.backends.values import ExtraFile, Extras, merged
from etdeploy.bench.bundle import make_bundle
from etdeploy.core.hashing import sha256_bytes
from etdeploy.devices.base import Bundle
from etdeploy.program.folder import InputSet, TensorFile
from etdeploy.program.model import PlainValue
from tests.support.bench_values import make_program_folder, make_runner

_LOADER = "ld-linux-x86-64.so.2"


def _bundle(folder: Path, loader: str | None = None) -> Bundle:
    provenance = make_program_folder(folder / "program")
    runner = make_runner(folder / "runner", loader)
    return make_bundle(runner, folder / "program", provenance, folder / "state" / "inputs.txt")


def test_files_have_the_digests_of_their_content(tmp_path: Path) -> None:
    bundle = _bundle(tmp_path)
    assert [file.path for file in bundle.files] == [
        "runner/etdeploy-runner",
        "runner/libexecutorch.so",
        "program.pte",
        "inputs.txt",
        "inputs/0.bin",
    ]
    for file in bundle.files:
        content = Path(file.source).read_bytes()
        assert (file.sha256, file.size_bytes) == (sha256_bytes(content), len(content))
    assert [file.path for file in bundle.files if file.executable] == ["runner/etdeploy-runner"]


def test_inputs_that_are_no_tensors_are_no_files(tmp_path: Path) -> None:
    runner = make_runner(tmp_path / "runner")
    provenance = make_program_folder(
        tmp_path / "program", inputs=(PlainValue(kind="Int", value=3),)
    )
    bundle = make_bundle(runner, tmp_path / "program", provenance, tmp_path / "inputs.txt")
    assert not [file.path for file in bundle.files if file.path.startswith("inputs/")]
    assert (tmp_path / "inputs.txt").read_text() == "Int 3\n"


def test_every_size_has_a_list_and_inputs_of_its_own(tmp_path: Path) -> None:
    sets = []
    for name, size in (("short", 1), ("long", 4)):
        path = f"inputs/{name}/0.x.bin"
        (tmp_path / "program" / path).parent.mkdir(parents=True)
        (tmp_path / "program" / path).write_bytes(bytes(4 * size))
        sets.append(
            InputSet(name=name, inputs=(TensorFile(path=path, dtype="float32", shape=(size,)),))
        )
    runner = make_runner(tmp_path / "runner")
    provenance = make_program_folder(tmp_path / "program", sets=tuple(sets))
    bundle = make_bundle(runner, tmp_path / "program", provenance, tmp_path / "inputs.txt")
    assert [file.path for file in bundle.files][3:] == [
        "inputs-short.txt",
        "inputs-long.txt",
        "inputs/short/0.x.bin",
        "inputs/long/0.x.bin",
    ]
    assert (tmp_path / "inputs-long.txt").read_text() == "float32 1 4 inputs/long/0.x.bin\n"


def test_a_portable_runner_starts_through_its_loader(tmp_path: Path) -> None:
    bundle = _bundle(tmp_path, _LOADER)
    assert bundle.process.argv == (
        f"runner/{_LOADER}",
        "--library-path",
        "{bundle}/runner",
        "{bundle}/runner/etdeploy-runner",
    )
    executable = {file.path for file in bundle.files if file.executable}
    assert executable == {f"runner/{_LOADER}", "runner/etdeploy-runner"}


def test_an_input_outside_of_the_program_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(b"secret")
    outside = TensorFile(path="../secret.bin", dtype="uint8", shape=(6,))
    provenance = make_program_folder(tmp_path / "program", inputs=(outside,))
    runner = make_runner(tmp_path / "runner")
    with pytest.raises(ValueError, match="leads out"):
        make_bundle(runner, tmp_path / "program", provenance, tmp_path / "inputs.txt")


@pytest.mark.parametrize("name", ["libexecutorch.so", "../libVendor.so", "", "..", "a/b.so"])
def test_an_extra_file_replaces_nothing_and_stays_in_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "libVendor.so").write_bytes(b"vendor")
    extra = ExtraFile(source=str(tmp_path / "libVendor.so"), name=name)
    with pytest.raises(ValueError, match=r"twice|not a file name"):
        _with_extras(tmp_path, Extras(files=(extra,)))


def test_variables_name_files_of_the_bundle_and_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "libvendor.so").write_bytes(b"library")
    carried = Extras(
        files=(ExtraFile(source=str(tmp_path / "libvendor.so"), name="libvendor.so"),),
        file_variables={"VENDOR_LIB": "libvendor.so"},
    )
    here = Extras(environment={"OTHER_LIB": "/opt/other/lib.so"}, folder_variables=("PLUGINS",))
    bundle = _with_extras(tmp_path, merged([carried, here]))
    assert bundle.process.environment == {
        "VENDOR_LIB": "{bundle}/runner/libvendor.so",
        "OTHER_LIB": "/opt/other/lib.so",
        "PLUGINS": "{bundle}/runner",
    }
    assert "runner/libvendor.so" in [file.path for file in bundle.files]


def test_a_variable_for_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'lib\.so'"):
        _with_extras(tmp_path, Extras(file_variables={"LIB": "lib.so"}))


def _with_extras(folder: Path, extras: Extras) -> Bundle:
    provenance = make_program_folder(folder / "program")
    runner = make_runner(folder / "runner")
    return make_bundle(runner, folder / "program", provenance, folder / "inputs.txt", extras)
