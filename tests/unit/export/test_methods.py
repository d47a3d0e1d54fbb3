"""A method that the program has not is refused as a mistake in the recipe."""

from __future__ import annotations

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.export.methods import EXPORTED_METHODS, require_method


def test_a_method_that_is_there_passes() -> None:
    require_method("forward", EXPORTED_METHODS, "recipe.yaml")


def test_a_missing_one_is_told_with_those_that_are_there() -> None:
    with pytest.raises(UsageError) as caught:
        require_method("predict", ("forward", "encode"), "recipe.yaml")
    assert str(caught.value) == (
        "recipe.yaml: the program has no method 'predict'; it has forward, encode\n"
        "  what to do: --set benchmark.method=forward"
    )
    assert caught.value.exit_code == 2


def test_a_program_without_methods_has_no_remedy() -> None:
    with pytest.raises(UsageError) as caught:
        require_method("forward", (), "net.pte")
    assert (caught.value.message, caught.value.remedy) == (
        "the program has no method 'forward'; it has none",
        None,
    )
