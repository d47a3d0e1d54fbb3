"""ExecuTorch from its sources, with a stand-in for the checkout: built, shared, mended, refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.core.errors import BuildError, Interrupted, require
from etdeploy.core.files.basic import resource_folder
from etdeploy.plan.model import RuntimePlan
from etdeploy.provider.checkout import REPOSITORY_VARIABLE, SOURCE_VARIABLE, revision
from etdeploy.provider.clone import clone, fetch_submodules
from etdeploy.provider.wheel import obtain_wheel
from etdeploy.runner.missing import require_runnable
from etdeploy.runner.toolchains import find_programs
from etdeploy.targets.platforms import find_target, host_target
from tests.support.cli import Cli, CliResult
from tests.support.export import SMALL, export_workspace  # noqa: F401 - a fixture
from tests.support.runtime_values import make_method, make_program
from tests.support.stand_in import (
    KERNELS,
    LOCAL_SUBMODULES,
    QUANTIZED,
    STAND_IN,
    SourceBuilds,
    copy_stand_in,
    git,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        host_target().name != "linux-x86_64", reason="the stand-in has the wheel's ELF libraries"
    ),
]

_RECIPE = f"""
model: {{example: mlp, arguments: {json.dumps(SMALL["mlp"])}}}
export: {{backend: portable}}
benchmark: {{iterations: 3, warmup: 1}}
"""
_NOT_QUANTIZED = make_program(
    make_method(operators=("aten::relu.out",), delegates=("XnnpackBackend",))
)
_OWN_TOOLCHAIN = str(resource_folder("toolchains") / "linux-aarch64.cmake")
_FROM_SOURCE = ("--set", "runtime.provider=source")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_stand_in(tmp_path_factory.mktemp("checkout") / "executorch")


@pytest.fixture(scope="module")
def builds(source: Path, tmp_path_factory: pytest.TempPathFactory) -> SourceBuilds:
    """A cache that the tests share which do not look at what is compiled when."""
    folder = tmp_path_factory.mktemp("builds")
    return SourceBuilds(source, Workspace(folder / "cache"), folder / "logs")


@pytest.fixture
def cli(export_workspace: Workspace, source: Path, tmp_path: Path) -> Cli:  # noqa: F811
    return Cli(export_workspace.root, tmp_path, {SOURCE_VARIABLE: str(source)})


def _own(tmp_path: Path, name: str = "executorch") -> SourceBuilds:
    """A checkout and a cache of the test's own."""
    source = copy_stand_in(tmp_path / "src" / name)
    return SourceBuilds(source, Workspace(tmp_path / "cache"), tmp_path)


def _refused(result: CliResult, *texts: str) -> None:
    assert result.code == 4, result.stderr
    assert "Traceback" not in result.stderr
    for text in texts:
        assert text in result.stderr
    assert "export     ..." not in result.stderr


# --- a run


def _outputs(record: dict[str, Any]) -> list[bytes]:
    folder = Path(record["folder"], record["files"]["outputs"])
    return [path.read_bytes() for path in sorted(folder.rglob("*.bin"))]


def test_a_runner_from_source_gives_what_the_wheels_gives(cli: Cli, source: Path) -> None:
    recipe = cli.recipe(_RECIPE)
    wheel = cli.ok("run", "--recipe", recipe, "--json").json
    built = cli.ok("run", "--recipe", recipe, *_FROM_SOURCE, "--json").json
    named = cli.ok(
        "run", "--recipe", recipe, "--set", f"runtime.source={source}", "--json",
        **{SOURCE_VARIABLE: ""},
    ).json  # fmt: skip
    for record in (built, named):
        assert record["runner"]["executorch_version"] == "1.4.1"
        assert all(o["within_tolerance"] for o in record["workload"]["outputs"])
        assert _outputs(record) == _outputs(wheel) != []
    # The tracer is in it: the profile pass left an ETDump.
    assert "etdump" in json.dumps(built["files"])
    assert wheel["runner"]["sha256"] != built["runner"]["sha256"] == named["runner"]["sha256"]


def test_a_changed_checkout_is_built_again_and_an_equal_one_is_not(
    cli: Cli, tmp_path: Path
) -> None:
    own = copy_stand_in(tmp_path / "executorch")
    arguments = ("build", "--recipe", cli.recipe(_RECIPE), *_FROM_SOURCE)
    environ = {SOURCE_VARIABLE: str(own)}
    cli.ok(*arguments, **environ)
    again = cli.ok(*arguments, **environ)
    assert "runner     up to date" in again.stderr
    (own / "sources" / "plain.cpp").write_text("static int changed [[maybe_unused]] = 1;\n")
    changed = cli.ok(*arguments, **environ)
    assert "runner     ..." in changed.stderr
    assert "export     up to date" in changed.stderr


# --- what is linked and compiled


