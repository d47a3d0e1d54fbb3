"""The command line against exact text: help, mistakes, bugs, stops, plans."""

from __future__ import annotations

import errno
import json
import os
import re
import time
from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.cli import main as cli_main
from etdeploy.cli.verbs.farm import COMMANDS
from etdeploy.cli.verbs.plan import plan_text
from etdeploy.core.errors import Blocker, DeviceError, Interrupted
from etdeploy.core.values import ReasonedChoice
from etdeploy.graph.explain import ExplainedTask, Explanation, PlanChange, mermaid
from etdeploy.graph.invocation import keep_small
from tests.support.plugins import raised_by_plugin

Capture = pytest.CaptureFixture[str]


def run(*arguments: str) -> int:
    return cli_main.run_cli(list(arguments))


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Makes loading a recipe, the first thing that most verbs do, end with an error."""

    def load(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr("etdeploy.recipe.load.load_recipe", load)


@pytest.mark.parametrize("verb", [*cli_main.VERBS, *(f"farm {name}" for name in COMMANDS)])
def test_every_verb_has_help(verb: str, capsys: Capture) -> None:
    assert run(*verb.split(), "--help") == 0
    assert f"Usage: etdeploy {verb} " in capsys.readouterr().out


def test_an_unknown_verb(capsys: Capture) -> None:
    assert run("rnu") == 2
    shown = capsys.readouterr().err
    assert "'rnu'" in shown
    assert "'run'" in shown


def test_an_error_shows_place_remedy_and_log(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = DeviceError(
        "the device is offline", place="android:A1", remedy="Unplug it.\nPlug it in.",
        log=Path("push.log"),
    )  # fmt: skip
    failing(monkeypatch, error)
    assert run("plan") == 6
    assert capsys.readouterr().err == (
        "error (device): android:A1: the device is offline\n"
        "  what to do: Unplug it.\n"
        "              Plug it in.\n"
        "  log: push.log\n"
    )


def test_a_bug_of_a_plugin_keeps_its_traceback_for_its_authors(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ETDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    failing(monkeypatch, raised_by_plugin(tmp_path / "site", monkeypatch))
    assert run("plan") == 9
    [log] = (tmp_path / "cache" / "logs").glob("bug-*.log")
    assert "ZeroDivisionError" in log.read_text()
    shown = capsys.readouterr().err
    assert shown.startswith(f"error (plug-in): {tmp_path}/site/lab_zero.py:2: ")
    assert "etdeploy-lab 1.2" in shown
    assert shown.endswith(f"log: {log}\n")


def test_a_disk_full_error_is_no_bug(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, cache_folder: Path
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", str(cache_folder / "plan.json"))
    error = RuntimeError("step plan failed")
    error.__cause__ = full
    failing(monkeypatch, error)
    assert run("plan") == 4
    shown = capsys.readouterr().err
    assert shown.startswith(f"error (build): {cache_folder}/plan.json: ")
    assert "ETDEPLOY_CACHE_DIR=" in shown


def test_a_cache_that_cannot_be_used_is_no_bug(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ETDEPLOY_CACHE_DIR", str(tmp_path / "file"))
    assert run("plan") == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"error (usage): {tmp_path}/file: ")
    assert "ETDEPLOY_CACHE_DIR=" in shown


@pytest.mark.parametrize(("temporary", "told"), [("tmp", "log: {0}/tmp/etdeploy-bug-"), ("no", "")])
def test_a_bug_report_is_never_named_where_it_is_not(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, temporary: str, told: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "no").touch()
    monkeypatch.setenv("ETDEPLOY_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / temporary))
    failing(monkeypatch, ZeroDivisionError("division by zero"))
    assert run("plan") == 9
    shown = capsys.readouterr().err
    if told:
        assert told.format(tmp_path) in shown
        assert "Traceback" not in shown
        assert len(list((tmp_path / "tmp").iterdir())) == 1
    else:
        assert "Traceback" in shown


def test_a_stop_ends_with_130(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, Interrupted())
    assert run("plan") == 130
    assert "Traceback" not in capsys.readouterr().err


def test_completion_scripts_name_the_program(capsys: Capture) -> None:
    for shell in ("zsh", "fish"):
        assert run("completion", shell) == 0
        assert "_ETDEPLOY_COMPLETE" in capsys.readouterr().out


def test_recipes_are_listed_shown_and_described(capsys: Capture) -> None:
    assert run("recipes") == 0
    assert "xnnpack" in capsys.readouterr().out
    assert run("recipes", "show", "--recipe", "xnnpack") == 0
    assert capsys.readouterr().out.startswith("# XNNPACK")
    assert run("recipes", "show", "--set", "benchmark.iterations=3") == 0
    assert json.loads(capsys.readouterr().out)["benchmark"]["iterations"] == 3
    assert run("recipes", "list", "--json") == 0
    assert {r["backend"] for r in json.loads(capsys.readouterr().out)} >= {"qnn", "vulkan"}
    assert run("recipes", "schema") == 0
    assert "$schema" in json.loads(capsys.readouterr().out)


def test_clean_shows_sizes_and_deletes_only_what_is_named(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ETDEPLOY_CACHE_DIR", str(tmp_path))
    (tmp_path / "locks").mkdir()
    for part in ("programs", "runners"):
        (tmp_path / part / "entry").mkdir(parents=True)
        (tmp_path / part / "entry" / "file").write_bytes(b"x" * 1500)
    assert run("clean") == 0
    assert re.search(r"^programs +1\.5 kB ", capsys.readouterr().out, re.MULTILINE)
    assert (tmp_path / "programs" / "entry").is_dir()
    assert run("clean", "programs", "--json") == 0
    assert json.loads(capsys.readouterr().out)["freed_bytes"] == {"programs": 1500}
    assert not (tmp_path / "programs").exists()
    assert (tmp_path / "runners" / "entry").is_dir()
    assert run("clean", "everything") == 2


EXPLANATION = Explanation(
    recipe="my",
    device="host",
    target="linux-x86_64",
    build_target="linux-x86_64",
    portable_runner=False,
    provisional=True,
    provider=ReasonedChoice(name="provider", value="wheel", reason="it has all"),
    executorch_version="1.5.1",
    toolchain=None,
    components=(ReasonedChoice(name="runtime", value="executorch::runtime", reason="always"),),
    options=(),
    changes=(
        PlanChange(
            name="EXECUTORCH_BUILD_PORTABLE_OPS", before="ON", now=None, reason="not needed"
        ),
    ),
    tasks=(
        ExplainedTask(
            name="export", value="up to date", reason="nothing changed", title="x", needs=()
        ),
        ExplainedTask(
            name="plan", value="run", reason="after export", title="y", needs=("export",)
        ),
    ),
    blockers=(Blocker(what="component z", why="it is in no wheel", remedy="Do without."),),
    not_installed=(Blocker(what="git", why="git is missing", remedy="apt-get install git"),),
    notes=("The schema is the same.",),
)


def test_a_plan_as_text() -> None:
    assert (
        plan_text(EXPLANATION)
        == """\
