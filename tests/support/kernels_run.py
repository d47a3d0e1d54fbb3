"""Runs etdeploy's own kernels on tensors of many sizes, against what the operators compute eagerly.

`python -m tests.support.kernels_run FOLDER` writes one line of JSON at the end.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from executorch.exir import to_edge
from executorch.runtime import Runtime, Verification

from etdeploy.export.worker.language.attention import ATTENTION, PACK, ROTATE
from etdeploy.export.worker.language.cache_places import packed, unpacked
from etdeploy.export.worker.lowering.linear_kernel import KernelLinear
from tests.support.own_kernels import load_own_kernels
from tests.support.quantized_linear import quantized_linear


@dataclass(frozen=True)
class Case:
    """A call of the attention: sizes as its kernel names them."""

    heads: int
    groups: int
    tokens: int
    key_size: int
    value_size: int
    places: int
    position: int
    window: int = 0
    softcap: float = 0.0
    sinks: int = 0


# Sizes that 16, 8, 4 and 1 lanes divide; one token and many; parts of positions for several
# threads, blocks that are not full, a ring that goes around, more tokens than a part has.
CASES = {
    "one token, 16 lanes": Case(9, 3, 1, 64, 64, 2048, 1900),
    "one token, 8 lanes": Case(4, 4, 1, 24, 8, 300, 299),
    "one token, 4 lanes": Case(8, 2, 1, 20, 12, 130, 65),
    "one token, 1 lane": Case(6, 2, 1, 7, 5, 70, 69),
    "the first token": Case(4, 2, 1, 16, 16, 64, 0),
    "many queries for a key": Case(16, 1, 1, 32, 32, 200, 150),
    "a prompt": Case(9, 3, 100, 64, 64, 512, 0),
    "a later part of a prompt": Case(4, 2, 33, 80, 96, 512, 400),
    "a prompt, 1 lane": Case(2, 1, 40, 9, 3, 64, 10),
    "a window": Case(4, 2, 1, 32, 32, 512, 500, window=100),
    "a prompt in a window": Case(4, 2, 40, 32, 32, 512, 300, window=24),
    "a ring": Case(4, 2, 1, 32, 32, 64, 1000, window=24),
    "a prompt in a ring": Case(4, 1, 40, 16, 16, 64, 491, window=24),
    "a bound": Case(4, 2, 5, 32, 32, 96, 70, softcap=30.0),
    "sinks": Case(4, 2, 1, 32, 32, 68, 1000, window=24, sinks=4),
    "a prompt behind sinks": Case(4, 2, 40, 32, 32, 68, 501, window=24, sinks=4),
    "a prompt from the sinks on": Case(4, 2, 40, 32, 32, 132, 1, window=24, sinks=3),
}


# Those that a cache of less than 32 bits is tried with: of each number of lanes, few rows and many.
PACKED_CASES = (
    "one token, 16 lanes",
    "one token, 8 lanes",
    "one token, 4 lanes",
    "one token, 1 lane",
    "a later part of a prompt",
    "a prompt in a window",
    "a prompt in a ring",
    "sinks",
    "a prompt behind sinks",
)


# Outputs, inputs, weights of a group and rows of linear layers; those without groups have 8 bits.
LINEARS = (
    (16, 32, 32, 1),
    (48, 96, 32, 7),
    (64, 256, 64, 40),
    (1536, 576, 32, 130),
    (16, 32, None, 1),
    (48, 96, None, 7),
    (1536, 576, None, 130),
)


# How ExecuTorch's operator is told what a token sees.
LLAMA = {
    "one token, 16 lanes": "causal",
    "the first token": "causal",
    "a prompt": "causal",
    "a prompt in a window": "all",
    "many queries for a key": "mask",
    "a bound": "mask",
}


class Attention(torch.nn.Module):  # type: ignore[misc]
    """One call of the operator."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case

    def forward(self, *given: torch.Tensor) -> Any:
        case = self.case
        scale = case.key_size**-0.5
        return ATTENTION(*given, case.window, scale, case.softcap, case.sinks)


