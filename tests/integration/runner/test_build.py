"""Building runners: for other targets, as portable runners, and when something is wrong."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.core.errors import BuildError, Interrupted
from etdeploy.plan.model import RuntimePlan
from etdeploy.provider.checkout import Libraries
from etdeploy.provider.wheel import obtain_wheel
from etdeploy.runner.builder import build_runner, runner_key
from etdeploy.runner.compile import read_built, read_libraries
from etdeploy.runner.model import BuiltRunner
from etdeploy.targets.platforms import find_target, host_target
from tests.support.runtime_runs import Start, build, differences, plan_here
from tests.support.runtime_values import make_method, make_program

_QEMU = shutil.which("qemu-aarch64-static")
_CROSS = shutil.which("aarch64-linux-gnu-g++")
_SYSROOT = Path("/usr/aarch64-linux-gnu")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        host_target().name != "linux-x86_64", reason="builds arm64 runners on Linux x86_64"
    ),
]
needs_cross = pytest.mark.skipif(
    not (_CROSS and _QEMU), reason="needs g++-aarch64-linux-gnu and qemu-user-static"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="chroot is for root only")

# /proc and /sys are there on every device; XNNPACK asks them which processor it has. They are
# mounted in a namespace of their own, which ends with the runner.
_IN_ROOT = (
    "unshare", "--mount", "sh", "-c",
    'mount -t proc proc "$0/proc" && mount --bind /sys "$0/sys" && exec chroot "$0" "$@"',
)  # fmt: skip

_PROGRAM = make_program(make_method(operators=("aten::addmm.out",), delegates=("XnnpackBackend",)))
_SMALL = make_program(make_method(operators=("executorch_prim::add.Scalar",)))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("cache"))


def _build(target: str, workspace: Workspace) -> BuiltRunner:
    return build(plan_here(_PROGRAM, target), workspace)


@needs_cross
def test_cross_built_runner_gives_the_same_outputs(
    programs: Path, export_workspace: Workspace, tmp_path: Path
) -> None:
    runner = _build("linux-aarch64", export_workspace)
    assert runner.listed_by == "runner"
    assert runner.loader is None
    start = Start(runner, prefix=(str(_QEMU), "-L", str(_SYSROOT)))
    for name in ("mlp_xnnpack", "mlp_portable"):
        folder = tmp_path / name
        folder.mkdir()
        run = start.run(programs / name, folder, "--iterations", "3")
        assert run.exit_code == 0, run.stderr
        assert max(differences(programs / name, run)) < 1e-5


@needs_cross
def test_libraries_alone_tell_what_the_runner_lists(export_workspace: Workspace) -> None:
    runner = _build("linux-aarch64", export_workspace)
    read = read_libraries(sorted(Path(runner.path).glob("libexecutorch*.so")))
    assert (read.operators, read.backends) == (runner.operators, runner.backends)


@needs_cross
@pytest.mark.nightly
def test_runner_is_listed_from_its_libraries_where_qemu_is_missing(
    export_workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = _build("linux-aarch64", export_workspace)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("aarch64-linux-gnu-g++", "aarch64-linux-gnu-ld", "aarch64-linux-gnu-as"):
        (tools / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(tools))
    here = _build("linux-aarch64", Workspace(tmp_path / "cache"))
    assert here.listed_by == "libraries"
    assert (here.operators, here.backends) == (there.operators, there.backends)


def test_a_real_shared_backend_is_read_by_the_name_that_it_registers(
    export_workspace: Workspace,
) -> None:
    """ExecuTorch's wheel has Qualcomm's backend as the shared library that a build makes, too."""
    wheel = obtain_wheel(host_target(), host_target(), export_workspace)
    libraries = Path(wheel.root) / "lib"
    core, backend = libraries / "libexecutorch.so", libraries / "libexecutorch_backend_qnn.so"
    assert read_built(core).backends == ()
    read = read_built(core, [backend])
    assert read.backends == ("QnnBackend",)
    # It has no kernels of its own.
    assert read.operators == read_built(core).operators != ()


def _root(runner: BuiltRunner, program: Path, folder: Path) -> Path:
    """A root folder that holds the runner, a program and nothing else: no C library of its own."""
    shutil.copytree(runner.path, folder / "bundle")
    shutil.copytree(program, folder / "program")
    for name in ("run", "proc", "sys"):
        (folder / name).mkdir()
    return folder


@needs_root
@pytest.mark.parametrize(
    "target",
    ["android-x86_64", pytest.param("android-arm64", marks=(needs_cross, pytest.mark.nightly))],
)
def test_portable_runner_runs_where_there_is_no_c_library(
    target: str, programs: Path, export_workspace: Workspace, tmp_path: Path
) -> None:
    runner = _build(target, export_workspace)
    assert runner.loader is not None
    assert "libc.so.6" in runner.libraries
    root = _root(runner, programs / "mlp_xnnpack", tmp_path / "root")
    emulator: tuple[str, ...] = ()
    if target == "android-arm64":
        shutil.copy(str(_QEMU), root / "qemu")
        emulator = ("/qemu",)
    loader = (f"/bundle/{runner.loader}", "--library-path", "/bundle")
    prefix = (*_IN_ROOT, str(root), *emulator, *loader)
    start = Start(runner.model_copy(update={"path": "/bundle"}), prefix=prefix)
    run = start.run(
        Path("/program/program.pte"),
        tmp_path,
        "--outputs",
        "/run/outputs",
        "--results",
        "/run/results.json",
        "--iterations",
        "3",
        inputs=Path("/program/inputs.txt"),
    )
    assert run.exit_code == 0, run.stderr
    inside = type(run)(run.exit_code, run.stderr, root / "run")
    assert max(differences(programs / "mlp_xnnpack", inside)) < 1e-5


@needs_root
def test_ordinary_runner_does_not_run_there(
    programs: Path, export_workspace: Workspace, tmp_path: Path
) -> None:
    runner = _build("linux-x86_64", export_workspace)
    root = _root(runner, programs / "mlp_xnnpack", tmp_path / "root")
    start = Start(runner.model_copy(update={"path": "/bundle"}), prefix=(*_IN_ROOT, str(root)))
    run = start.run(Path("/program/program.pte"), tmp_path)
    assert run.exit_code != 0
    assert "No such file" in run.stderr


@pytest.fixture(scope="module")
def small_plan() -> RuntimePlan:
    return plan_here(_SMALL, profile=False)


def test_equal_needs_share_one_runner(small_plan: RuntimePlan, workspace: Workspace) -> None:
    other = make_program(make_method("encode", operators=("aten::sym_size.int",)))
    first = build(small_plan, workspace)
    before = (Path(first.path) / first.executable).stat().st_mtime_ns
    second = build(plan_here(other, profile=False), workspace)
    assert second == first
    assert (Path(second.path) / second.executable).stat().st_mtime_ns == before


def test_damaged_cached_runner_is_built_anew(small_plan: RuntimePlan, workspace: Workspace) -> None:
    runner = build(small_plan, workspace)
    executable = Path(runner.path) / runner.executable
    executable.write_bytes(b"damaged")
    again = build(small_plan, workspace)
    assert again == runner
    assert executable.stat().st_size > 10_000


def _libraries(sha256: str | None = None) -> Libraries:
    wheel = obtain_wheel(host_target(), host_target(), Workspace.default())
    return Libraries(wheel=wheel.model_copy(update={"sha256": sha256 or wheel.sha256}))


def test_key_follows_flags_libraries_and_plan(
    small_plan: RuntimePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = _libraries()
    keys = [
        runner_key(small_plan, libraries, host_target()),
        runner_key(plan_here(_PROGRAM), libraries, host_target()),
        runner_key(small_plan, _libraries("1"), host_target()),
    ]
    monkeypatch.setenv("CXXFLAGS", "-g")
    keys.append(runner_key(small_plan, libraries, host_target()))
    assert len(set(keys)) == 4


def test_compilers_first_error_is_in_the_message_and_all_in_the_log(
    small_plan: RuntimePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXXFLAGS", "-Werror -include no-such-header.h")
    log = tmp_path / "build.log"
    workspace = Workspace(tmp_path / "cache")
    with pytest.raises(BuildError, match=r"no-such-header\.h") as raised:
        build(small_plan, workspace, log)
    assert raised.value.log == log
    assert "no-such-header.h" in log.read_text()
    assert not list((tmp_path / "cache" / "runners").glob("*"))


def test_missing_cross_compiler_is_told_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_here(_PROGRAM, "linux-aarch64")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="linux-aarch64") as raised:
        build(plan, Workspace(tmp_path / "cache"))
    assert raised.value.remedy == "apt-get install g++-aarch64-linux-gnu"


def test_component_that_the_package_lacks_is_told(small_plan: RuntimePlan, tmp_path: Path) -> None:
    options = tuple(
        o.model_copy(update={"value": "runtime;backend_vulkan"})
        if o.name == "ETDEPLOY_COMPONENTS"
        else o
        for o in small_plan.options
    )
    plan = small_plan.model_copy(update={"options": options})
    with pytest.raises(BuildError, match="backend_vulkan"):
        build_runner(plan, _libraries(), Workspace(tmp_path))


def test_stopped_build_leaves_no_entry_and_the_next_one_works(
    small_plan: RuntimePlan, tmp_path: Path
) -> None:
    workspace = Workspace(tmp_path)

    def stop_when_compiling(text: str, fraction: float | None = None) -> None:
        if text.startswith("configuring"):
            threading.Timer(0.1, cancel.request).start()

    try:
        with pytest.raises(Interrupted):
            build_runner(small_plan, _libraries(), workspace, stop_when_compiling)
    finally:
        cancel._requested.clear()
    assert not list((tmp_path / "runners").glob("*"))
    assert Path(build(small_plan, workspace).path).is_dir()


@needs_cross
def test_fetched_wheel_is_kept_with_its_digest_and_rebuilt_when_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(tmp_path)
    target, host = find_target("linux-aarch64"), host_target()
    wheel = obtain_wheel(target, host, workspace)
    assert (wheel.origin, wheel.target, len(wheel.sha256)) == ("fetched", "linux-aarch64", 64)
    assert {"runtime", "backend_xnnpack", "kernels_optimized"} <= set(wheel.components)
    assert "backend_qnn" not in wheel.components
    library = Path(wheel.root) / "lib" / "libexecutorch.so"
    library.write_bytes(b"damaged")
    assert obtain_wheel(target, host, workspace) == wheel
    assert library.stat().st_size > 100_000
    # From here on the cache has to be enough.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert obtain_wheel(target, host, workspace) == wheel


def test_wheel_that_cannot_be_fetched_is_told_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
        "PIP_NO_CACHE_DIR": "1",
        "PIP_EXTRA_INDEX_URL": "",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BuildError, match="ExecuTorch") as raised:
        obtain_wheel(find_target("linux-aarch64"), host_target(), Workspace(tmp_path))
    assert "pip download --no-deps" in (raised.value.remedy or "")
    assert "manylinux_2_28_aarch64" in (raised.value.remedy or "")
    assert not list((tmp_path / "wheels").glob("*"))