recipe my for linux-x86_64 (device host)
provisional: the program is not exported yet, so this is derived from the recipe

runtime
  provider=wheel  because it has all

components
  runtime=executorch::runtime  because always

cmake options
  none

changed by the program, compared with the plan from the recipe alone
  EXECUTORCH_BUILD_PORTABLE_OPS: ON -> not set  because not needed

tasks
  task    state       why
  ------  ----------  ---------------
  export  up to date  nothing changed
  plan    run         after export

blockers
  component z: it is in no wheel
    Do without.

not installed
  git: git is missing
    apt-get install git

notes
  The schema is the same."""
    )


def test_a_plan_as_a_flowchart() -> None:
    assert mermaid(EXPLANATION).splitlines() == [
        "flowchart LR",
        '    export["export<br/>x<br/><i>up to date</i>"]',
        '    plan["plan<br/>y<br/><i>would run</i>"]',
        "    export --> plan",
        "    classDef run fill:#fde68a,stroke:#b45309;",
        "    classDef done fill:#d1fae5,stroke:#047857;",
        "    class plan run;",
        "    class export done;",
    ]


def test_a_target_that_the_device_does_not_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("run", "--recipe", "xnnpack", "--device", "host", "--target", "android-arm64") == 2
    assert "android-arm64" in capsys.readouterr().err


def test_clean_deletes_nothing_in_a_folder_that_is_not_a_cache(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ETDEPLOY_CACHE_DIR", str(tmp_path))
    for name in ("sources", "bundles", "thesis"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").touch()
    for arguments in (["all"], ["sources"], ["--device", "host"]):
        assert run("clean", *arguments) == 2
        assert "(thesis)" in capsys.readouterr().err
    assert all((tmp_path / name / "mine").exists() for name in ("sources", "bundles", "thesis"))


def test_clean_shows_and_deletes_what_is_unused(
    capsys: Capture, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETDEPLOY_CACHE_MAX", "5 GB")
    (cache_folder / "locks").mkdir(parents=True)
    for part, days in (("builds", 31), ("sources", 31), ("zig", 1)):
        folder = cache_folder / part / "x"
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"x" * 1500)
        old_s = time.time() - days * 24 * 3600
        os.utime(folder, (old_s, old_s))
    assert run("clean") == 0
    shown = capsys.readouterr().out
    assert "5.0 GB" in shown.splitlines()[0]
    assert re.search(r"^builds +1\.5 kB +1\.5 kB ", shown, re.MULTILINE)
    assert re.search(r"^zig +1\.5 kB +0 B ", shown, re.MULTILINE)
    assert re.search(r"^all +4\.5 kB +3\.0 kB$", shown, re.MULTILINE)
    assert run("clean", "--unused", "builds", "zig") == 0
    assert re.search(r"^builds +1\.5 kB$", capsys.readouterr().out, re.MULTILINE)
    assert sorted(p.name for p in cache_folder.glob("*/x")) == ["x", "x"]
    assert run("clean", "--unused", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["freed_bytes"]["sources"] == told["unused_bytes"]["sources"] == 1500
    assert told["kept"] == []
    assert (cache_folder / "zig" / "x" / "file").is_file()


def test_clean_keeps_what_a_run_may_be_using_and_says_so(
    capsys: Capture, cache_folder: Path
) -> None:
    (cache_folder / "bundles" / "store").mkdir(parents=True)
    (cache_folder / "builds" / "linux-1").mkdir(parents=True)
    (cache_folder / "locks").mkdir()
    with Workspace.opened().in_use():
        assert run("clean", "builds") == 0
        assert run("clean", "--device", "host") == 0
    told = capsys.readouterr().err
    assert re.findall(r"^kept, .*: (\w+ .+)$", told, re.M) == ["builds linux-1", "device host"]
    assert (cache_folder / "builds" / "linux-1").is_dir()
    assert (cache_folder / "bundles" / "store").is_dir()
    assert run("clean", "builds", "--device", "host") == 0
    assert "kept" not in capsys.readouterr().err
    assert not (cache_folder / "bundles").exists()


@pytest.mark.parametrize(("quiet", "lines"), [(False, 1), (True, 0)])
def test_a_cache_that_became_too_large_is_made_smaller_in_one_line(
    capsys: Capture, cache_folder: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool, lines: int
) -> None:
    monkeypatch.setenv("ETDEPLOY_CACHE_MAX", "2 kB")
    workspace = Workspace.opened()
    (cache_folder / "builds" / "linux-1").mkdir(parents=True)
    (cache_folder / "builds" / "linux-1" / "file").write_bytes(b"x" * 3000)
    os.utime(cache_folder / "builds" / "linux-1", (1, 1))
    keep_small(workspace, quiet)
    assert not (cache_folder / "builds" / "linux-1").exists()
    told = capsys.readouterr().err.splitlines()
    removed = [line for line in told if line]
    assert len(removed) == lines
    assert all("builds, 3.0 kB" in line for line in removed)
    keep_small(workspace, quiet=False)
    assert capsys.readouterr().err == ""
