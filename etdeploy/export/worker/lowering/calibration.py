"""Calibration inputs: whether the model takes them, their ranges, and the loss that is left."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from etdeploy.backends.registry import backend_named
from etdeploy.backends.schemes import STATIC_SCHEMES
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import fail
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.tracing.structure import (
    ExampleInputs,
    by_parameter,
    dotted,
    fixed_size,
    input_values,
    leaves,
)
from etdeploy.export.worker.tracing.tensors import flat_inputs, misfit
from etdeploy.program.quality import OutputLoss

# An example input that reaches this much of the calibrated range beyond it is clipped by more than
# the tails of random inputs differ by.
_BEYOND = 0.25
# Two more bits of each activation are lost if the calibrated range is this much wider.
_WIDER = 4.0


@dataclass(frozen=True)
class Range:
    """The least and the largest finite value of a tensor, or of several."""

    low: float
    high: float

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Range | None:
        """None where no value is finite."""
        finite = tensor.detach()[torch.isfinite(tensor)]
        return cls(float(finite.min()), float(finite.max())) if finite.numel() else None

    def __or__(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high))

    def __str__(self) -> str:
        return f"{self.low:.4g} to {self.high:.4g}"

    def misfits(self, example: Range) -> bool:
        """Whether values of this range calibrate badly for an example input."""
        width = self.high - self.low
        beyond = max(self.low - example.low, example.high - self.high)
        return beyond > _BEYOND * width or width > _WIDER * (example.high - example.low)


@dataclass
class Calibration:
    """The calibration inputs of a method, each checked before the observers see it.

    Attributes:
        traced: The method as a graph, which knows the dynamic sizes.
        ranges: Of each input of floats, over the calibration inputs so far.
    """

    spec: ExportSpec
    source: MethodSource
    traced: torch.export.ExportedProgram
    ranges: dict[str, Range] = field(default_factory=dict)

    def check(self, call: ExampleInputs, number: int) -> None:
        """Adds the ranges of a calibration input."""
        example = self._example
        found = leaves(by_parameter(self.source.module, call))
        given = {dotted(path, "input"): value for path, value in found}
        if given.keys() != example.keys():
            self._refuse(number, f"has {_listed(given)}; the model takes {_listed(example)}")
        wanted = map(self._sizes, input_values(self.traced))
        for (name, want), sizes in zip(example.items(), wanted, strict=True):
            have = given[name]
            if problem := misfit(name, have, want, sizes) or _undefined(name, have, want):
                self._refuse(number, f"has {problem}")
            if isinstance(have, torch.Tensor) and have.is_floating_point():
                ranges = [r for r in (self.ranges.get(name), Range.of(have)) if r]
                self.ranges |= {name: ranges[0] | ranges[-1]} if ranges else {}

    @property
    def misfits(self) -> dict[str, tuple[Range, Range]]:
        """The inputs that were calibrated with values unlike the example's: both ranges."""
        examples = {
            name: Range.of(value)
            for name, value in self._example.items()
            if isinstance(value, torch.Tensor) and name in self.ranges
        }
        return {
            name: (self.ranges[name], example)
            for name, example in examples.items()
            if example and self.ranges[name].misfits(example)
        }

    @property
    def _example(self) -> dict[str, Any]:
        inputs = flat_inputs(self.source.module, self.source.inputs)
        return {each.name: each.value for each in inputs}

    def _sizes(self, value: Any) -> tuple[range, ...]:
        """What each dimension of an input may be."""
        return tuple(map(self._size, value.shape)) if isinstance(value, torch.Tensor) else ()

    def _size(self, size: Any) -> range:
        fixed = fixed_size(size)
        if fixed is not None:
            return range(fixed, fixed + 1)
        bounds = self.traced.range_constraints.get(size.node.expr)
        has_end = bounds is not None and bounds.upper.is_Integer
        return range(
            max(1, int(bounds.lower)) if bounds else 1,
            int(bounds.upper) + 1 if has_end else sys.maxsize,
        )

    def _refuse(self, number: int, problem: str) -> None:
        if not self.source.calibration:
            raise fail(
                "calibration",
                f"the example input, which has to calibrate the model, {problem}",
                remedy="Return other example inputs, or name calibration inputs with "
                "export.calibration.",
            )
        takes = ", ".join(f"{name}: {_form(value)}" for name, value in self._example.items())
        function = f" of {self.spec.calibration}" if self.spec.calibration else ""
        raise fail(
            "calibration",
            f"calibration input {number}{function} (the first is 0) {problem}",
            remedy=f"Yield inputs like the example inputs, finite and preprocessed alike: {takes}",
            file=self.spec.place("export", "calibration"),
        )


def _undefined(name: str, have: Any, want: Any) -> str | None:
    """Values that no range can have; infinities pass where the example has them, as masks do."""
    if not isinstance(have, torch.Tensor) or not have.is_floating_point():
        return None
    nan, infinite = int(have.isnan().sum()), int(have.isinf().sum())
    if nan:
        return f"{nan:,} NaN among the {have.numel():,} values of {name}"
    if infinite and not want.isinf().any():
        return f"{infinite:,} infinite ones among the {have.numel():,} values of {name}"
    return None


def _listed(inputs: Mapping[str, Any]) -> str:
    return f"the inputs {', '.join(inputs)}" if inputs else "no inputs"


def _form(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def loss_notes(
    spec: ExportSpec, losses: Sequence[OutputLoss], misfits: Mapping[str, tuple[Range, Range]]
) -> Iterator[str]:
    """A warning where quantization moves outputs far, with the likely cause."""
    high = [f"{loss.name} ({loss.text})" for loss in losses if loss.is_high]
    if not high:
        return
    cause = _misfit_cause(misfits) if misfits else _remedy(spec)
    yield f"Quantization moves outputs far from the unquantized model's: {', '.join(high)}. {cause}"


def _misfit_cause(misfits: Mapping[str, tuple[Range, Range]]) -> str:
    """Constant example inputs, such as zeros, say nothing about the calibration."""
    constant = [name for name, (_, example) in misfits.items() if example.low == example.high]
    if len(constant) == len(misfits):
        return (
            f"The example inputs may be the cause: all values of {', '.join(constant)} are equal. "
            "Return inputs as the app has them."
        )
    ranges = [
        f"{name} is {calibrated} in the calibration inputs and {example} in the example inputs"
        for name, (calibrated, example) in misfits.items()
        if name not in constant
    ]
    return (
        f"The calibration inputs are the likely cause: {'; '.join(ranges)}. Preprocess both as "
        "the app does."
    )


def _remedy(spec: ExportSpec) -> str:
    if spec.quantization in STATIC_SCHEMES and not spec.calibration:
        return "Calibrate with real inputs: export.calibration."
    backend = backend_named(str(spec.backend))
    for_parts, for_all = (
        ", ".join(scheme for scheme in schemes if scheme != spec.quantization)
        for schemes in (backend.mixed_with(spec.quantization), backend.quantizations)
    )
    parts = f"for sensitive layers (export.overrides: {for_parts}), or " if for_parts else ""
    return (
        f"To lose less, choose another scheme {parts}for the model "
        f"(export.quantization: {for_all})."
    )
