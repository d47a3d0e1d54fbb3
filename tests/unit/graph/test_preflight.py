"""What stops a run before its first step, and what waits for the exported program."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etdeploy.cli.main import run_cli
from etdeploy.core.errors import BuildError, ExportError, UsageError
from etdeploy.export.derive import export_spec
from etdeploy.export.needs import check_language_model
from etdeploy.graph.explain import explain
from etdeploy.graph.job import Job
from etdeploy.graph.jobs import open_job
from etdeploy.graph.preflight import refuse_early
from etdeploy.graph.resolve import CachedProgram, Resolved, resolve
from etdeploy.program.model import EMPTY_PROGRAM
from etdeploy.provider.checkout import SOURCE_VARIABLE
from etdeploy.recipe.load import load_recipe
from tests.support.checkpoints import write_adapter, write_checkpoint
from tests.support.facts import lacks
from tests.support.machine import bare_machine, equip
from tests.support.text_values import make_generation
from tests.support.tokenizers import byte_level, save

_STAND_IN = Path(__file__).parents[2] / "data" / "checkout"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that can build natively and for Linux on arm64, but not for Android."""
    folder = bare_machine(tmp_path, monkeypatch)
    equip(folder, monkeypatch)
    monkeypatch.setattr("etdeploy.graph.preflight.check_needs", lambda _: None)
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "executorch"
    shutil.copytree(_STAND_IN, folder)
    return folder


def _resolved(checkout: Path, target: str | None = None, *overrides: str) -> Resolved:
    settings = ["runtime.provider=source", f"runtime.source={checkout}", *overrides]
    with open_job(load_recipe("xnnpack", settings), checkout.parent / "out", None, target) as job:
        return resolve(job)


def _leave_state(job: Job, **inputs: Any) -> None:
    """Files as an earlier run with other settings leaves them."""
    job.state.mkdir(parents=True)
    for step in ("export", "plan", "runtime", "runner"):
        (job.state / f"{step}.json").write_text("{}")
        (job.state / f"{step}.inputs.json").write_text(json.dumps(inputs))


def test_an_output_folder_is_asked_for_only_by_what_writes_a_record(machine: Path) -> None:
    (machine / "file").touch()
    with open_job(load_recipe("portable", ()), machine / "file", "host") as job:
        resolved = resolve(job)
    refuse_early(resolved)
    with pytest.raises(UsageError, match="cannot be written"):
        refuse_early(resolved, measures=True)


def test_a_missing_ndk_is_told_early_after_a_run_with_other_settings(
    machine: Path, checkout: Path
) -> None:
    resolved = _resolved(checkout, "android-arm64")
    _leave_state(resolved.job, **{"runtime.provider": "wheel"})
    with pytest.raises(BuildError, match="NDK"):
        refuse_early(resolved)


def test_what_only_this_recipe_lets_expect_waits_for_the_program(
    machine: Path, checkout: Path
) -> None:
    shutil.rmtree(checkout / "kernels/optimized/third-party/eigen")
    resolved = _resolved(checkout)
    assert "eigen" in " ".join(m.why for m in explain(resolved).not_installed)
    refuse_early(resolved)


def test_what_every_build_compiles_is_missed_early(machine: Path, checkout: Path) -> None:
    shutil.rmtree(checkout / "third-party/json")
    with pytest.raises(BuildError, match="third-party/json") as raised:
        refuse_early(_resolved(checkout))
    assert "FP16" not in str(raised.value)


def test_the_wheel_is_named_by_its_own_release(
    machine: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / "version.txt").write_text("1.4.1\n")
    monkeypatch.setenv(SOURCE_VARIABLE, str(checkout))
    recipe = load_recipe("xnnpack", ["export.backend=vulkan"])
    with open_job(recipe, checkout.parent / "out", None, "linux-x86_64") as job:
        plan = resolve(job).plan
    assert plan.executorch_version == "1.4.1"
    assert "1.5.1 wheel" in plan.provider.reason