@pytest.mark.nightly
def test_registrations_are_kept_and_what_is_not_linked_is_not_compiled(
    builds: SourceBuilds,
) -> None:
    runner = builds.build(builds.plan(), "all")
    assert {KERNELS, QUANTIZED} <= set(runner.operators)
    assert runner.backends == ("XnnpackBackend",)
    steps = "\n".join(builds.steps("all"))
    assert "portable_ops_lib" in steps
    for name in ("not_linked", "executor_runner", "optimized_native_cpu_ops_lib", "flatcc"):
        assert name not in steps
    assert not list(builds.source.rglob("*.a"))


@pytest.mark.nightly
def test_flatccs_library_stays_out_of_the_source_tree(builds: SourceBuilds) -> None:
    before = revision(builds.source)
    builds.build(builds.plan(profile=True), "tracer")
    assert any("flatcc.c" in step for step in builds.steps("tracer"))
    assert not list(builds.source.rglob("*.a"))
    assert revision(builds.source) == before


@pytest.mark.nightly
def test_builds_within_the_build_have_jobs_and_the_compiler_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ccache = tmp_path / "bin" / "ccache"
    ccache.parent.mkdir()
    ccache.write_text('#!/bin/sh\nexec "$@"\n')
    ccache.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ccache.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("CMAKE_BUILD_PARALLEL_LEVEL", raising=False)
    own = _own(tmp_path)
    own.build(own.plan(profile=True))
    text = own.log("build").read_text()
    [told] = re.findall(r"^nested: launcher (\S+), jobs (\d+), make (.*)", text, re.MULTILINE)
    assert told[:2] == (str(ccache), str(len(os.sched_getaffinity(0))))
    assert f"-j{told[1]}" in told[2]


@pytest.mark.nightly
def test_a_fully_delegated_program_compiles_no_kernels(builds: SourceBuilds) -> None:
    program = make_program(make_method(delegates=("XnnpackBackend",)))
    runner = builds.build(builds.plan(program=program), "delegated")
    assert KERNELS not in runner.operators
    assert not any("aten::relu" in name for name in runner.operators)
    assert not any("ops_lib" in step for step in builds.steps("delegated"))


def test_a_small_runner_has_a_library_that_catches(builds: SourceBuilds) -> None:
    plan = builds.plan(optimize="size")
    assert plan.option("EXECUTORCH_OPTIMIZE_SIZE") == "ON"
    assert builds.build(plan, "small").backends == ("XnnpackBackend",)


def test_of_the_kernels_files_only_those_of_the_programs_operators_are_compiled(
    cli: Cli, tmp_path: Path
) -> None:
    own = copy_stand_in(tmp_path / "executorch")
    kernels = own / "kernels" / "portable"
    unused = kernels / "cpu" / "op_unused.cpp"
    unused.write_text("#error it was compiled\n")
    arguments = ("build", "--recipe", cli.recipe(_RECIPE), *_FROM_SOURCE)
    environ = {SOURCE_VARIABLE: str(own)}
    assert KERNELS in cli.ok(*arguments, "--json", **environ).json["operators"]
    # Where one of them cannot be told, all are.
    listed = kernels / "functions.yaml"
    listed.write_text(listed.read_text().replace("op: relu.out", "op: another.out"))
    failed = cli(*arguments, **environ)
    assert failed.code == 4
    assert f"{unused}:1:2: error: #error it was compiled" in failed.stderr


def test_only_what_an_option_touches_is_compiled_again(tmp_path: Path) -> None:
    own = _own(tmp_path)
    first = own.build(own.plan(), "first")
    # Equal needs: the runner itself is taken, nothing is started.
    assert own.build(own.plan(threads=2), "equal") == first
    assert own.steps("equal") == []
    # An option that no source file sees.
    second = own.build(own.plan(weight_cache=True), "unseen")
    assert second.path != first.path
    assert not any("Building" in step for step in own.steps("unseen"))
    # One library less: the runner, which is told what it links, and nothing of the others.
    own.build(own.plan(program=_NOT_QUANTIZED), "fewer")
    built = [step for step in own.steps("fewer") if "Building" in step]
    assert [step for step in built if "main.cpp" not in step] == []
    # Going back costs nothing.
    assert own.build(own.plan(), "back") == first
    assert own.steps("back") == []


def test_etdeploys_own_kernels_are_compiled_into_a_build_from_source(builds: SourceBuilds) -> None:
    operators = ("aten::relu.out", "etdeploy::attention.out", "etdeploy::rotate.out")
    program = make_program(make_method(operators=operators, delegates=("XnnpackBackend",)))
    plan = builds.plan(program=program)
    assert "kernels_etdeploy" in plan.component_names
    built = builds.build(plan, "kernels")
    require_runnable(program, built)
    assert set(operators[1:]) <= set(built.operators)


