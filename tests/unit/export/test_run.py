"""What an export leaves in the cache, with a stand-in for the worker process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import EtdeployError, ExportError
from etdeploy.core.hashing import sha256_file
from etdeploy.core.processes.process import Outcome, Request
from etdeploy.core.values import silent
from etdeploy.export import run
from etdeploy.export.protocol import FAILURE_FILE, SOURCES_FILE, ExportFailure, ModelSources
from etdeploy.export.run import export_program
from etdeploy.export.spec import ExportSpec, HfModel
from etdeploy.program.folder import EXPORT_INFO, PROGRAM_FILE, Provenance
from tests.support.checkpoints import write_checkpoint
from tests.support.export import spec_of
from tests.support.program_files import Plan, pte

SPEC = spec_of({"model": {"example": "mlp"}, "export": {"rewrites": ["views"]}})
# Another target would try the second rewrite, too, which has nothing to do in this model.
OTHER = SPEC.model_copy(update={"rewrites": ("depthwise", "views")})


class Worker:
    """Does in its folder what a test says, and ends with an exit code."""

    def __init__(self, work: Callable[[Path], object], code: int = 0, output: str = "") -> None:
        self.work, self.code, self.output, self.runs = work, code, output, 0

    def run(self, request: Request, undo: Callable[[], None]) -> Outcome:
        self.runs += 1
        folder = Path(request.argv[-1])
        (folder / "left of a first attempt").write_text("")
        undo()
        assert not list(folder.iterdir())
        if request.on_line:
            request.on_line("::progress 0.5 lowering")
            request.on_line("something else")
        self.work(folder)
        return Outcome(request.argv, self.code, self.output, "", 1.0)


@pytest.fixture(autouse=True)
def nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "check_needs", lambda _: None)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "cache")


def succeed(folder: Path) -> None:
    (folder / PROGRAM_FILE).write_bytes(pte(Plan()))
    (folder / "inputs").mkdir()
    (folder / "inputs/0.bin").write_bytes(b"1")
    details = {"rewrites": {"idle": ["depthwise"]}}
    Provenance(source="example mlp", details=details).save(folder / EXPORT_INFO)
    ModelSources().save(folder.with_name(SOURCES_FILE))


def test_a_program_is_exported_once(workspace: Workspace, tmp_path: Path) -> None:
    worker, steps = Worker(succeed), list[tuple[str, float | None]]()

    def progress(text: str, fraction: float | None = None) -> None:
        steps.append((text, fraction))

    first = export_program(SPEC, workspace, progress, tmp_path / "log", worker)
    assert ("lowering", 0.5) in steps
    assert (Path(first.folder) / "program.json").is_file()
    assert first.sha256 == sha256_file(Path(first.folder) / PROGRAM_FILE)
    assert (Path(first.folder) / "inputs/0.bin").read_bytes() == b"1"
    for spec in (SPEC, OTHER):
        again = export_program(spec, workspace, silent, tmp_path / "log", worker)
        assert again == first.model_copy(update={"cached": True})
    assert worker.runs == 1


def test_the_files_of_a_model_are_named_with_their_digests(
    workspace: Workspace, tmp_path: Path
) -> None:
    model = write_checkpoint(tmp_path / "model")
    spec = ExportSpec(hf=HfModel(folder=str(model)), backend="xnnpack", quantization="none")
    exported = export_program(spec, workspace, silent, tmp_path / "log", Worker(succeed))
    made = Provenance.load(Path(exported.folder) / EXPORT_INFO)
    names = ("config.json", "model.safetensors")
    assert made.code_files == {str(model / name): sha256_file(model / name) for name in names}


def describe_failure(folder: Path) -> None:
    failure = ExportFailure(kind="weights", message="the weights do not fit", file="w.pt")
    failure.save(folder.with_name(FAILURE_FILE))


@pytest.mark.parametrize(
    ("worker", "error", "fact"),
    [
        (Worker(describe_failure, 1), ExportError, "the weights do not fit"),
        (Worker(lambda _: None, -9), ExportError, "SIGKILL"),
        (Worker(lambda _: None, 5), ExportError, "exit code 5"),
        (Worker(lambda folder: (folder / PROGRAM_FILE).touch()), EtdeployError, "empty"),
    ],
)
def test_a_failed_export_leaves_nothing(
    workspace: Workspace, tmp_path: Path, worker: Worker, error: type[EtdeployError], fact: str
) -> None:
    with pytest.raises(error, match=fact):
        export_program(SPEC, workspace, silent, tmp_path / "log", worker)
    assert list((workspace.root / "programs").iterdir()) == []
