"""Inspection of programs that ExecuTorch wrote, against ExecuTorch's own flatc."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.program.inspect import inspect_file
from etdeploy.program.model import Method, TensorInfo
from tests.support.export import run_python

pytestmark = pytest.mark.integration

_NAMES = ("xnnpack", "portable", "counter", "two_methods")
_DTYPES = {"FLOAT": "float32", "LONG": "int64", "BOOL": "bool", "HALF": "float16"}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    run_python("-m", "tests.support.program_export", str(folder))
    return folder


def _sdk() -> Path:
    spec = importlib.util.find_spec("executorch")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def _flatc(schema: str, file: Path, folder: Path) -> Any:
    command = [
        str(_sdk() / "data" / "bin" / "flatc"), "--json", "--strict-json", "--raw-binary",
        "--defaults-json", "-o", str(folder), str(_sdk() / schema), "--", str(file),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return json.loads((folder / f"{file.stem}.json").read_text())


@pytest.mark.parametrize("name", _NAMES)
def test_inspection_agrees_with_flatc(programs: Path, tmp_path: Path, name: str) -> None:
    path = programs / f"{name}.pte"
    whole = _flatc("schema/program.fbs", path, tmp_path)
    program = inspect_file(path)
    assert program.schema_version == whole["version"]
    assert len(program.methods) == len(whole["execution_plan"])
    for method, plan in zip(program.methods, whole["execution_plan"], strict=True):
        _compare(method, plan, whole.get("segments") or [])
    assert program.constant_bytes == _constant_bytes(whole)


def _compare(method: Method, plan: Any, segments: Any) -> None:
    assert method.name == plan["name"]
    assert method.planned_memory_bytes == sum(plan["non_const_buffer_sizes"][1:])
    for infos, indices in ((method.inputs, plan["inputs"]), (method.outputs, plan["outputs"])):
        values = [plan["values"][i] for i in indices]
        found = [
            (i.dtype, list(i.shape), i.dynamic) if isinstance(i, TensorInfo) else None
            for i in infos
        ]
        assert found == [_tensor(v) for v in values]
    instructions = [i for chain in plan["chains"] for i in chain["instructions"]]
    assert method.instructions == len(instructions)
    names = [
        f"{o['name']}.{o['overload']}" if o["overload"] else o["name"] for o in plan["operators"]
    ]
    calls = Counter(
        names[i["instr_args"]["op_index"]]
        for i in instructions
        if i["instr_args_type"] == "KernelCall"
    )
    assert {o.name: o.calls for o in method.operators} == dict(calls)
    assert [(d.backend_id, d.size_bytes) for d in method.delegates] == [
        (d["id"], segments[d["processed"]["index"]]["size"]) for d in plan["delegates"]
    ]


def _tensor(value: Any) -> Any:
    if value["val_type"] != "Tensor":
        return None
    tensor = value["val"]
    dynamic = tensor["shape_dynamism"] != "STATIC"
    return _DTYPES[tensor["scalar_type"]], tensor["sizes"], dynamic


def test_initial_state_counts_as_constant(programs: Path) -> None:
    assert inspect_file(programs / "counter.pte").constant_bytes >= 6 * 8


def _constant_bytes(whole: Any) -> int:
    indices = {data["segment_index"] for data in whole.get("named_data") or []}
    groups = [whole.get("constant_segment"), *(whole.get("mutable_data_segments") or [])]
    indices |= {g["segment_index"] for g in groups if g and len(g["offsets"]) > 1}
    return sum(whole["segments"][i]["size"] for i in indices)


def test_nodes_of_xnnpack_agree_with_flatc(programs: Path, tmp_path: Path) -> None:
    path = programs / "xnnpack.pte"
    content = path.read_bytes()
    whole = _flatc("schema/program.fbs", path, tmp_path)
    base = int.from_bytes(content[24:32], "little")
    delegates = inspect_file(path).methods[0].delegates
    assert len(delegates) > 1
    for delegate, written in zip(delegates, whole["execution_plan"][0]["delegates"], strict=True):
        segment = whole["segments"][written["processed"]["index"]]
        payload = content[base + segment["offset"] :][: segment["size"]]
        start, size = (int.from_bytes(payload[at : at + 4], "little") for at in (10, 14))
        graph = tmp_path / "graph.bin"
        graph.write_bytes(payload[start : start + size])
        nodes = _flatc("backends/xnnpack/serialization/schema.fbs", graph, tmp_path)["xnodes"]
        assert delegate.nodes == len(nodes) > 0


@pytest.mark.parametrize(
    "name",
    [n if n == "counter" else pytest.param(n, marks=pytest.mark.nightly) for n in _NAMES],
)
def test_damaged_programs_give_a_program_or_a_clean_error(
    programs: Path, tmp_path: Path, name: str
) -> None:
    sound = (programs / f"{name}.pte").read_bytes()
    end = int.from_bytes(sound[16:24], "little")  # behind it are weights
    choose = random.Random(0)
    path = tmp_path / "damaged.pte"
    refused = 0
    for _ in range(1500):
        content = bytearray(sound)
        for _ in range(choose.choice((1, 1, 2, 8, 32))):
            place = choose.randrange(end)
            content[place] = choose.choice((0, 255, choose.randrange(256), content[place] ^ 1))
        path.write_bytes(content)
        try:
            inspect_file(path)
        except UsageError:
            refused += 1
    assert 0 < refused < 1500
