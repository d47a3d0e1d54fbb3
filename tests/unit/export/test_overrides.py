"""Which operators of a model have a scheme of their own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.lowering.overrides import (
    check_overrides,
    check_patterns,
    first_match,
    override_notes,
    scheme_of,
)
from tests.support.facts import lacks


def node(path: str | None) -> Any:
    """A call in that module, as torch.export notes it; None for a call without a note."""
    names = [] if path is None else [name for name in path.split(".") if name]
    paths = ["", *(".".join(names[: end + 1]) for end in range(len(names)))]
    stack = {f"L__self__{each}": (each, "torch.nn.Module") for each in paths}
    return SimpleNamespace(
        op="call_function", meta={} if path is None else {"nn_module_stack": stack}
    )


def program(*paths: str | None) -> Any:
    inputs = [SimpleNamespace(op="placeholder", meta={})]
    return SimpleNamespace(graph=SimpleNamespace(nodes=[*inputs, *map(node, paths)]))


def spec(*overrides: tuple[str, str]) -> ExportSpec:
    return ExportSpec(quantization="int8_static", overrides=overrides)


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("head", "head", True),
        ("head", "header", False),
        ("head", "body.head", False),
        ("*.head", "body.head", True),
        ("*head", "head", True),
        ("layers", "layers.0.fc", True),
        ("layers.0", "layers.0.fc", True),
        ("layers.0.*", "layers.0.fc", True),
        ("layers.0.*", "layers.0", False),
        ("layers.[12].*", "layers.1.fc", True),
        ("layers.[12].*", "layers.3.fc", False),
        ("layers.*.fc", "layers.1.block.fc", True),
        ("Layers", "layers", False),
        ("*", "head", True),
        ("*", "", False),
        ("*", None, False),
        ("", "", True),
        ("", "head", False),
    ],
)
def test_patterns(pattern: str, path: str | None, matches: bool) -> None:
    assert scheme_of(spec((pattern, "16a8w")), node(path)) == ("16a8w" if matches else None)


def test_the_first_pattern_counts() -> None:
    both = spec(("layers.0", "16a8w"), ("layers", "8a4w"))
    assert scheme_of(both, node("layers.0.fc")) == "16a8w"
    assert scheme_of(both, node("layers.1.fc")) == "8a4w"
    assert scheme_of(both, node("head")) is None


def test_a_module_may_have_a_path_in_each_method() -> None:
    both = spec(("decode.head", "8da8w"), ("body", "none"))
    assert first_match(both, ["head", "decode.head"]) == ("decode.head", "8da8w")
    assert first_match(both, ["body.0", "decode.0"]) == ("body", "none")
    assert first_match(both, ["head"]) is None


def test_a_pattern_may_be_for_modules_that_its_scheme_is_for() -> None:
    def paths(scheme: str) -> list[str]:
        return ["lm_head", "embed"] if scheme == "none" else ["lm_head"]

    check_patterns(spec(("embed", "none"), ("lm_head", "8da8w")), paths, "no layer")
    with pytest.raises(WorkerError) as caught:
        check_patterns(spec(("embed", "8da8w")), paths, "no layer")
    failure = caught.value.failure
    assert not lacks(failure.message, "export.overrides", "no layer", "'embed'")
    assert str(failure.remedy).endswith(": lm_head.")


def test_a_pattern_is_for_any_of_the_methods() -> None:
    check_overrides(
        spec(("head", "16a8w"), ("cache", "8a4w")),
        {"prefill": program("head"), "decode": program("cache.keys")},
    )


@pytest.mark.parametrize(
    ("pattern", "paths", "remedy"),
    [
        ("haed", ("body", "head", "layers.0"), ": head and others."),
        ("x", ("head", "body"), ": body, head."),
        ("x", ("", None), ": leave out export.overrides."),
    ],
)
def test_a_pattern_of_nothing_is_refused(
    pattern: str, paths: tuple[str | None, ...], remedy: str
) -> None:
    wrong = ExportSpec(
        quantization="int8_static",
        overrides=((pattern, "16a8w"),),
        places={f"export.overrides.{pattern}": "r.yaml:6:5"},
    )
    with pytest.raises(WorkerError) as caught:
        check_overrides(wrong, {"forward": program(*paths)})
    failure = caught.value.failure
    assert not lacks(failure.message, "export.overrides", f"'{pattern}'")
    assert failure.file == "r.yaml:6:5"
    assert str(failure.remedy).endswith(remedy)


def test_the_note_counts_operators_where_a_pattern_is_the_first() -> None:
    mixed = spec(("layers.0", "16a8w"), ("layers", "8a4w"), ("layers.1", "16a4w"))
    (note,) = override_notes(mixed, program("layers.0.fc", "layers.0", "layers.1", "head", ""))
    assert note.split("except: ")[1].rstrip(".").split(", ") == [
        "layers.0 with 16a8w (2 operators)",
        "layers with 8a4w (1 operator)",
        "layers.1 with 16a4w (0 operators)",
    ]
    assert "with int8_static," in note
    assert list(override_notes(spec(), program("head"))) == []
