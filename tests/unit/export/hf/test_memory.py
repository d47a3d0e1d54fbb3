"""What an export is expected to take of memory, as headers tell, and what there is."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from etdeploy.core.console import size
from etdeploy.core.errors import ExportError
from etdeploy.export.hf import memory
from etdeploy.export.hf.memory import (
    MachineMemory,
    PeakMemory,
    cache_bytes,
    device_refusal,
    language_model_sizes,
    machine_memory,
    memory_details,
    memory_forecast,
    memory_notes,
    memory_refusal,
    own_bytes,
    unloaded_note,
)
from etdeploy.export.needs import check_language_model
from etdeploy.export.spec import ExportSpec, HfModel
from etdeploy.recipe.sections.export import ExportGeneration
from tests.support.checkpoints import LLAMA, write_checkpoint
from tests.support.facts import lacks

GB = 10**9
SHORT = ExportGeneration(context=64)
# 10^9 weights, of which a table of embeddings has a tenth.
SHAPES = {"model.embed_tokens.weight": (100_000, 1000)} | {
    f"model.layers.0.mlp.{n}.weight": (10_000, 9000) for n in range(10)
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "m", SHAPES, vocab_size=100_000)


def of(folder: Path, scheme: str = "8da4w") -> ExportSpec:
    model = HfModel(folder=str(folder))
    generation = ExportGeneration(context=64)
    return ExportSpec(hf=model, generation=generation, backend="xnnpack", quantization=scheme)


def give(monkeypatch: pytest.MonkeyPatch, total: float, free: float) -> None:
    """The machine has as much memory."""
    machine = MachineMemory(round(total), round(free))
    monkeypatch.setattr(memory, "machine_memory", lambda: machine)


def test_weights_are_in_files_only_where_memory_does_not_hold_them(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, 16 * GB, 16 * GB)
    fits = memory_forecast(of(checkpoint), checkpoint)
    assert fits is not None
    assert fits.mapped_bytes is not None
    assert not fits.maps
    assert list(fits.notes()) == []
    # 16-bit weights are not held as floats, which take more than 4 GB.
    assert fits.mapped_bytes < fits.held_bytes == fits.expected_bytes == fits.least_bytes < 3 * GB
    assert fits.mapped_bytes < 2 * GB  # what the weights take as 16-bit floats
    give(monkeypatch, 16 * GB, 2 * GB)
    scarce = memory_forecast(of(checkpoint), checkpoint)
    assert scarce is not None
    assert scarce.maps
    assert scarce.expected_bytes == fits.mapped_bytes
    [note] = scarce.notes()
    assert not lacks(note, "in files", size(fits.held_bytes), "2.0 GB were free")
    assert list(memory_notes(of(checkpoint))) == [note]  # as `plan` shows it
    adapter = {"adapters": {"poems": HfModel(id="org/poems")}}
    adapted = memory_forecast(of(checkpoint).model_copy(update=adapter), checkpoint)
    assert adapted is not None
    assert not adapted.maps
    floats = memory_forecast(of(checkpoint, "none"), checkpoint)
    assert floats is not None
    assert floats.expected_bytes == floats.held_bytes > floats.least_bytes > 4 * GB
    assert not floats.maps
    [note] = floats.notes()
    assert not lacks(note, "may need", "2.0 GB were free")


def test_too_little_memory_is_refused_before_anything_is_loaded(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, 2 * GB, GB)
    assert memory_refusal(memory_forecast(of(checkpoint), checkpoint), checkpoint) is None
    floats = memory_refusal(memory_forecast(of(checkpoint, "none"), checkpoint), checkpoint)
    assert floats is not None
    assert floats.place == str(checkpoint)
    assert not lacks(floats.message, "more than 4.", "has 2.0 GB")
    assert "export.quantization=8da4w" in str(floats.remedy)
    give(monkeypatch, GB / 2, GB / 2)
    with pytest.raises(ExportError, match=r"weights in files.*500\.0 MB"):
        check_language_model(of(checkpoint))


def test_the_backend_judges_the_sizes_of_a_language_model(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, 200 * GB, 200 * GB)
    spec = of(checkpoint, "16a8w").model_copy(update={"backend": "qnn", "soc": "SM8750"})
    forecast = memory_forecast(spec, checkpoint)
    assert forecast is not None
    # The only table of the vocabulary's size counts twice: it is the output layer, too.
    assert forecast.expected_bytes == (640 << 20) + round(3.7 * 4 * 1.1 * GB) * 2
    assert forecast.sentences[0].startswith("1,100 million weights take about 2.")
    assert list(memory_notes(spec)) == list(forecast.sentences)
    assert memory_refusal(forecast, checkpoint) is None
    floats = memory_forecast(spec.model_copy(update={"quantization": "fp16"}), checkpoint)
    refusal = memory_refusal(floats, checkpoint)
    assert refusal is not None
    assert not lacks(refusal.message, "2.2 GB as fp16", "at most 2.1 GB")
    with pytest.raises(ExportError, match="context binary"):
        check_language_model(spec.model_copy(update={"quantization": "fp16"}))
    speech = spec.model_copy(update={"task": "automatic-speech-recognition"})
    other = memory_forecast(speech, checkpoint)
    assert other is not None
    assert (other.blocker, other.sentences) == (None, ())


def test_a_checkpoint_whose_configuration_does_not_tell(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    (folder / "config.json").unlink()
    assert memory_forecast(of(folder), folder) is None
    assert memory_refusal(memory_forecast(of(folder), folder), folder) is None
    assert memory_details(None, 5) == {"peak_bytes": 5}


def test_a_program_is_not_loaded_where_memory_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.pte"
    program.write_bytes(b"")
    give(monkeypatch, 16 * GB, own_bytes() + GB)
    assert unloaded_note(program) is None
    give(monkeypatch, 16 * GB, own_bytes() // 2)
    assert not lacks(unloaded_note(program) or "", "not loaded")


@pytest.mark.parametrize(
    ("line", "folder", "names", "limits"),
    [
        (
            "4:memory:/a/b",
            "memory",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
            [(700, 250), (1000, 550)],
        ),
        ("0::/a/b", "", ("memory.max", "memory.current", "active_file"), [(700, 250), (1000, 550)]),
        ("0::/a", "", ("memory.max", "memory.current", "active_file"), [(1000, 550)]),
        ("5:cpu:/a/b", "", ("memory.max", "memory.current", "active_file"), []),
    ],
)
def test_control_groups_limit_a_process(
    tmp_path: Path, line: str, folder: str, names: tuple[str, str, str], limits: list[Any]
) -> None:
    limit, used, dropped = names
    for path, most in ((tmp_path / folder / "a", "1000"), (tmp_path / folder / "a/b", "700")):
        path.mkdir(parents=True)
        (path / limit).write_text(f"{most}\n")
        (path / used).write_text("500\n")
        (path / "memory.stat").write_text(f"{dropped} 50\nrss 450\n")
    (tmp_path / folder / limit).write_text("max\n")
    membership = tmp_path / "cgroup"
    membership.write_text(f"{line}\n")
    assert list(memory._group_limits(membership, tmp_path)) == limits


def test_the_memory_of_a_machine_without_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SimpleNamespace(total=5 * GB, available=3 * GB)
    monkeypatch.setattr("psutil.virtual_memory", lambda: machine)
    monkeypatch.setattr("psutil.swap_memory", lambda: SimpleNamespace(total=GB, free=GB // 2))
    monkeypatch.setattr(memory, "_group_limits", lambda *_: [])
    found = machine_memory()
    assert found.total_bytes == 6 * GB
    assert found.free_bytes > 3.5 * GB  # with what this process has already


def test_the_peak_is_that_of_the_block() -> None:
    with PeakMemory() as peak:
        before = peak.bytes()
        large = bytearray(b"x" * (64 << 20))
        during = peak.bytes()
        del large
        after = peak.bytes()
    assert during - before > 48 << 20
    assert after == during
    assert peak.bytes() == after


def test_the_memory_is_watched_without_opening_files() -> None:
    opened: list[int] = []
    watched = threading.Event()

    def hear(event: str, _: object) -> None:
        if watched.is_set() and event == "open":
            opened.append(threading.get_ident())

    with PeakMemory() as peak:
        sys.addaudithook(hear)
        watched.set()
        for _ in range(5):
            peak.bytes()
            time.sleep(0.05)
        watched.clear()
    assert opened == []


@pytest.mark.parametrize(
    ("changes", "positions"),
    [
        ({"sliding_window": None}, 2 * 64),
        ({"sliding_window": 16}, 2 * 16),
        ({"sliding_window": 100}, 2 * 64),
        ({"sliding_window": 16, "use_sliding_window": False}, 2 * 64),
        ({"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}, 16 + 64),
    ],
)
def test_a_layer_with_a_window_keeps_no_more_than_that(
    changes: dict[str, Any], positions: int
) -> None:
    config = LLAMA | {"num_hidden_layers": 2} | changes
    assert cache_bytes(config, SHORT) == 2 * 2 * 4 * positions * 4


@pytest.mark.parametrize(("cache", "row"), [("float32", 32), ("float16", 16), ("int8", 8 + 4)])
def test_a_smaller_cache_has_smaller_rows(cache: Any, row: int) -> None:
    config = LLAMA | {"num_hidden_layers": 2, "head_dim": 8, "num_key_value_heads": 3}
    asked = SHORT.model_copy(update={"cache": cache})
    assert cache_bytes(config, asked) == 2 * 3 * row * 2 * 64


@pytest.mark.parametrize(("window", "sinks", "positions"), [(16, 4, 20), (16, 0, 16), (62, 4, 64)])
def test_a_window_has_its_positions_and_sinks(window: int, sinks: int, positions: int) -> None:
    config = LLAMA | {"num_hidden_layers": 2}
    asked = SHORT.model_copy(update={"window": window, "sinks": sinks})
    assert cache_bytes(config, asked) == 2 * 2 * 4 * 2 * positions * 4


def test_a_context_whose_cache_is_larger_than_the_device_is_refused(checkpoint: Path) -> None:
    spec = of(checkpoint)
    config = json.loads((checkpoint / "config.json").read_text())
    needed = cache_bytes(config, SHORT)
    assert device_refusal(spec, "phone", needed) is None
    refused = device_refusal(spec, "phone", needed - 1)
    assert refused is not None
    assert refused.key == ("export", "generation", "context")
    assert not lacks(refused.message, "64 positions", "float32", "phone")
    # Half of the memory, as a power of two.
    assert not lacks(refused.remedy or "", "--context 16\n", "export.generation.cache=int8")
    assert spec.generation is not None
    small = spec.generation.model_copy(update={"cache": "int8"})
    spec = spec.model_copy(update={"generation": small})
    assert device_refusal(spec, "phone", needed - 1) is None
    refused = device_refusal(spec, "phone", needed // 10)
    assert refused is not None
    assert "export.generation.cache" not in (refused.remedy or "")


def test_layers_are_counted_by_their_paths() -> None:
    shapes = {
        "model.embed_tokens.weight": (1000, 64),
        "model.norm.weight": (64,),
        "model.layers.0.self_attn.qkv_proj.weight": (4 * 16 + 2 * 2 * 16, 64),
        "model.layers.0.mlp.down_proj.weight": (64, 128),
    }
    config = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = language_model_sizes(ExportSpec(), config, 64_000, shapes)
    qkv = "model.layers.0.self_attn.qkv_proj.parts"
    assert sizes.layers == {
        f"{qkv}.0": 64 * 64,
        f"{qkv}.1": 32 * 64,
        f"{qkv}.2": 32 * 64,
        "model.layers.0.mlp.down_proj": 64 * 128,
        "lm_head": 64_000,  # tied
    }