@pytest.mark.nightly
def test_another_compiler_by_hand_is_not_taken_for_the_last_one(
    builds: SourceBuilds, tmp_path: Path
) -> None:
    builds.build(builds.plan(), "before")
    compiler = tmp_path / "own-g++"
    compiler.write_text('#!/bin/sh\nexec g++ -DBY_HAND "$@"\n')
    compiler.chmod(0o755)
    plan = builds.plan(program=_NOT_QUANTIZED, cmake={"CMAKE_CXX_COMPILER": str(compiler)})
    builds.build(plan, "another")
    assert any("portable_ops_lib" in step for step in builds.steps("another"))
    # What cmake knew of the other one does not hold for it.
    assert "The CXX compiler identification is" in builds.log("another").read_text()
    ninja = next((builds.workspace.root / "builds").glob("linux-x86_64-*/cmake/build.ninja"))
    assert str(compiler) in (ninja.parent / "CMakeFiles" / "rules.ninja").read_text()


def test_an_interrupted_build_goes_on(tmp_path: Path) -> None:
    own = _own(tmp_path)
    plan = own.plan()

    def stop(text: str, fraction: float | None = None) -> None:
        if fraction is not None and fraction > 0.4:
            cancel.request()

    try:
        with pytest.raises(Interrupted):
            own.build(plan, "stopped", stop)
    finally:
        cancel._requested.clear()
    assert not list((own.workspace.root / "runners").glob("[!.]*"))
    done = own.steps("stopped")
    assert done
    own.build(plan, "resumed")
    resumed = own.steps("resumed")
    assert not set(done[:-1]) & set(resumed)
    assert "configuring" not in own.log("resumed").read_text()
    whole = _own(tmp_path / "whole")
    whole.build(plan, "whole")
    assert len(resumed) < len(whole.steps("whole"))


def test_a_checkout_in_a_folder_of_another_name_is_built(tmp_path: Path) -> None:
    own = _own(tmp_path, "et-1.4.1")
    runner = own.build(own.plan())
    assert KERNELS in runner.operators
    assert sorted(p.name for p in (tmp_path / "src").iterdir()) == ["et-1.4.1"]


def test_a_compiler_error_in_the_checkout_is_shown_with_file_and_line(tmp_path: Path) -> None:
    own = _own(tmp_path)
    file = own.source / "sources" / "portable.cpp"
    file.write_text(file.read_text() + "int broken() { return missing; }\n")
    line = len(file.read_text().splitlines())
    with pytest.raises(BuildError) as raised:
        own.build(own.plan())
    assert f"{file}:{line}:23: error: " in raised.value.message
    assert "missing" in raised.value.message
    assert raised.value.log == own.log("build")
    log = own.log("build").read_text()
    assert "FAILED:" in log
    assert "cmake" in log.splitlines()[0]
    # Mended, the build goes on.
    file.write_text("\n".join(file.read_text().splitlines()[:-1]))
    assert KERNELS in own.build(own.plan()).operators


def test_a_download_that_fails_is_told_with_what_does_without_it(tmp_path: Path) -> None:
    own = _own(tmp_path)
    with (own.source / "third-party" / "CMakeLists.txt").open("a") as stream:
        # As cmake's own script says it.
        stream.write(
            "message(FATAL_ERROR \"error: downloading 'https://a/kleidiai.zip' failed\")\n"
        )
    with pytest.raises(BuildError) as raised:
        own.build(own.plan())
    assert "downloading 'https://a/kleidiai.zip' failed" in raised.value.message
    assert "--set runtime.kleidiai=false" in (raised.value.remedy or "")
    assert raised.value.log == own.log("build")


# --- revisions with git


def test_the_revision_of_a_clone_follows_its_files_and_submodules(tmp_path: Path) -> None:
    repository = _repository(tmp_path)
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--recurse-submodules", str(repository), str(clone))
    commit = git(clone, "rev-parse", "HEAD")
    assert revision(clone) == commit
    for leftover in ("third-party/flatcc/lib/libflatccrt.a", "x/__pycache__/a.pyc"):
        (clone / leftover).parent.mkdir(parents=True, exist_ok=True)
        (clone / leftover).write_text("made by a build")
    assert revision(clone) == commit
    seen = {commit}
    for name in (
        "sources/plain.cpp",
        "third-party/json/json.hpp",
        "third-party/json/untracked.hpp",
        "sources/untracked.cpp",
        "backends/own/untracked.cpp",
        "backends/own/more/untracked.cpp",
    ):
        file = clone / name
        file.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            with file.open("a") as stream:
                stream.write("// changed\n")
            seen.add(revision(clone))
    assert len(seen) == 13
    assert all(r.startswith(f"{commit}+") for r in seen - {commit})
    git(clone, "clean", "-qfd")
    git(clone, "checkout", "-q", ".")
    for command in ("clean -qfd", "checkout -q ."):
        git(clone / "third-party/json", *command.split())
    assert revision(clone) == commit