class Packing(torch.nn.Module):  # type: ignore[misc]
    """One call of the operator."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits

    def forward(self, x: torch.Tensor) -> Any:
        return PACK(x, self.bits)


class Rotation(torch.nn.Module):  # type: ignore[misc]
    """One call of the operator."""

    def forward(self, *given: torch.Tensor) -> Any:
        return ROTATE(*given)


def inputs_of(case: Case, bits: int = 32) -> tuple[torch.Tensor, ...]:
    """Query, keys, values and positions. Scores are large: a wrong softmax shows."""
    positions = torch.arange(case.position, case.position + case.tokens)
    query = 3 * torch.randn(1, case.heads, case.tokens, case.key_size)
    keys = torch.randn(case.groups, case.places, case.key_size)
    values = torch.randn(case.groups, case.places, case.value_size)
    if bits < 32:
        # Rows of different sizes: each has its scale.
        keys, values = (packed(each * _grown(each), bits) for each in (keys, values))
    return query, keys, values, positions


def _grown(rows: torch.Tensor) -> torch.Tensor:
    return torch.linspace(2.0, 1.0, rows.shape[1]).unsqueeze(-1)


def packing(bits: int, path: Path) -> dict[str, Any]:
    """How the kernel makes rows of a cache, against what the operator does eagerly.

    Rows of any size: zeros, what halves have no normal number for, and what is beyond them; and one
    with something that is no number.
    """
    x = torch.randn(3, 40, 23) * torch.logspace(-8, 6, 40).unsqueeze(-1)
    x[0, 0], x[1, 1, 5] = 0.0, torch.nan
    module = Packing(bits)
    wanted = module(x)
    (found,) = method_of(module, (x,), path).execute((x,))
    numbers, exact = (unpacked(each) for each in (found, wanted))
    lost = torch.isnan(numbers[1, 1]) & torch.isnan(exact[1, 1])
    numbers[1, 1] = exact[1, 1] = x[1, 1] = 0.0
    # One step of a row, in which rounding may differ; and what a cache loses at all.
    step = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    within = (x.abs() < 65504) & (x.abs() > 1e-4)  # where halves are normal numbers
    return {
        "dtype": str(found.dtype),
        "shape": list(found.shape),
        "steps": float(((numbers - exact) / step).abs().max()),
        "same_percent": 100 * float((numbers == exact).float().mean()),
        "lost_steps": float(((exact - x) / step)[within].abs().max()),
        "lost": bool(lost[5] if bits == 16 else lost.all()),
        "finite": bool(torch.isfinite(numbers).all()),
    }


class Llama(torch.nn.Module):  # type: ignore[misc]
    """A cache that ExecuTorch's operators write and read, and the same in PyTorch's own way."""

    def __init__(self, case: Case, *, causal: bool, operators: bool) -> None:
        super().__init__()
        self.case, self.causal, self.operators = case, causal, operators
        shape = (1, case.places, case.groups, case.key_size)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))

    def forward(
        self,
        query: torch.Tensor,
        held: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *mask: torch.Tensor,
    ) -> torch.Tensor:
        start, scale = self.case.position, 1 / self.case.key_size**0.5
        if self.operators:
            torch.ops.llama.update_cache(held, self.keys, 0)
            torch.ops.llama.update_cache(held, self.values, 0)
            torch.ops.llama.update_cache(key, self.keys, start)
            torch.ops.llama.update_cache(value, self.values, start)
            given = mask[0] if mask else None
            attended: torch.Tensor = torch.ops.llama.custom_sdpa(
                query, self.keys, self.values, start, given, 0.0, self.causal, scale
            )
            return attended
        end, repeated = start + query.shape[1], self.case.heads // self.case.groups
        keys, values = held.clone(), held.clone()
        keys[:, start:end], values[:, start:end] = key, value
        hidden = torch.zeros(query.shape[1], self.case.places)
        hidden[:, end:] = -torch.inf
        if self.causal:
            hidden[:, start:end] = torch.full((query.shape[1],) * 2, -torch.inf).triu(1)
        queries, keys, values = (
            each.transpose(1, 2).repeat_interleave(times, dim=1)
            for each, times in ((query, 1), (keys, repeated), (values, repeated))
        )
        scores = queries @ keys.transpose(2, 3) * scale + (mask[0] if mask else hidden)
        return (scores.softmax(-1) @ values).transpose(1, 2)


def llama_distance(case: Case, path: Path, kind: str) -> dict[str, float]:
    """How far the kernels of ExecuTorch's operators are from PyTorch."""
    query = 3 * torch.randn(1, case.tokens, case.heads, case.key_size)
    key, value = torch.randn(2, 1, case.tokens, case.groups, case.key_size)
    held = torch.randn(1, case.places, case.groups, case.key_size)
    given = [query, held, key, value]
    if kind == "mask":
        mask = torch.where(torch.rand(case.tokens, case.places) < 0.5, -torch.inf, 0.0)
        given.append(mask.index_fill(1, torch.tensor([0]), 0.0))
    causal = kind == "causal"
    wanted = Llama(case, causal=causal, operators=False)(*given)
    with torch.no_grad():
        exported = torch.export.export(
            Llama(case, causal=causal, operators=True), tuple(given), strict=False
        )
    path.write_bytes(to_edge(exported).to_executorch().buffer)
    program = Runtime.get().load_program(path, verification=Verification.Minimal)
    found = program.load_method("forward").execute(given)[0]
    return {"error": float((found - wanted).abs().max()), "largest": float(wanted.abs().max())}


