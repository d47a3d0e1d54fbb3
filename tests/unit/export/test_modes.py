"""When torch.export's other mode is tried, and what is told of it."""

from __future__ import annotations

import pytest

from etdeploy.export.protocol import ExportFailure
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.tracing.modes import cured_by_other_mode, in_either_mode
from tests.support.facts import lacks

# As torch 2.13 words them.
_ALIASED = "expected compiled_fn to be GraphModule, got <class 'function'>"
_NUMPY = ".numpy() is not supported for tensor subclasses."
_SKIPPED = """Attempted to call function marked as skipped
  Explanation: Dynamo does not know how to trace the builtin `time.time.`
"""
_BRANCHES = """Data-dependent branching
  Explanation: Detected data-dependent branching (e.g. `if my_tensor.sum() > 0:`).
"""


class TorchDynamoException(RuntimeError):  # noqa: N818 - its name
    """Stands for torch's own, which unit tests do not import."""


class Unsupported(TorchDynamoException):
    pass


class UserError(Unsupported):
    pass


@pytest.mark.parametrize(
    ("error", "strict", "cured"),
    [
        (AssertionError(_ALIASED), False, True),
        (RuntimeError(_NUMPY), False, True),
        (AssertionError(_ALIASED), True, False),
        (RuntimeError(_NUMPY), True, False),
        (Unsupported(_SKIPPED), True, True),
        (Unsupported(_SKIPPED), False, False),
        (Unsupported(_BRANCHES), True, False),
        (RuntimeError("_checkpoint_context_fn"), True, True),
        (UserError("32 not in range [2, 16]"), True, False),
        (ValueError("no such thing"), True, False),
        (RuntimeError("Could not guard on data-dependent expression u0 > 0"), False, False),
    ],
)
def test_only_what_the_other_mode_cures_is_tried_again(
    error: Exception, strict: bool, cured: bool
) -> None:
    assert (cured_by_other_mode(_described(error), strict=strict) is not None) is cured


def _described(error: Exception) -> WorkerError:
    failure = WorkerError(ExportFailure(kind="lowering", message="it failed"))
    failure.__cause__ = error
    return failure


class _Work:
    """An export that fails in the modes that it is told to fail in."""

    def __init__(self, failing: dict[bool, Exception]) -> None:
        self.failing = failing
        self.tried: list[bool] = []
        self.told: list[str] = []

    def __call__(self, spec: ExportSpec) -> str:
        self.tried.append(spec.strict)
        if error := self.failing.get(spec.strict):
            raise WorkerError(ExportFailure(kind="trace", message=str(error))) from error
        return f"made with {spec.strict}"

    def run(self, *, strict: bool = False) -> tuple[str, str | None]:
        return in_either_mode(ExportSpec(strict=strict), self, self.told.append)


def test_an_export_that_works_is_done_once() -> None:
    work = _Work({})
    assert work.run() == ("made with False", None)
    assert (work.tried, work.told) == ([False], [])


def test_a_failure_that_nothing_cures_is_told_as_it_is() -> None:
    work = _Work({False: ValueError("no such thing")})
    with pytest.raises(WorkerError, match=r"^no such thing$"):
        work.run()
    assert work.tried == [False]


def test_the_second_attempt_names_the_line_for_the_recipe() -> None:
    work = _Work({False: AssertionError(_ALIASED)})
    made, note = work.run()
    assert (made, work.tried) == ("made with True", [False, True])
    [progress] = work.told
    assert not lacks(progress, "export.strict=true: ", "a static cache")
    assert not lacks(
        note, "export.strict=true: ", "a static cache", "export.strict=false", "strict: true"
    )


def test_a_recipe_that_asks_for_strict_mode_is_tried_without() -> None:
    work = _Work({True: Unsupported(_SKIPPED)})
    made, note = work.run(strict=True)
    assert (made, work.tried) == ("made with False", [True, False])
    assert note is not None
    assert not lacks(note, f"({_SKIPPED.splitlines()[0]})", "strict: false")


def test_when_both_fail_the_second_says_what_the_model_lacks() -> None:
    mutated = RuntimeError("Constant cache is mutated in the forward method")
    work = _Work({False: AssertionError(_ALIASED), True: mutated})
    with pytest.raises(WorkerError) as caught:
        work.run()
    message = caught.value.failure.message
    assert message.startswith(f"{mutated} (")
    assert not lacks(message, "export.strict=true;", f"export.strict=false: {_ALIASED}")