def test_what_git_is_told_to_hide_in_a_checkout_is_seen(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--recurse-submodules", str(_repository(tmp_path)), str(clone))
    git(clone, "config", "status.showUntrackedFiles", "no")
    git(clone, "config", "submodule.third-party/json.ignore", "all")
    commit = revision(clone)
    (clone / "third-party/json/json.hpp").write_text("// changed\n")
    (clone / "own").mkdir()
    (clone / "own/a.cpp").write_text("")
    seen = {commit, revision(clone)}
    (clone / "own/a.cpp").write_text("// changed\n")
    seen.add(revision(clone))
    assert len(seen) == 3
    # A submodule that was unpacked, as git knows nothing of.
    shutil.rmtree(clone / "third-party/json")
    seen.add(revision(clone))
    (clone / "third-party/json").mkdir()
    (clone / "third-party/json/json.hpp").write_text("// unpacked\n")
    seen.add(revision(clone))
    (clone / "third-party/json/json.hpp").write_text("// unpacked, changed\n")
    seen.add(revision(clone))
    assert len(seen) == 6


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(_repository(tmp_path)), str(clone))
    commit = revision(clone)
    (clone / "private").touch(mode=0)
    assert revision(clone).startswith(f"{commit}+")


def test_submodules_that_a_fork_committed_as_files_are_its_own(tmp_path: Path) -> None:
    fork = copy_stand_in(tmp_path / "executorch")
    (fork / ".gitmodules").write_text('[submodule "j"]\n\tpath = third-party/json\n')
    git(fork, "init", "-q", ".")
    git(fork, "add", ".")
    git(fork, "commit", "-q", "-m", "Fork")
    commit = git(fork, "rev-parse", "HEAD")
    assert revision(fork) == commit
    (fork / "third-party/json/README.md").write_text("changed")
    assert revision(fork).startswith(f"{commit}+")


def test_a_submodule_at_another_commit_and_a_builds_leftovers_in_one(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--recurse-submodules", str(_repository(tmp_path)), str(clone))
    commit = revision(clone)
    (clone / "third-party/json/__pycache__").mkdir()
    (clone / "third-party/json/__pycache__/a.pyc").write_text("made by a build")
    assert revision(clone) == commit
    git(clone / "third-party/json", "commit", "-q", "--allow-empty", "-m", "Another")
    assert revision(clone).startswith(f"{commit}+")


def test_a_copy_inside_another_repository_is_not_taken_for_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", ".")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "Empty")
    inside = copy_stand_in(tmp_path / "executorch")
    before = revision(inside)
    assert before.startswith("files-")
    (inside / "sources" / "plain.cpp").write_text("")
    assert revision(inside) != before


# --- clones


def _repository(folder: Path, version: str = "1.5.1") -> Path:
    """A git repository of the stand-in, with one submodule."""
    module = folder / "json"
    module.mkdir()
    git(module, "init", "-q", ".")
    (module / "json.hpp").write_text("// json\n")
    git(module, "add", ".")
    git(module, "commit", "-q", "-m", "Json")
    repository = copy_stand_in(folder / "repository", version)
    shutil.rmtree(repository / "third-party/json")
    git(repository, "init", "-q", ".")
    git(repository, "submodule", "--quiet", "add", module.as_uri(), "third-party/json")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "Stand in")
    git(repository, "tag", f"v{version}")
    return repository


@pytest.mark.nightly
def test_a_release_is_cloned_with_just_its_submodules_and_built(
    export_workspace: Workspace,  # noqa: F811
    tmp_path: Path,
) -> None:
    repository = _repository(tmp_path)
    environ = {REPOSITORY_VARIABLE: repository.as_uri(), SOURCE_VARIABLE: "", **LOCAL_SUBMODULES}
    cli = Cli(export_workspace.root, tmp_path, environ)
    clone = cli.cache / "sources" / "v1.5.1" / "executorch"
    shutil.rmtree(clone.parent, ignore_errors=True)
    try:
        arguments = ("build", "--recipe", cli.recipe(_RECIPE), *_FROM_SOURCE)
        told = {
            m["what"]: m for m in cli.ok("plan", *arguments[1:], "--json").json["not_installed"]
        }
        assert "v1.5.1" in told["ExecuTorch's sources"]["why"]
        assert not clone.exists()
        built = cli.ok(*arguments, "--json").json
        assert KERNELS in built["operators"]
        assert (clone / "third-party" / "json" / "json.hpp").is_file()
        assert git(clone, "rev-list", "--count", "HEAD") == "1"
        # From here on the cache is enough.
        again = cli.ok(*arguments, **{REPOSITORY_VARIABLE: "file:///nowhere"})
        assert "runner     up to date" in again.stderr
        assert cli.ok("plan", *arguments[1:], "--json").json["not_installed"] == []
    finally:
        shutil.rmtree(clone.parent, ignore_errors=True)


