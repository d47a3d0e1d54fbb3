"""Several recipes or devices on the command line: what is told, in which form, with which code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from etdeploy.cli import main as cli_main
from etdeploy.core.errors import (
    BuildError,
    DeviceError,
    EtdeployError,
    ExportError,
    Interrupted,
    JobsError,
    MismatchError,
    PluginError,
    RunError,
)
from etdeploy.graph import invocation
from etdeploy.graph.invocation import raise_failures
from etdeploy.graph.jobs import Member, RecipeDevicePair
from etdeploy.graph.run import JobEnd
from etdeploy.graph.tasks.engine import StepError
from tests.support.bench_values import make_check, make_device, make_run

Capture = pytest.CaptureFixture[str]


def end(
    recipe: str,
    error: Exception | None = None,
    device: str = "host",
    same_as: RecipeDevicePair | None = None,
) -> JobEnd:
    job = SimpleNamespace(facts=make_device(device).facts, device=None)
    loaded = SimpleNamespace(name=recipe, path=Path(f"/r/{recipe}.yaml"))
    member = Member(RecipeDevicePair(recipe, device), cast(Any, loaded), cast(Any, job))
    return JobEnd(member, error, same_as)


def run(*arguments: str) -> int:
    return cli_main.run_cli(list(arguments))


def test_what_failed_is_listed_with_reasons_remedies_and_logs() -> None:
    ends = [
        end("a"),
        end("b", ExportError("no model", remedy="fix it", log=Path("/s/b/export.log"))),
        end("c", ExportError("no model"), same_as=RecipeDevicePair("b", "host")),
        end("d", RunError("it crashed")),
    ]
    with pytest.raises(JobsError) as caught:
        raise_failures(ends)
    assert str(caught.value) == (
        "3 of 4 failed\n"
        "  b on host: export: no model\n"
        "      what to do: fix it\n"
        "      log: /s/b/export.log\n"
        "  d on host: run: it crashed\n"
        "  c on host: it needs what failed for b on host"
    )
    assert (caught.value.exit_code, caught.value.kind) == (7, "run")


def test_what_was_found_for_each_job_alone_is_told_once_if_it_is_the_same() -> None:
    ends = [end("a", ExportError("m.py:1: no Python"), device) for device in ("host", "qemu")]
    with pytest.raises(JobsError) as caught:
        raise_failures([*ends, end("b", BuildError("m.py:1: no Python"))])
    assert str(caught.value) == (
        "3 of 3 failed\n"
        "  a on host, a on qemu: export: m.py:1: no Python\n"
        "  b on host: build: m.py:1: no Python"
    )


def test_each_plugin_that_failed_names_a_log_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETDEPLOY_CACHE_DIR", str(tmp_path))
    errors = [PluginError(f"the plug-in {name} failed", remedy="Tell them.") for name in "xy"]
    with pytest.raises(JobsError) as caught:
        raise_failures([end(str(error), error) for error in errors])
    assert (caught.value.exit_code, caught.value.kind) == (9, "plug-in")
    for error in errors:
        assert error.log
        assert f"PluginError: {error.message}" in error.log.read_text()
        assert str(error.log) in str(caught.value)
    assert "Give them the log" in str(caught.value)


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([BuildError("x"), ExportError("y")], 4),
        ([ExportError("x"), MismatchError("y"), DeviceError("z")], 8),
        ([Interrupted(), DeviceError("z")], 6),
    ],
)
def test_the_worst_gives_the_exit_code(errors: Sequence[EtdeployError], code: int) -> None:
    with pytest.raises(JobsError) as caught:
        raise_failures([end(str(i), error) for i, error in enumerate(errors)])
    assert caught.value.exit_code == code
    assert JobsError.exit_code == 9, "the class itself is unchanged"


def test_a_bug_comes_out_as_one_after_the_other_failures(capsys: Capture) -> None:
    with pytest.raises(StepError):
        raise_failures([end("a", BuildError("no compiler")), end("b", StepError("step x failed"))])
    told = capsys.readouterr().err
    assert "a on host: build: " in told
    assert "b on host: bug: " in told


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Ends and runs that the next command gets instead of running anything."""
    script: list[Any] = []

    @contextmanager
    def invoked(*_: Any) -> Iterator[list[JobEnd]]:
        yield [each for each, _ in script]

    def last_run(job: Any) -> Any:
        return next(run for each, run in script if each.member.job is job)

    monkeypatch.setattr(invocation, "run_recipes", invoked)
    monkeypatch.setattr("etdeploy.graph.on_device.load_last_run", last_run)
    monkeypatch.setattr("etdeploy.cli.verbs.run._report_unchanged", lambda *_: None)
    return script


def test_outputs_that_differ_are_a_row_and_a_failure(played: list[Any], capsys: Capture) -> None:
    wrong = make_run(outputs=(make_check(within_tolerance=False),))
    played += [(end("a"), make_run()), (end("b"), wrong)]
    assert run("run", "-r", "a", "-r", "b") == 8
    out, err = capsys.readouterr()
    assert "WRONG" in out
    assert "  a on host  /out/20261121T084449Z-mlp-host-ab12cd34/record.json" in out.splitlines()
    assert err.startswith("error (outputs differ): ")
    assert "b on host: " in err


def test_json_of_several_is_an_array_with_the_failures(played: list[Any], capsys: Capture) -> None:
    played += [(end("a"), make_run()), (end("b", ExportError("no model", remedy="fix it")), None)]
    assert run("run", "-r", "a", "-r", "b", "--json") == 3
    first, second = json.loads(capsys.readouterr().out)
    assert first == make_run().printed()
    assert second["recipe"] == {"name": "b", "path": "/r/b.yaml"}
    assert second["device"]["facts"]["name"] == first["device"]["facts"]["name"] == "host"
    assert second["error"] == {
        "kind": "export", "exit_code": 3, "message": "no model", "place": None, "remedy": "fix it",
        "log": None, "same_as": None,
    }  # fmt: skip


@pytest.mark.parametrize("verb", ["run", "bench", "plan", "export", "build"])
def test_all_broken_recipes_are_told_before_anything_starts(
    verb: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ETDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("a", "b"):
        Path(f"{name}.yaml").write_text("model: {example: mlp}\nfoo: 1\n")
    assert (
        run(verb, "-r", "a.yaml", "-r", "xnnpack", "-r", "b.yaml", "--set", "benchmark.warmup=x")
        == 2
    )
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error (recipe): ")
    assert "\na.yaml:2:1: " in err
    assert "\nb.yaml:2:1: " in err
    assert err.count("--set benchmark.warmup") == 1, "what is wrong with it is told once"
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("export", "-o", "x"), "--output takes the files of one recipe"),
        (("build", "-o", "x"), "--output takes the files of one recipe"),
        (("plan", "--format", "cmake-preset"), "is for one recipe and one device"),
    ],
)
def test_what_is_for_one_job_only(
    arguments: tuple[str, ...], told: str, capsys: Capture, tmp_path: Path
) -> None:
    assert run(*arguments, "-r", "xnnpack", "-r", "portable") == 2
    assert told in capsys.readouterr().err