def test_a_check_of_the_plan_ends_as_the_run_would(
    machine: Path, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["plan", "--target", "android-arm64", "--set", f"runtime.source={checkout}"]
    assert run_cli(command) == 0
    assert "NDK" in capsys.readouterr().out
    assert run_cli([*command, "--check"]) == 4
    shown = capsys.readouterr()
    assert "android-arm64" in shown.out.splitlines()[0]
    assert shown.err.startswith("error (build): ")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("gptq", "none of its tensors is"),
        ("bitsandbytes", "quantized by bitsandbytes"),
        ("a file of weights is missing", "model-00002-of-00002.safetensors"),
        ("pickles", "pytorch_model.bin"),
        ("an adapter", "adapter"),
        ("gguf", "m-Q4_0.gguf"),
    ],
)
def test_the_plan_of_a_language_model_that_cannot_be_exported_is_refused(
    machine: Path, tmp_path: Path, kind: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    quantized = kind in ("gptq", "bitsandbytes")
    settings = {"quant_method": kind, "bits": 4} if quantized else None
    folder = write_checkpoint(
        tmp_path / "m", max_position_embeddings=2048, quantization_config=settings
    )
    weights = folder / "model.safetensors"
    if kind == "pickles":
        weights.rename(folder / "pytorch_model.bin")
    elif kind == "a file of weights is missing":
        files = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
        weights.rename(folder / files["a"])
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    elif not quantized:
        weights.rename(folder / ("m-Q4_0.gguf" if kind == "gguf" else "adapter_model.safetensors"))
        (folder / "config.json").unlink()
    assert run_cli(["plan", "--recipe", "llm-xnnpack", "--model", str(folder)]) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"error (export): {folder}: ")
    assert message in shown.err
    with pytest.raises(ExportError, match=re.escape(message)):
        check_language_model(export_spec(load_recipe("llm-xnnpack", [f"--model={folder}"]).recipe))


def test_a_model_that_cannot_chat_is_refused_before_its_runner_is_built(
    machine: Path, tmp_path: Path
) -> None:
    with open_job(load_recipe("portable", ()), tmp_path / "out", "host") as job:
        resolved = resolve(replace(job, speech="chat"))
    folder = tmp_path / "program"
    save(byte_level(), folder / "tokenizer", template=None)
    exported = CachedProgram(folder, EMPTY_PROGRAM, {}, make_generation(tokenizer="tokenizer"))
    with pytest.raises(UsageError, match="chat template"):
        refuse_early(replace(resolved, exported=exported))


def test_what_is_told_of_a_language_model_was_read_with_its_program(
    machine: Path, tmp_path: Path
) -> None:
    overrides = [f"--model={machine}"]
    with open_job(load_recipe("llm-xnnpack", overrides), tmp_path / "out", "host") as job:
        resolved = resolve(job)
    generation = make_generation()
    exported = CachedProgram(tmp_path / "nothing", EMPTY_PROGRAM, {}, generation)
    told = explain(replace(resolved, exported=exported)).language_model
    assert {method.name for method in generation.methods} < {choice.name for choice in told}


def test_the_plan_of_an_adapter_that_cannot_be_used_is_refused(
    machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_checkpoint(tmp_path / "m", max_position_embeddings=2048)
    adapter = write_adapter(tmp_path / "a")
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    command = ["plan", "--recipe", "llm-xnnpack", "--model", str(model)]
    assert run_cli([*command, "--set", f"model.lora={adapter}"]) == 3
    shown = capsys.readouterr()
    assert shown.err.startswith(f"error (export): {adapter}: ")
    assert not lacks(shown.err, "adapter_model.bin", "weights_only=True")


def test_a_cache_that_is_larger_than_the_device_is_refused_before_the_export(
    machine: Path, tmp_path: Path
) -> None:
    model = write_checkpoint(tmp_path / "m", max_position_embeddings=8192)
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        f"model: {{hf: {model}}}\nexport:\n  quantization: 8da4w\n  generation: {{context: 4096}}\n"
    )
    with open_job(load_recipe(str(recipe), ()), tmp_path / "out", "host") as job:
        assert job.facts is not None
        refuse_early(resolve(job))
        facts = job.facts.model_copy(update={"name": "phone", "memory_bytes": 1 << 10})
        with pytest.raises(
            ExportError, match=r"the cache of 4,096 positions takes .* phone"
        ) as told:
            refuse_early(resolve(replace(job, facts=facts)))
    assert told.value.place == f"{recipe}:4:16"
    assert "export.generation.cache=int8" in (told.value.remedy or "")