def test_a_repository_that_cannot_be_reached_is_told_with_a_way_out(
    cli: Cli, tmp_path: Path
) -> None:
    result = cli(
        "build", "--recipe", cli.recipe(_RECIPE), *_FROM_SOURCE,
        **{SOURCE_VARIABLE: "", REPOSITORY_VARIABLE: f"file://{tmp_path}/absent"},
    )  # fmt: skip
    assert result.code == 4, result.stderr
    assert "Traceback" not in result.stderr
    assert f"git cannot fetch file://{tmp_path}/absent" in result.stderr
    assert f"export {SOURCE_VARIABLE}=/path/to/executorch" in result.stderr
    assert not (cli.cache / "sources" / "v1.5.1").exists() or not list(
        (cli.cache / "sources" / "v1.5.1").iterdir()
    )


@pytest.mark.nightly
def test_a_submodule_that_cannot_be_fetched_is_told_and_fetched_the_next_time(
    export_workspace: Workspace,  # noqa: F811
    tmp_path: Path,
) -> None:
    repository = _repository(tmp_path)
    module = tmp_path / "json"
    away = module.rename(tmp_path / "away")
    environ = {REPOSITORY_VARIABLE: repository.as_uri(), SOURCE_VARIABLE: "", **LOCAL_SUBMODULES}
    cli = Cli(export_workspace.root, tmp_path, environ)
    clones = cli.cache / "sources" / "v1.5.1"
    shutil.rmtree(clones, ignore_errors=True)
    try:
        arguments = ("--recipe", cli.recipe(_RECIPE), *_FROM_SOURCE)
        failed = cli("build", *arguments)
        assert failed.code == 4, failed.stderr
        assert "git cannot fetch third-party/json: " in failed.stderr
        assert "Traceback" not in failed.stderr
        missing = cli.ok("plan", *arguments, "--json").json["not_installed"]
        assert [m["what"] for m in missing] == ["submodules"]
        away.rename(module)
        assert KERNELS in cli.ok("build", *arguments, "--json").json["operators"]
    finally:
        shutil.rmtree(clones, ignore_errors=True)


def test_a_submodule_whose_fetch_was_stopped_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in LOCAL_SUBMODULES.items():
        monkeypatch.setenv(name, value)
    workspace = Workspace(tmp_path / "cache")
    environ = {REPOSITORY_VARIABLE: _repository(tmp_path).as_uri()}
    checkout = clone(workspace, "1.5.1", environ)
    fetch_submodules(checkout, ("third-party/json", "no/such/submodule"), workspace)
    header = checkout.folder / "third-party" / "json" / "json.hpp"
    header.unlink()
    (header.parent / "half").write_text("")
    fetch_submodules(checkout, ("third-party/json",), workspace)
    assert not header.exists()  # it is noted as complete, and looked at no more
    (checkout.folder.parent / "submodules.json").unlink()
    fetch_submodules(checkout, ("third-party/json",), workspace)
    assert header.is_file()


# --- bad checkouts


