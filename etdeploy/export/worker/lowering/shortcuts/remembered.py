"""What an operator gives of fake tensors, remembered from one step of the lowering to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import executorch.exir.pass_base as pass_base
import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.verification.arg_validator import EdgeOpArgValidator
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Interpreter
from torch.utils import _pytree as pytree

_VALUES = (int, float, bool, str, torch.dtype, torch.layout, torch.device, torch.memory_format)
_FAKE = torch._C._TorchDispatchModeKey.FAKE
# The shapes of what they give depend on more than what is asked of fake tensors, or each call gives
# another one.
_UNSURE = (
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
    torch.Tag.nondeterministic_seeded,
)


@contextmanager
def results_remembered() -> Iterator[None]:
    """While the block runs, passes and checks compute once what an operator gives of a tensor.

    A pass that changes a few operators runs the whole graph again, with the tensors of its
    inputs; what did not change gives what it gave in the pass before.
    """
    remembered, alike = _Remembered(), _RememberedByLook()
    base = pass_base._ExportPassBase
    step, call = base._fx, Interpreter.call_function

    def through(self: Any, *args: Any) -> Any:
        # Each graph gets a new interpreter, which runs the operators alone.
        if not isinstance(self.interpreter, _Runs):
            self.interpreter = _Runs(self.interpreter, remembered)
        return step(self, *args)

    def checked(self: EdgeOpArgValidator, *args: Any) -> Any:
        Interpreter.call_function = lambda own, *given: alike.call(partial(call, own), *given)
        try:
            return Interpreter.run(self, *args)
        finally:
            Interpreter.call_function = call

    base._fx, EdgeOpArgValidator.run = through, checked
    try:
        yield
    finally:
        base._fx = step
        del EdgeOpArgValidator.run


class _Runs:
    """Stands in for the interpreter with which a pass runs operators."""

    def __init__(self, interpreter: Any, remembered: _Remembered) -> None:
        self._interpreter, self._remembered = interpreter, remembered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._interpreter, name)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._remembered.call(self._interpreter.call_function, target, args, kwargs)


class _UnknownError(Exception):
    """An argument may differ in more than what is looked at here."""


class _Remembered:
    """Results by what they were computed of: the operator, the tensors themselves, the values."""

    def __init__(self) -> None:
        self._results: dict[Any, Any] = {}
        self._sure: dict[Any, bool] = {}
        # What is known by its id has to stay, or something else gets that id.
        self._kept: dict[int, Any] = {}

    def call(self, run: Callable[..., Any], target: Any, args: Any, kwargs: Any) -> Any:
        """The operator's result."""
        if not self._is_sure(target):
            return run(target, args, kwargs)
        try:
            # Without tensors among its arguments, the mode decides of what kind the result is.
            mode = torch._C._get_dispatch_mode(_FAKE)
            key = (_operator(target), self._key(mode), self._key(args), self._key(kwargs))
        except _UnknownError:
            return run(target, args, kwargs)
        if key in self._results:
            return self._results[key]
        result = run(target, args, kwargs)
        if all(_has_no_content(each) for each in pytree.tree_leaves(result)):
            self._results[key] = result
        return result

    def _is_sure(self, target: Any) -> bool:
        known = self._sure.get(target)
        if known is None:
            known = self._sure[target] = _is_function_of_shapes(target)
        return known

    def _key(self, value: Any) -> Any:
        if value is None or type(value) in _VALUES:
            return type(value), value  # 1, 1.0 and True are equal
        if isinstance(value, list | tuple):
            return tuple([self._key(each) for each in value])
        if isinstance(value, dict):
            return tuple([(name, self._key(each)) for name, each in value.items()])
        if isinstance(value, torch.SymInt):
            return "symbolic", value.node.expr, self._identity(value.node.shape_env)
        known = isinstance(value, FakeTensorMode | torch.nn.Module) or _has_no_content(value)
        if not known:
            raise _UnknownError
        return self._identity(value)

    def _identity(self, value: Any) -> int:
        self._kept[id(value)] = value
        return id(value)


class _RememberedByLook(_Remembered):
    """Results by what the tensors look like, for who looks at the results and keeps none of them.

    A model's layers are alike, so that a check of the graph computes one of them. In a graph that
    is made, each operator gives a tensor of its own.
    """

    def _key(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not _has_no_content(value):
            return super()._key(value)
        memory = (tuple(value.shape), value.stride(), value.storage_offset())
        kind = (value.dtype, value.device, value.layout, value.requires_grad)
        views = (value.is_conj(), value.is_neg())
        return *kind, *views, self._key(memory), self._identity(value.fake_mode)


def _has_no_content(value: Any) -> bool:
    """Whether a result is a shape only; of constants, steps compute with the values."""
    if isinstance(value, torch.Tensor):
        return type(value) is FakeTensor and value.constant is None
    return isinstance(value, torch.SymInt | int)


def _operator(target: Any) -> Any:
    """ATen's, where ExecuTorch's dialect has another name for it."""
    return target._op if isinstance(target, EdgeOpOverload) else target


def _is_function_of_shapes(target: Any) -> bool:
    operator = _operator(target)
    if operator is executorch_call_delegate:
        return True
    if not isinstance(operator, torch._ops.OpOverload) or operator._schema.is_mutable:
        return False
    return not any(tag in operator.tags for tag in _UNSURE)
