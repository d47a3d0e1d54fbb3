"""Lowers and runs small models with the rewrites of their graphs.

`python -m tests.support.rewrites_run` writes one line of JSON at the end: of each case, how far its
outputs are from eager ones, what was applied and left, and what no delegate took.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from executorch.backends.xnnpack.utils.configs import get_transform_passes
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime
from torch.nn import functional

from etdeploy.backends.rewrites import REWRITES
from etdeploy.export.worker.backends.xnnpack_layouts import (
    ExplainedPartitioner,
    preprocessing_by_layout,
)
from etdeploy.export.worker.rewrites.activations import exact_gelus
from etdeploy.export.worker.rewrites.base import Log
from etdeploy.export.worker.rewrites.order import (
    edge_passes,
    rewritten_to_lower,
    rewritten_to_quantize,
)
from etdeploy.export.worker.tracing.structure import fixed_size

_attention = functional.scaled_dot_product_attention


@dataclass(frozen=True)
class Case:
    """A function of layers and inputs; `dynamic` are dimensions of every input."""

    call: Callable[..., torch.Tensor]
    inputs: tuple[torch.Tensor, ...]
    layers: tuple[torch.nn.Module, ...] = ()
    quantized: bool = False
    dynamic: tuple[int, ...] = ()

    def exported(self, model: torch.nn.Module) -> torch.export.ExportedProgram:
        """The program as it is traced."""
        if not self.dynamic:
            return torch.export.export(model, self.inputs)
        sizes = {dim: torch.export.Dim.AUTO(min=2, max=64) for dim in self.dynamic}
        dynamic = (tuple(dict(sizes) for _ in self.inputs),)
        return torch.export.export(model, self.inputs, dynamic_shapes=dynamic)

    def tried(self, program: torch.export.ExportedProgram) -> Iterator[tuple[torch.Tensor, ...]]:
        """The inputs, and then those of other sizes that a program takes."""
        yield self.inputs
        names = program.graph_signature.user_inputs
        nodes = {node.name: node for node in program.graph.nodes}
        shapes = [nodes[str(name)].meta["val"].shape for name in names]
        for change in (-1, 1) if self.dynamic else ():
            yield tuple(
                torch.randn([
                    was if fixed_size(size) else max(2, was + change)
                    for was, size in zip(given.shape, shape, strict=True)
                ])
                for given, shape in zip(self.inputs, shapes, strict=True)
            )  # fmt: skip


class _Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.call, self.layers = case.call, torch.nn.ModuleList(case.layers)
        with torch.no_grad():
            for parameter in self.parameters():
                torch.nn.init.normal_(parameter, std=0.5)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.call(*self.layers, *inputs)


def _masked_rows(*shape: int) -> torch.Tensor:
    """A mask in which the second-last row sees nothing."""
    mask = torch.rand(*shape) > 0.4
    mask[..., 0] = True
    mask[..., -2, :] = False
    return mask


def _infinite(mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))


def _changed_in_place(conv: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = conv(x)
    return functional.silu(y, inplace=True) + y


def _viewed_in_place(conv: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = conv(x)
    z = y.view(y.shape[0], -1)
    functional.silu(y, inplace=True)
    return z * 2


def _swin_like(x: torch.Tensor) -> torch.Tensor:
    """A mask that is filled part by part, as Swin has it."""
    parts = x.new_zeros(5)
    parts[2:] = 1
    mask = parts[None] - parts[:, None]
    mask = mask.masked_fill(mask != 0, -100.0).masked_fill(mask == 0, 0.0)
    return (x @ x.transpose(-1, -2) + mask).softmax(-1)


def _table(x: torch.Tensor) -> torch.Tensor:
    rows = torch.arange(1200.0)
    return rows[:, None] * rows[None] + x[0, 0, 0, :1]


def cases() -> dict[str, Case]:
    """By name."""
    torch.manual_seed(3)
    x, keys, image = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(1, 8, 16, 20)
    signal = torch.randn(2, 8, 50)
    large = torch.nn.Conv2d(8, 8, 7, padding=3, groups=8)
    return {
        "attention": Case(lambda q: _attention(q, q * 2, q + 1), (x,)),
        "then a view": Case(
            lambda q: _attention(q, q, q).transpose(1, 2).reshape(2, 5, -1) * 2, (x,)
        ),
        "causal": Case(lambda q: _attention(q, q, q, is_causal=True), (x,)),
        "causal, fewer keys": Case(
            lambda q, k: _attention(q, k, k, is_causal=True), (x, torch.randn(2, 4, 3, 8))
        ),
        "mask": Case(
            lambda q, m: _attention(q, q, q, attn_mask=m), (x, _masked_rows(2, 1, 5, 5))
        ),
        "mask of keys": Case(
            lambda q, m: _attention(q, q, q, attn_mask=m), (x, torch.rand(2, 1, 1, 5) > 0.5)
        ),
        "mask in floats": Case(
            lambda q, m: _attention(q, q, q, attn_mask=m), (x, _infinite(_masked_rows(5, 5)))
        ),
        "constant mask": Case(
            lambda q: _attention(q, q, q, attn_mask=torch.ones(5, 5).tril().bool()), (x,)
        ),
        "constant mask of nothing": Case(
            lambda q: _attention(q, q, q, attn_mask=torch.arange(5)[:, None].expand(5, 5) > 1),
            (x,),
        ),
        "grouped": Case(lambda q, k: _attention(q, k, k, enable_gqa=True), (x, keys)),
        "grouped, mask": Case(
            lambda q, k, m: _attention(q, k, k, attn_mask=m, enable_gqa=True),
            (x, keys, _masked_rows(2, 1, 5, 5)),
        ),
        "scale": Case(lambda q: _attention(q, q, q, scale=0.3), (x,)),
        "tokens of any number": Case(
            lambda q, k: _attention(q, k, k), (x, torch.randn(2, 4, 7, 8)), dynamic=(2,)
        ),
        "grouped, tokens of any number": Case(
            lambda q, k: _attention(q, k, k, enable_gqa=True), (x, keys), dynamic=(2,)
        ),
        "split of any batch": Case(
            lambda a: torch.cat([y * i for i, y in enumerate(a.split([2, 3], 2), 1)], 2),
            (torch.randn(3, 4, 5, 8),), dynamic=(0, 3),
        ),
        "norm of groups, channels given": Case(
            lambda n, a: n(a) + a, (image,), (torch.nn.GroupNorm(2, 8),), dynamic=(1,)
        ),
        "three dimensions": Case(lambda q: _attention(q, q, q), (x[0],)),
        "norm": Case(lambda n, a: n(a), (x,), (torch.nn.LayerNorm(8),)),
        "norm without weights": Case(
            lambda n, a: n(a), (x,), (torch.nn.LayerNorm(8, elementwise_affine=False),)
        ),
        "norm of large values": Case(
            lambda n, a: n(a * 100 + 1000), (x,), (torch.nn.LayerNorm(8),)
        ),
        "RMS norm": Case(lambda n, a: n(a), (x,), (torch.nn.RMSNorm(8),)),
        "mean": Case(lambda a: a.mean(-1, keepdim=True) + a, (x,)),
        "mean of fewer dimensions": Case(lambda a: a.mean(-1) * 2, (x,)),
        "mean of an image": Case(lambda a: a.mean((2, 3), keepdim=True) * 2, (x,)),
        "norm of groups": Case(lambda n, a: n(a) + a, (image,), (torch.nn.GroupNorm(2, 8),)),
        "norm of groups of signals": Case(
            lambda n, a: n(a * 30 + 100), (signal,),
            (torch.nn.GroupNorm(4, 8, affine=False),),
        ),
        "norm of each channel": Case(
            lambda n, a: n(a) * 2, (image,), (torch.nn.InstanceNorm2d(8, affine=True),)
        ),
        "norm of weights": Case(
            lambda c, a: c(a), (signal[:1, :5, :4].contiguous(),),
            (torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(5, 1 << 18, 1)),),
        ),
        "length": Case(lambda a: functional.normalize(a, dim=-1) * 2, (x,)),
        "length of channels": Case(lambda a: functional.normalize(a, dim=1) * 2, (x,)),
        "powers": Case(lambda a: a**3.0 + (a * a + 1) ** 0.5 + (a * a + 1) ** -0.5, (x,)),
        "power of a third": Case(lambda a: (a * a) ** (1 / 3) + a, (x,)),
        "sum": Case(lambda a: a.sum(-1, keepdim=True) + a, (x,)),
        "sum in the middle": Case(lambda a: a.sum(1) * 2, (x,)),
        "sum in the middle, kept": Case(lambda a: a.sum(2, keepdim=True) * a, (x,)),
        "sum of integers": Case(lambda a: a + a.int().sum(1, keepdim=True), (x,)),
        "mean of tokens": Case(lambda a: a.mean(1) * 2, (signal,)),
        "mean of images": Case(lambda a: a.mean((2, 3)) * 2, (image,)),
        "one part": Case(lambda a: torch.cat([a * 2]) + 1, (x,)),
        "expansion": Case(lambda a: a / (a[..., :1] * 2).expand_as(a), (x,)),
        "class token": Case(
            lambda c, a: torch.cat([c.weight[None].expand(2, -1, -1), a * 2], 1), (signal,),
            (torch.nn.Linear(50, 1),),
        ),
        "norm of two dimensions": Case(lambda n, a: n(a), (x,), (torch.nn.LayerNorm((5, 8)),)),
        "sum of everything": Case(lambda a: a / (a.sum() + 900), (x,)),
        "mean of everything": Case(lambda a: a - a.mean(), (x,)),
        "sum of neighbours": Case(lambda a: a * a.sum((1, 2), keepdim=True), (x,)),
        "sum of the last two": Case(lambda a: a.sum((-1, -2)) * 2, (x[:, :, :3].contiguous(),)),
        "sum of an image": Case(lambda a: a.sum((2, 3)) * 2, (image,)),
        "mean apart": Case(lambda a: a - a.mean((0, 2), keepdim=True), (x,)),
        "mean of many": Case(lambda a: a - a.mean(-1, keepdim=True), (torch.randn(2, 4096),)),
        "length of a picture": Case(
            lambda a: a / torch.linalg.vector_norm(a, dim=(1, 2), keepdim=True), (x,)
        ),
        "RMS norm of two dimensions": Case(lambda n, a: n(a), (x,), (torch.nn.RMSNorm((5, 8)),)),
        "norm of all": Case(lambda n, a: n(a * 9 + 30), (image,), (torch.nn.GroupNorm(1, 8),)),
        "average": Case(lambda a: functional.avg_pool2d(a * 2, 3, 1, 1), (image,)),
        "average of a large window": Case(
            lambda a: functional.avg_pool2d(a * 2, (7, 5), (2, 3), (3, 1)), (image,)
        ),
        "average by a divisor": Case(
            lambda a: functional.avg_pool2d(a * 2, 2, divisor_override=3), (image,)
        ),
        "average, ceil_mode for nothing": Case(
            lambda a: functional.avg_pool2d(a * 2, 2, ceil_mode=True), (image,)
        ),
        "average over the edge": Case(
            lambda a: functional.avg_pool2d(a * 2, 3, 2, ceil_mode=True) * 2, (image,)
        ),
        "average without the padding": Case(
            lambda a: functional.avg_pool2d(a * 2, 3, 1, 1, count_include_pad=False), (image,)
        ),
        "adaptive average": Case(
            lambda a: functional.adaptive_avg_pool2d(a * 2, (4, 10)), (image,)
        ),
        "average of signals": Case(lambda a: functional.avg_pool1d(a * 2, 3, 2, 1) * 2, (signal,)),
        "largest of signals": Case(lambda a: functional.max_pool1d(a * 2, 3, 2, 1) * 2, (signal,)),
        "adaptive maximum": Case(
            lambda a: functional.adaptive_max_pool2d(a * 2, (4, 1)) * 2, (image,)
        ),
        "patches": Case(
            lambda a: functional.fold(
                functional.unfold(a * 2, (4, 5), stride=(4, 5)).softmax(-1), (16, 20), (4, 5),
                stride=(4, 5),
            ),
            (image,),
        ),
        "patches that overlap": Case(
            lambda a: functional.unfold(a * 2, 4, stride=2) * 2, (image,)
        ),
        "variance": Case(lambda a: a / (a.var(-1, keepdim=True) + 1), (x,)),
        "variance of all": Case(lambda a: a / (a.var(unbiased=False) + 1), (x,)),
        "deviation of an image": Case(lambda a: a / (a.std((2, 3), keepdim=True) + 1), (image,)),
        "PReLU": Case(lambda p, a: p(a) * 2, (x[0],), (torch.nn.PReLU(5),)),
        "PReLU of all": Case(lambda p, a: p(a) * 2, (x[0, 0],), (torch.nn.PReLU(),)),
        "PReLU of an image": Case(lambda p, a: p(a) * 2, (image,), (torch.nn.PReLU(8),)),
        "largest": Case(lambda a: a.max(-1)[0] * 2 + a.max(2, keepdim=True)[0][..., 0, :5], (x,)),
        "softmax of an image": Case(
            lambda c, a: c(a).softmax(-1), (image,), (torch.nn.Conv2d(8, 4, 1),)
        ),
        "softmax of channels": Case(
            lambda c, a: c(a).softmax(1), (image,), (torch.nn.Conv2d(8, 4, 1),)
        ),
        "softmax of channels, 8 bits": Case(
            lambda c, a: c(a).softmax(1), (image,), (torch.nn.Conv2d(8, 4, 1),), quantized=True
        ),
        "layer scale": Case(
            lambda c, s, a: c(a) * s.weight[..., None, None], (image,),
            (torch.nn.Conv2d(8, 4, 1), torch.nn.LayerNorm(4)),
        ),
        "adaptive average, overlapping": Case(
            lambda a: functional.adaptive_avg_pool2d(a * 2, (6, 7)) * 2, (image,)
        ),
        "adaptive average of nothing": Case(
            lambda a: functional.adaptive_avg_pool2d(a * 2, (16, 20)) * 2, (image,)
        ),
        "flip": Case(lambda a: a.flip((1, -1)) * 2, (x,)),
        "GRU both ways": Case(
            lambda g, a: g(a)[0] * 2, (torch.randn(1, 6, 8),),
            (torch.nn.GRU(8, 5, batch_first=True, bidirectional=True),),
        ),
        "flip of many": Case(lambda a: a.flip(-1) * 2, (torch.randn(2, 65),)),
        "hidden by a constant": Case(
            lambda a: (a @ a.transpose(-1, -2))
            .masked_fill(torch.ones(5, 5).tril() == 0, float("-inf"))
            .softmax(-1),
            (x,),
        ),
        "hidden by a number": Case(
            lambda a: torch.where(torch.ones(5, 5).tril() == 0, -1e9, a @ a.transpose(-1, -2)),
            (x,),
        ),
        "hidden by zero": Case(
            lambda a: torch.where(torch.ones(5, 5).tril() == 1, a @ a.transpose(-1, -2), 0.0), (x,)
        ),
        "nothing hidden": Case(
            lambda a: (a @ a.transpose(-1, -2)).masked_fill(torch.zeros(5, 5) == 1, -5.0), (x,)
        ),
        "hidden twice": Case(
            lambda a: (a @ a.transpose(-1, -2))
            .masked_fill(torch.ones(5, 5).tril() == 0, float("-inf"))
            .masked_fill(torch.ones(5, 5).triu() == 0, -1e9)
            .softmax(-1),
            (x,),
        ),
        "input hidden": Case(
            lambda a: a.masked_fill(torch.ones(5, 8).tril() == 0, 0.0) * 2,
            (_infinite(torch.ones(5, 8).tril() == 1)[None] + x,),
        ),
        "hidden by an input": Case(
            lambda a, m: (a @ a.transpose(-1, -2)).masked_fill(m == 0, float("-inf")).softmax(-1),
            (x, (torch.rand(2, 1, 5, 5) > 0.4).float() + torch.eye(5)),
        ),
        "hidden by an input, a number": Case(
            lambda a, m: (a @ a.transpose(-1, -2)).masked_fill(m == 0, -1e4).softmax(-1),
            (x, (torch.rand(2, 1, 1, 5) > 0.4).float()),
        ),
        "softmax": Case(lambda a: a.softmax(1) * 2, (x,)),
        "GELU by tanh": Case(lambda a: functional.gelu(a, approximate="tanh"), (x,)),
        "upsampling": Case(lambda a: functional.interpolate(a, size=(10, 24)), (x,)),
        "upsampling by a half": Case(lambda a: functional.interpolate(a, size=(7, 12)), (x,)),
        "depthwise": Case(lambda c, a: c(a), (image,), (large,)),
        "depthwise, no bias": Case(
            lambda c, a: c(a), (image,),
            (torch.nn.Conv2d(8, 8, (9, 5), padding=1, groups=8, bias=False),),
        ),
        "depthwise with stride": Case(
            lambda c, a: c(a), (image,), (torch.nn.Conv2d(8, 8, 7, 2, 3, groups=8),)
        ),
        "split": Case(
            lambda a: torch.cat([y * i for i, y in enumerate(a.split([2, 3], 2), 1)], 2), (x,)
        ),
        "select": Case(lambda a: a[:, -1] * 2 + a[:, 0], (x,)),
        "strides": Case(lambda a: a[..., 0::2] + a[..., 1::2], (x,)),
        "odd strides": Case(lambda a: a[:, :, ::2] * 2, (x,)),
        "roll": Case(lambda a: torch.roll(a, (-2, 1), (2, 3)) * 2, (x,)),
        "views": Case(lambda a: (a[:, None].transpose(1, 2).squeeze(2) + 1).unsqueeze(0), (x,)),
        "mask in parts": Case(_swin_like, (x,)),
        "table": Case(_table, (x,)),
        "silu, 8 bits": Case(
            lambda c, d, a: d(functional.silu(c(a))), (image,),
            (torch.nn.Conv2d(8, 16, 3), torch.nn.Conv2d(16, 8, 3)), quantized=True,
        ),
        "silu in place, 8 bits": Case(
            _changed_in_place, (image,), (torch.nn.Conv2d(8, 16, 3),), quantized=True
        ),
        "silu in place under a view, 8 bits": Case(
            _viewed_in_place, (image,), (torch.nn.Conv2d(8, 16, 3),), quantized=True
        ),
        "depthwise, 8 bits": Case(lambda c, a: c(a), (image,), (large,), quantized=True),
        "pad by nothing, 8 bits": Case(
            lambda c, a: torch.tanh(functional.pad(c(a), (0, 0, 0, 0))), (image,),
            (torch.nn.Conv2d(8, 8, 3),), quantized=True,
        ),
        # XNNPACK lowers such a pad, and does not load it.
        "pad to floats, 8 bits": Case(
            lambda c, a: torch.tanh(functional.pad(c(a), (1, 1, 1, 1))), (image,),
            (torch.nn.Conv2d(8, 8, 3),), quantized=True,
        ),
        "attention, 8 bits": Case(
            lambda n, q, a: _attention(q(a), n(a), a), (x,),
            (torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)), quantized=True,
        ),
    }  # fmt: skip


def found(case: Case, names: tuple[str, ...]) -> dict[str, Any]:
    """What comes of a case with these rewrites."""
    torch.manual_seed(5)
    model, log = _Model(case).eval(), Log(names)
    program = case.exported(model)
    if case.quantized:
        program = _quantized(rewritten_to_quantize(program, log), case)
    program = rewritten_to_lower(program, log, quantized=case.quantized)
    exact_gelus(program)
    with preprocessing_by_layout():
        edge = to_edge_transform_and_lower(
            program,
            partitioner=[ExplainedPartitioner()],
            transform_passes=get_transform_passes(edge_passes(log)),
        )
    content = edge.to_executorch().buffer  # kept: the runtime reads it where it is
    method = Runtime.get().load_program(content).load_method("forward")
    pairs = []
    for inputs in case.tried(program):
        with torch.no_grad():
            pairs.append((method.execute(list(inputs))[0].clone(), model(*inputs)))
    calls = [n for n in edge.exported_program().graph.nodes if n.op == "call_function"]
    outside = [n.target._schema.name for n in calls if hasattr(n.target, "_schema")]
    return {
        "error": max((given - wanted).abs().max().item() for given, wanted in pairs),
        "largest": min(wanted.abs().max().item() for _, wanted in pairs),
        "shape": all(given.shape == wanted.shape for given, wanted in pairs),
        "applied": dict(log.applied),
        "left": sorted({reason for _, reason, *_ in log.skipped}),
        "partitions": sum("delegate" in str(n.target) for n in calls),
        "outside": outside,
    }


def not_run() -> dict[str, Case]:
    """Cases that are rewritten only: of other outputs each time, and without kernels."""
    return {
        "dropout": Case(
            lambda q: _attention(q, q, q, dropout_p=0.5), (torch.randn(2, 4, 5, 8),)
        ),
        "width of any size": Case(
            lambda q: _attention(q, q, q), (torch.randn(2, 4, 5, 8),), dynamic=(3,)
        ),
        "norm of two dimensions of any size": Case(
            lambda n, a: n(a), (torch.randn(2, 4, 5, 8),), (torch.nn.LayerNorm((5, 8)),),
            dynamic=(0,),
        ),
        "norm of groups of any size": Case(
            lambda n, a: n(a), (torch.randn(2, 8, 5),), (torch.nn.GroupNorm(2, 8),), dynamic=(2,)
        ),
        "depthwise in three dimensions": Case(
            lambda c, a: c(a), (torch.randn(1, 8, 4, 5, 6),),
            (torch.nn.Conv3d(8, 8, 3, groups=8),),
        ),
    }  # fmt: skip


def left(case: Case) -> list[str]:
    """Why rewrites leave it as it is."""
    log = Log(tuple(REWRITES))
    rewritten_to_lower(case.exported(_Model(case)), log, quantized=False)
    return sorted({reason for _, reason, *_ in log.skipped})


def _quantized(program: torch.export.ExportedProgram, case: Case) -> torch.export.ExportedProgram:
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    config = get_symmetric_quantization_config(is_per_channel=True)
    prepared = prepare_pt2e(program.module(), XNNPACKQuantizer().set_global(config))
    with torch.no_grad():
        prepared(*case.inputs)
    return torch.export.export(convert_pt2e(prepared), case.inputs)


def main() -> None:
    told = {}
    names = set(sys.argv[1:])
    for name, case in cases().items():
        if name not in names:
            continue
        told[name] = {"with": found(case, tuple(REWRITES))}
        if case.quantized:
            told[name]["without"] = found(case, ())
    for name, case in not_run().items():
        if name in names:
            told[name] = {"with": {"left": left(case)}}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