def test_a_folder_that_the_recipe_names_is_told_with_its_line_and_with_what_helps(
    cli: Cli, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    recipe = cli.recipe(f"{_RECIPE}runtime: {{source: '{tmp_path}/empty'}}\n")
    # A good one in the environment is in vain: the recipe comes first.
    refused = cli("run", "--recipe", recipe)
    _refused(
        refused,
        f"recipe.yaml:5:11: runtime.source names {tmp_path}/empty, which is not a checkout",
        "and add --set runtime.source=executorch-1.5.1,",
    )
    assert "export ETDEPLOY" not in refused.stderr
    arguments = ("plan", "--recipe", recipe, "--set", f"runtime.source={source}", "--json")
    assert cli.ok(*arguments).json["not_installed"] == []


def test_a_missing_submodule_is_refused_before_the_export(cli: Cli, tmp_path: Path) -> None:
    own = copy_stand_in(tmp_path / "executorch")
    shutil.rmtree(own / "third-party/json")
    (own / "third-party/json").mkdir()
    _refused(
        cli("run", "--recipe", cli.recipe(_RECIPE), *_FROM_SOURCE, **{SOURCE_VARIABLE: str(own)}),
        "does not have submodules that the build compiles: third-party/json",
        f"{own} was not cloned with git, so unpack each of them",
    )
    git(own, "init", "-q", ".")
    _refused(
        cli("run", "--recipe", cli.recipe(_RECIPE), *_FROM_SOURCE, **{SOURCE_VARIABLE: str(own)}),
        f"git -C {own} submodule update --init --recursive --depth 1 -- third-party/json",
    )


def test_an_option_that_the_checkout_lost_is_a_mistake_of_ours_before_cmake(
    cli: Cli, tmp_path: Path
) -> None:
    own = copy_stand_in(tmp_path / "executorch")
    file = own / "tools/cmake/preset/default.cmake"
    file.write_text(file.read_text().replace("EXECUTORCH_ENABLE_PROGRAM_VERIFICATION", "OTHER"))
    result = cli(
        "build", "--recipe", cli.recipe(_RECIPE), *_FROM_SOURCE, **{SOURCE_VARIABLE: str(own)}
    )
    assert result.code == 4, result.stderr
    assert "etdeploy derived the option EXECUTORCH_ENABLE_PROGRAM_VERIFICATION" in result.stderr
    assert "Traceback" not in result.stderr
    assert "configuring" not in result.stderr


def test_a_switch_that_the_program_needs_cannot_be_set_off(cli: Cli) -> None:
    result = cli(
        "build", "--recipe", cli.recipe(_RECIPE), *_FROM_SOURCE,
        "--set", "runtime.cmake={EXECUTORCH_BUILD_PORTABLE_OPS: false}",
    )  # fmt: skip
    _refused(result, "EXECUTORCH_BUILD_PORTABLE_OPS off", "from runtime.cmake")


# --- the plan


def test_the_plan_is_made_on_a_machine_that_has_nothing(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "cache", tmp_path, {"PATH": "", SOURCE_VARIABLE: "", "HOME": "/nowhere"})
    plan = cli.ok("plan", *_FROM_SOURCE, "--target", "android-arm64", "--format", "json").json
    assert plan["provisional"]
    assert plan["build_target"] == "android-arm64"
    assert plan["blockers"] == []
    for option in plan["options"]:
        assert set(option) == {"name", "value", "reason", "by_hand"}
        assert isinstance(option["value"], str)
        assert option["reason"]
    names = {option["name"]: option["value"] for option in plan["options"]}
    assert names["EXECUTORCH_BUILD_XNNPACK"] == "ON"
    assert names["ANDROID_ABI"] == "arm64-v8a"
    missing = {m["what"]: m for m in plan["not_installed"]}
    assert {"toolchain", "ExecuTorch's sources", "git"} <= set(missing)
    assert "NDK" in missing["toolchain"]["why"]
    assert all(m["why"] and m["remedy"] for m in missing.values())
    assert not (tmp_path / "etdeploy-out").exists()


@pytest.mark.nightly
def test_the_plan_follows_the_recipe_and_then_the_program(
    export_workspace: Workspace,  # noqa: F811
    source: Path,
    tmp_path: Path,
) -> None:
    cli = Cli(export_workspace.root, tmp_path, {SOURCE_VARIABLE: str(source)})
    # A shape that no other test exports: this one begins without a program.
    shape = json.dumps({"features": 40, "width": 72, "layers": 2})
    recipe = cli.recipe(
        _RECIPE.replace(json.dumps(SMALL["mlp"]), shape).replace("portable", "xnnpack")
    )
    arguments = ("plan", "--recipe", recipe, *_FROM_SOURCE)
    before = cli.ok(*arguments, "--json").json
    assert before["provisional"]
    assert before["changes"] == []
    assert before["executorch_version"] == "1.4.1"
    cli.ok("export", "--recipe", recipe)
    after = cli.ok(*arguments, "--json").json
    assert not after["provisional"]
    changes = {c["name"]: c for c in after["changes"]}
    portable = changes["EXECUTORCH_BUILD_PORTABLE_OPS"]
    assert (portable["before"], portable["now"]) == ("ON", "OFF")
    assert "outside the delegates" in portable["reason"]
    assert changes["EXECUTORCH_BUILD_KERNELS_OPTIMIZED"]["now"] is None
    text = cli.ok(*arguments).stdout
    assert "EXECUTORCH_BUILD_PORTABLE_OPS: ON -> OFF" in text
    why = cli.ok(*arguments, "--why", "EXECUTORCH_BUILD_XNNPACK").stdout
    assert why.startswith("EXECUTORCH_BUILD_XNNPACK=ON\n  because method forward delegates ")
    assert cli.ok(*arguments, "--why", "build_xnnpack").stdout == why
    unknown = cli(*arguments, "--why", "EXECUTORCH_BUILD_XNPACK")
    assert unknown.code == 2
    assert "Did you mean EXECUTORCH_BUILD_XNNPACK" in unknown.stderr


# --- the project by itself


def _cmake(*arguments: str, cwd: Path) -> str:
    cmake, ninja = require(find_programs())
    environ = {**os.environ, "PATH": f"{ninja.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [str(cmake), *arguments], cwd=cwd, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _listed(runner: Path, libraries: Path) -> dict[str, list[str]]:
    """What a runner has that was not collected with its libraries."""
    done = subprocess.run(
        [str(runner), "--list-kernels"],
        env={**os.environ, "LD_LIBRARY_PATH": str(libraries)}, capture_output=True, check=True,
    )  # fmt: skip
    listed: dict[str, list[str]] = json.loads(done.stdout)
    return listed


@pytest.mark.nightly
def test_plain_cmake_gets_the_same_runner_from_the_preset(cli: Cli, tmp_path: Path) -> None:
    own = f"runtime.custom_ops={STAND_IN.parent}/custom_ops/bounds/kernels"
    arguments = ("--recipe", cli.recipe(_RECIPE), *_FROM_SOURCE, "--set", own)
    built = cli.ok("build", *arguments, "--json").json
    project = tmp_path / "project"
    shutil.copytree(resource_folder("templates") / "runner", project)
    preset = cli.ok("plan", *arguments, "--format", "cmake-preset").stdout
    (project / "CMakePresets.json").write_text(preset)
    _cmake("--preset", "etdeploy", cwd=project)
    _cmake("--build", "--preset", "etdeploy", cwd=project)
    folder = project / "build" / "etdeploy"
    listed = _listed(folder / "etdeploy-runner", folder / "wheel")
    assert sorted(listed["operators"]) == sorted(built["operators"])
    assert {KERNELS, "bounds::of.out"} <= set(listed["operators"])
    kernels = json.loads(preset)["configurePresets"][0]["cacheVariables"]["ETDEPLOY_KERNEL_FILES"]
    assert kernels == "op_addmm.cpp;op_permute_copy.cpp;op_relu.cpp"


@pytest.mark.parametrize(
    ("provider", "target", "toolchain"),
    [
        ("source", "android-arm64", "$env{ANDROID_NDK}/build/cmake/android.toolchain.cmake"),
        (
            "source",
            "ios-arm64",
            f"$env{{{SOURCE_VARIABLE}}}/third-party/ios-cmake/ios.toolchain.cmake",
        ),
        ("source", "linux-aarch64", _OWN_TOOLCHAIN),
        ("wheel", "linux-aarch64", _OWN_TOOLCHAIN),
    ],
)
def test_the_preset_has_the_toolchain_of_the_target(
    provider: str, target: str, toolchain: str, tmp_path: Path
) -> None:
    cli = Cli(tmp_path / "cache", tmp_path, {SOURCE_VARIABLE: "", "HOME": "/nowhere"})
    arguments = ("--set", f"runtime.provider={provider}", "--target", target)
    preset = cli.ok("plan", *arguments, "--format", "cmake-preset").json["configurePresets"][0]
    variables = preset["cacheVariables"]
    assert variables["CMAKE_TOOLCHAIN_FILE"] == toolchain
    assert variables["ETDEPLOY_COMPONENTS"].startswith("runtime;")
    if provider == "source":
        assert variables["ETDEPLOY_EXECUTORCH_SOURCE"] == f"$env{{{SOURCE_VARIABLE}}}"
        assert "CMAKE_BUILD_TYPE=Release: " in preset["description"]


@pytest.mark.nightly
def test_a_runner_is_linked_against_an_install(source: Path, tmp_path: Path) -> None:
    build, prefix = tmp_path / "build", tmp_path / "prefix"
    options = ("EXTENSION_MODULE", "EXTENSION_NAMED_DATA_MAP", "EXTENSION_TENSOR", "DEVTOOLS")
    kernels = ("KERNELS_QUANTIZED", "XNNPACK")
    (tmp_path / "sources").mkdir()
    own = copy_stand_in(tmp_path / "sources" / "executorch")
    (own / "sources" / "broken.cpp").write_text("")  # an install compiles every target
    _cmake(
        "-G", "Ninja", "-S", str(own), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release",
        f"-DPYTHON_EXECUTABLE={sys.executable}", f"-DCMAKE_INSTALL_PREFIX={prefix}",
        *(f"-DEXECUTORCH_BUILD_{name}=ON" for name in (*options, *kernels)), cwd=tmp_path,
    )  # fmt: skip
    _cmake("--build", str(build), cwd=tmp_path)
    _cmake("--install", str(build), cwd=tmp_path)
    project, runner = resource_folder("templates") / "runner", tmp_path / "runner"
    components = "runtime;threadpool;kernels_portable;kernels_quantized;backend_xnnpack;etdump"
    _cmake(
        "-G", "Ninja", "-S", str(project), "-B", str(runner), "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_PREFIX_PATH={prefix}", f"-DETDEPLOY_COMPONENTS={components}",
        "-Detdeploy_targets_backend_xnnpack=xnnpack_backend", cwd=tmp_path,
    )  # fmt: skip
    _cmake("--build", str(runner), "--target", "etdeploy-runner", cwd=tmp_path)
    listed = _listed(runner / "etdeploy-runner", build / "wheel")
    assert {KERNELS, QUANTIZED} <= set(listed["operators"])
    assert listed["backends"] == ["XnnpackBackend"]


# --- a full disk


@contextmanager
def _small_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


# The build copies the wheel's libraries beside it, and the cache has them beside the runner.
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system")
@pytest.mark.parametrize(("room", "doing"), [(0.2, "configuring"), (1.6, "storing")])
def test_a_full_disk_is_told_and_the_build_goes_on_when_there_is_room(
    room: float, doing: str, source: Path, tmp_path: Path
) -> None:
    wheel = obtain_wheel(host_target(), host_target(), Workspace.default())
    libraries = sum(p.stat().st_size for p in (Path(wheel.root) / "lib").glob("libexecutorch*.so"))
    with _small_disk(tmp_path / "disk", str(int(room * libraries))) as disk:
        builds = SourceBuilds(source, Workspace(disk), tmp_path / "logs")
        with pytest.raises(BuildError) as raised:
            builds.build(builds.plan())
        assert raised.value.message.startswith(f"{doing} the runner failed: the disk is full")
        assert "ETDEPLOY_CACHE_DIR" in (raised.value.remedy or "")
        assert not list((disk / "runners").glob("[!.]*"))
        subprocess.run(["mount", "-o", f"remount,size={5 * libraries}", str(disk)], check=True)
        assert KERNELS in builds.build(builds.plan()).operators


# --- QNN

_QNN = make_program(
    make_method(operators=("aten::relu.out",), delegates=("QnnBackend", "XnnpackBackend"))
)


def _for_this_machine(plan: RuntimePlan) -> RuntimePlan:
    """Without the blocker that Qualcomm's own libraries are for phones only."""
    return plan.model_copy(update={"blockers": ()})


@pytest.mark.nightly
def test_qnns_profiler_is_off_where_nothing_is_traced(builds: SourceBuilds, tmp_path: Path) -> None:
    runner = builds.build(_for_this_machine(builds.plan(program=_QNN, profile=True)), "qnn")
    assert "QnnBackend" in runner.backends

    def says(*arguments: str) -> str:
        executable = str(Path(runner.path) / runner.executable)
        command = [executable, "--program", "absent.pte", "--results", "r.json", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stderr

    assert "stand-in: qnn_runtime_profile_level=0\n" in says()
    traced = says("--etdump", "trace.etdp")
    assert "stand-in" not in traced
    assert "cannot read the program absent.pte" in traced


# --- another machine

needs_cross = pytest.mark.skipif(
    not (shutil.which("aarch64-linux-gnu-g++") and shutil.which("qemu-aarch64-static")),
    reason="needs g++-aarch64-linux-gnu and qemu-user-static",
)


def _arm64_plan(builds: SourceBuilds, **options: Any) -> RuntimePlan:
    target = find_target("linux-aarch64")
    wheel = obtain_wheel(target, host_target(), Workspace.default())
    return builds.plan("linux-aarch64", cmake={"STANDIN_WHEEL": wheel.root}, **options)


@pytest.mark.nightly
@needs_cross
def test_a_cross_built_runner_runs_under_qemu(builds: SourceBuilds) -> None:
    plan = _arm64_plan(builds)
    assert plan.option("EXECUTORCH_XNNPACK_ENABLE_KLEIDI") == "OFF"
    runner = builds.build(plan, "aarch64")
    assert runner.listed_by == "runner"
    assert {KERNELS, QUANTIZED} <= set(runner.operators)
    assert runner.backends == ("XnnpackBackend",)


def _hide(pattern: str, folder: Path) -> str:
    """A PATH with everything that PATH has, except what the pattern names."""
    folder.mkdir()
    for found in (p for path in os.environ["PATH"].split(":") for p in Path(path).glob("*")):
        if not fnmatch(found.name, pattern) and not (folder / found.name).is_symlink():
            (folder / found.name).symlink_to(found)
    return str(folder)


@pytest.mark.nightly
@needs_cross
def test_a_shared_backend_of_the_build_is_listed_where_the_runner_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = _own(tmp_path)
    plan = _for_this_machine(_arm64_plan(own, program=_QNN))
    there = own.build(plan, "started")
    assert there.listed_by == "runner"
    assert there.backends == ("QnnBackend", "XnnpackBackend")
    monkeypatch.setenv("PATH", _hide("qemu-*", tmp_path / "bin"))
    here = replace(own, workspace=Workspace(tmp_path / "other")).build(plan, "read")
    assert here.listed_by == "libraries"
    assert "libqnn_executorch_backend.so" in here.libraries
    assert here.backends == there.backends
    assert KERNELS in there.operators
    require_runnable(_QNN, here)