def define_llama() -> None:
    """The operators' schemas, as ExecuTorch's library registers them together with its kernels."""
    own = torch.library.Library("llama", "FRAGMENT")
    attention = (
        "(Tensor query, Tensor key, Tensor value, SymInt start_pos, Tensor? attn_mask=None, "
        "float drpout_p=0.0, bool is_causal=False, float? scale=None"
    )
    update = "(Tensor value, Tensor(a!) cache, SymInt start_pos"
    for name, arguments, like in (("custom_sdpa", attention, 0), ("update_cache", update, None)):
        own.define(f"{name}{arguments}) -> Tensor")
        own.define(f"{name}.out{arguments}, *, Tensor(z!) out) -> Tensor(z!)")
        made = (lambda *given: torch.empty_like(given[0])) if like == 0 else (
            lambda *given: given[0].new_empty(1)
        )  # fmt: skip
        torch.library.register_fake(f"llama::{name}", made, lib=own)
    _KEPT.append(own)


_KEPT: list[torch.library.Library] = []


def method_of(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], path: Path) -> Any:
    """The module as a program's method."""
    edge = to_edge(torch.export.export(module, inputs))
    path.write_bytes(edge.to_executorch().buffer)
    program = Runtime.get().load_program(path, verification=Verification.Minimal)
    return program.load_method("forward")


def distance(
    module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], path: Path
) -> dict[str, float]:
    """The largest difference, and the largest value."""
    wanted = module(*inputs)
    found = method_of(module, inputs, path).execute(inputs)[0]
    assert found.shape == wanted.shape
    return {"error": float((found - wanted).abs().max()), "largest": float(wanted.abs().max())}


def refused(case: Case, path: Path, position: int) -> str:
    """What the runtime says to a call at another position."""
    query, keys, values, positions = inputs_of(case)
    method = method_of(Attention(case), (query, keys, values, positions), path)
    try:
        method.execute((query, keys, values, positions + position))
    except RuntimeError as error:
        return str(error)
    return ""


def main(folder: Path) -> dict[str, Any]:
    """Of all cases."""
    torch.manual_seed(0)
    load_own_kernels(folder, llama=True)
    define_llama()
    path = folder / "program.pte"
    told: dict[str, Any] = {
        name: distance(Attention(case), inputs_of(case), path) for name, case in CASES.items()
    }
    for bits in (16, 8):
        for name in PACKED_CASES:
            case = CASES[name]
            inputs = inputs_of(case, bits)
            told[f"{name}, {bits} bits"] = distance(Attention(case), inputs, path)
        told[f"packing {bits}"] = [packing(bits, path)]
    for name, shape in (("keys", (3, 9, 64)), ("queries", (1, 40, 70, 18))):
        angles = torch.randn(2, 1, *shape[-2:])
        given = (torch.randn(shape), angles[0], angles[1])
        told[f"a rotation of {name}"] = distance(Rotation(), given, path)
    for outputs, size, group_size, rows in LINEARS:
        layer = quantized_linear(size, outputs, group_size, bias=rows > 1)
        x = torch.randn(1, rows, size) * torch.logspace(-2, 2, rows).unsqueeze(-1) + 1
        x[:, -1, 1:] = 0.0 if rows > 1 else x[:, -1, 1:]
        groups = f"groups of {group_size}" if group_size else "8 bits"
        name = f"{rows} rows of {size} for {outputs}, {groups}"
        told[name] = distance(KernelLinear(layer), (x,), path)
    for name, kind in LLAMA.items():
        told[f"ExecuTorch's operators, {name}"] = llama_distance(CASES[name], path, kind)
    told["beyond the cache"] = refused(CASES["the first token"], path, 64)
    told["before it"] = refused(CASES["the first token"], path, -1)
    return told


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(Path(sys.argv[1]))) + "\n")
