"""What the quantization of each module costs, and which overrides halve the error.

One quantized model is evaluated many times, in which chosen modules compute more exactly. That is
what an override does, without another calibration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils import _pytree as pytree

from etdeploy.backends.schemes import modules_around
from etdeploy.core.console import count
from etdeploy.export.diff import LayerSensitivity, Sensitivity
from etdeploy.export.worker.diff.switchable import Switchable
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.loading.source import MethodSource, as_call
from etdeploy.export.worker.tracing.structure import ExampleInputs
from etdeploy.export.worker.tracing.tensors import copied, laid_out

_MOST_INPUTS = 4
# Evaluations of large models take long: then fewer inputs are used, and modules are measured alone.
_BUDGET_S = 120.0
_GOAL = 0.5
# Of all weights: a single operator with more is measured in any case.
_LARGE_PART = 0.1
# The verified error comes from another calibration.
_MARGIN = 0.9
_MOST_OVERRIDES = 12
# A module inside another one is taken if it gains nearly as much.
_NEARLY = 0.7
# Of the quantized operators, in one override and in all.
_MOST_IN_ONE, _MOST_IN_ALL = 0.34, 0.8

Tell = Callable[[str, float], None]
# The module that a quantization with these modules in floats makes.
Requantize = Callable[[Sequence[str]], Any]
# How often overrides are chosen for a lower goal, if calibration moves what was chosen.
_ATTEMPTS = 3


class SensitivityMeasurement:
    """Errors of a quantized model with some of its modules more exact."""

    def __init__(self, model: Switchable, calls: Iterable[ExampleInputs]) -> None:
        self.model, self.given = model, list(calls)
        self.calls = [pytree.tree_leaves((c.args, dict(c.keywords))) for c in self.given]
        with torch.no_grad():
            self.references = [model.reference(call) for call in self.calls]
        self._timed()  # the first time, weights are dequantized
        with_all, threads = self._timed(), torch.get_num_threads()
        torch.set_num_threads(1)
        self.seconds = self._timed()
        if with_all < self.seconds:  # small operators lose more by waiting for threads
            torch.set_num_threads(threads)
            self.seconds = with_all
        self._full: tuple[float, float] | None = None
        self.all_weights = sum(map(model.weights, model.paths))
        self.operators: dict[str, int] = {}
        self.weights: dict[str, int] = {}
        for node, path in model.paths.items():
            for module in modules_around(path):
                self.operators[module] = self.operators.get(module, 0) + 1
                self.weights[module] = self.weights.get(module, 0) + model.weights(node)

    def _timed(self) -> float:
        started = time.monotonic()
        self._of([self._outputs(self.calls[0], lambda _: False)])
        return time.monotonic() - started

    def limit(self, count: int) -> None:
        """Measures with so many inputs only."""
        self.given, self.calls = self.given[:count], self.calls[:count]
        self.references = self.references[:count]

    def _outputs(self, call: Sequence[Any], exact: Callable[[str], bool]) -> list[Any]:
        with torch.no_grad():
            return self.model.outputs(call, exact)

    def larger(self, modules: Iterable[str]) -> list[str]:
        """Those with several operators, or a large part of the weights."""
        least = _LARGE_PART * self.all_weights
        return [m for m in modules if self.operators[m] > 1 or self.weights[m] > least]

    def quantized_error(self, modules: Sequence[str], requantize: Requantize) -> float:
        """The error of a quantization with overrides for these modules."""
        if self.model.exact_scheme:
            return self.error(modules)
        module = requantize(modules)
        with torch.no_grad():
            found = [pytree.tree_leaves(module(*call.args, **call.keywords)) for call in self.given]
        return self._relative(found)

    def error(self, modules: Iterable[str], *, others: bool = False) -> float:
        """The relative error with these modules more exact, or with all the others."""
        chosen = set(modules)

        def exact(path: str) -> bool:
            return bool(chosen & set(modules_around(path))) != others

        return self._relative([self._outputs(call, exact) for call in self.calls])

    def _relative(self, outputs: Sequence[Sequence[Any]]) -> float:
        """Of the worst output, over all inputs; more if the example inputs gain less than these.

        A report of an export has the error with the example inputs.
        """
        if self._full is None:
            quantized = [self._outputs(call, lambda _: False) for call in self.calls]
            self._full = self._of(quantized[:1]), self._of(quantized)
        example, everything = self._full
        shares = (self._of(outputs[:1]) / example if example else 0.0,
                  self._of(outputs) / everything if everything else 0.0)  # fmt: skip
        return max(shares) * everything

    def _of(self, outputs: Sequence[Sequence[Any]]) -> float:
        sums: dict[int, list[float]] = {}
        for found, reference in zip(outputs, self.references, strict=False):
            for place, (a, b) in enumerate(zip(found, reference, strict=True)):
                if isinstance(b, torch.Tensor) and b.is_floating_point():
                    difference = a - b
                    if not difference.isfinite().all():
                        finite = difference.isfinite()
                        difference, b = difference[finite], b[finite]
                    both = sums.setdefault(place, [0.0, 0.0])
                    both[0] += _squares(difference)
                    both[1] += _squares(b)
        return max(((n / s) ** 0.5 for n, s in sums.values() if s), default=0.0)


def _squares(x: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2


def measure_sensitivity(
    model: Switchable, source: MethodSource, requantize: Requantize | None, tell: Tell
) -> Sensitivity:
    """Measures every module of a quantized model, and chooses those that stay in floats.

    None are chosen without `requantize`, where the backend does not mix its scheme with floats.
    """
    threads = torch.get_num_threads()
    try:
        return _measured(model, source, requantize, tell)
    finally:
        torch.set_num_threads(threads)


def _measured(
    model: Switchable, source: MethodSource, requantize: Requantize | None, tell: Tell
) -> Sensitivity:
    if not model.paths:
        return Sensitivity(problem="No operator of the model is quantized.")
    measurement = SensitivityMeasurement(model, _calls(source))
    modules = sorted(measurement.operators)
    if 2 * measurement.seconds * len(modules) > _BUDGET_S:
        modules = measurement.larger(modules)
    each_s = measurement.seconds * len(modules)
    measurement.limit(max(1, min(_MOST_INPUTS, int(_BUDGET_S / max(each_s, 1e-3) / 2))))
    error = measurement.error(())
    measures_both = 2 * measurement.seconds * len(modules) < _BUDGET_S
    layers = []
    for place, name in enumerate(modules):
        tell(f"measuring the quantization of {name}", place / len(modules))
        layers.append(
            LayerSensitivity(
                module=name,
                operators=measurement.operators[name],
                weights=measurement.weights[name],
                alone=measurement.error((name,), others=True),
                without=measurement.error((name,)) if measures_both else None,
            )
        )
    layers.sort(key=lambda layer: (-layer.alone, layer.without or 0.0))
    overrides, reached = list[str](), error
    if requantize:
        overrides, reached = _tried(measurement, layers, error, requantize, tell)
    return Sensitivity(
        inputs=len(measurement.calls),
        error=error,
        weights=measurement.all_weights,
        layers=tuple(layers),
        overrides=tuple(overrides),
        reached=reached,
        scheme=model.exact_scheme,
    )


def _calls(source: MethodSource) -> Iterator[ExampleInputs]:
    """The example inputs, and the first calibration inputs; of a text, the latter alone.

    Of a language model, the example has few tokens.
    """
    samples = list(islice(source.calibration() if source.calibration else (), _MOST_INPUTS))
    if not (source.is_text and samples):
        samples = [source.inputs, *samples[: _MOST_INPUTS - 1]]
    for sample in samples:
        call = sample if isinstance(sample, ExampleInputs) else as_call(sample)
        if call is not None:
            yield copied(laid_out(call, source.inputs))


def _tried(
    measurement: SensitivityMeasurement,
    layers: Sequence[LayerSensitivity],
    error: float,
    requantize: Requantize,
    tell: Tell,
) -> tuple[list[str], float]:
    """The overrides whose quantization reaches the goal, or comes nearest; and its error.

    Another quantization finds other ranges, and the pattern of an operator may take in another
    one, so that it may gain less than the evaluation of one graph says.
    """
    goal, best, lowest = error * _GOAL * _MARGIN, list[str](), error
    for _ in range(_ATTEMPTS):
        chosen, reached = _chosen(measurement, layers, error, goal)
        if not chosen:
            break
        tell(f"quantizing with overrides for {count(len(chosen), 'module')}", 1.0)
        try:
            actual = measurement.quantized_error(chosen, requantize)
        except WorkerError:
            if "" not in chosen:
                raise
            # With the model's own forward in floats, nothing may be left that can be quantized.
            layers = [each for each in layers if each.module]
            continue
        if actual < lowest:
            best, lowest = chosen, actual
        if actual <= error * _GOAL:
            return _fewest(measurement, chosen, actual, error * _GOAL, requantize)
        goal = min(goal, reached) * max(_GOAL, error * _GOAL / actual) * _MARGIN
    return best, lowest


def _fewest(
    measurement: SensitivityMeasurement,
    chosen: list[str],
    reached: float,
    limit: float,
    requantize: Requantize,
) -> tuple[list[str], float]:
    """The first of the chosen modules that are enough without a margin."""
    for end in range(1, len(chosen)):
        if measurement.error(chosen[:end]) <= limit:
            actual = measurement.quantized_error(chosen[:end], requantize)
            if actual <= limit:
                return chosen[:end], actual
    return chosen, reached


def _chosen(
    measurement: SensitivityMeasurement,
    layers: Sequence[LayerSensitivity],
    error: float,
    goal: float,
) -> tuple[list[str], float]:
    """The modules that reach the goal together, greedily; and the error with them."""
    total = len(measurement.model.paths)
    most = max(1, _MOST_IN_ONE * total)
    small = [each for each in layers if each.operators <= most]
    chosen: list[str] = []
    reached = error
    while reached > goal and len(chosen) < _MOST_OVERRIDES:
        # A model of which nothing would be quantized is refused.
        quantized = total - sum(measurement.operators[name] for name in chosen)
        left = [
            each
            for each in small
            if each.operators < quantized and not _overlaps(each.module, chosen)
        ]
        if not left or quantized < (1 - _MOST_IN_ALL) * total:
            break
        chosen = [*chosen, _best(left)]
        reached = measurement.error(chosen)
    return _without_idle(measurement, chosen, goal, reached)


def _best(left: Sequence[LayerSensitivity]) -> str:
    """The module that costs most alone, or one inside it that costs nearly as much.

    What all but one cost says less: with few inputs, errors cancel each other by chance.
    """
    most = max(left, key=lambda each: each.alone)
    near = [
        each
        for each in left
        if most.module in modules_around(each.module) and each.alone**2 >= _NEARLY * most.alone**2
    ]
    return min(near, key=lambda each: each.operators).module


def _overlaps(module: str, chosen: Iterable[str]) -> bool:
    return any(
        module in modules_around(other) or other in modules_around(module) for other in chosen
    )


def _without_idle(
    measurement: SensitivityMeasurement, chosen: list[str], goal: float, reached: float
) -> tuple[list[str], float]:
    """Drops modules without which the goal is reached too."""
    for name in list(chosen):
        rest = [other for other in chosen if other != name]
        after = measurement.error(rest) if rest else reached
        if rest and reached <= goal and after <= goal:
            chosen, reached = rest, after
    return chosen, reached
