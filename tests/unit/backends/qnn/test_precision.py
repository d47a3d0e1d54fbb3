"""What is said of floats, which the HTP computes in 16 bits or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from etdeploy.backends.options import OptionValue
from etdeploy.backends.qnn.backend import QNN
from etdeploy.backends.qnn.facts import QUALCOMM_SOCS
from etdeploy.backends.qnn.precision import option_blocker, precision_notes
from etdeploy.backends.values import (
    CompiledFor,
    Destination,
    ExportRequest,
    LanguageModelSizes,
    Partitions,
    Workstation,
)
from etdeploy.targets.platforms import find_target
from tests.support.facts import lacks

_IN_16_BITS = "The HTP has no 32-bit floats"
_PERHAPS_NONE = "may not compute floats at all"
_NO_FLOATS = "QNN compiles no floats for"
WITHOUT = ("QCM6490", "SSG2115P", "SSG2125P", "SXR1230P", "SAR2230P", "SW6100")


@pytest.mark.parametrize("soc", [None, *QUALCOMM_SOCS])
@pytest.mark.parametrize("scheme", [None, "none", "fp16", "int8_static", "16a4w"])
def test_notes(soc: str | None, scheme: str | None) -> None:
    text = "\n".join(precision_notes(scheme, soc))
    assert (_IN_16_BITS in text) == (scheme == "none")
    assert (_PERHAPS_NONE in text) == (soc == "SM8350" and scheme in ("none", "fp16"))


@pytest.mark.parametrize("soc", [None, "auto", "X1", *QUALCOMM_SOCS])
def test_a_soc_without_blocks_is_refused_before_an_export(soc: str | None, tmp_path: Path) -> None:
    request = ExportRequest("16a4w_block", soc)
    first = next(iter(QNN.export_blockers(request, Workstation({}, tmp_path))))
    without = soc in ("SM8350", "SA8295", "QCM6490")
    assert ("has no weights in blocks" in first.why) == without
    assert not without or "quantization=16a4w" in first.remedy


@pytest.mark.parametrize("soc", [None, "auto", "X1", *QUALCOMM_SOCS])
@pytest.mark.parametrize("scheme", ["none", "fp16", "int8_static", "16a4w"])
def test_a_soc_without_floats_is_refused_before_an_export(
    soc: str | None, scheme: str, tmp_path: Path
) -> None:
    first = next(iter(QNN.export_blockers(ExportRequest(scheme, soc), Workstation({}, tmp_path))))
    assert (_NO_FLOATS in first.why) == (soc in WITHOUT and scheme in ("none", "fp16"))
    assert _NO_FLOATS not in first.why or "quantization=int8_static" in first.remedy


@pytest.mark.parametrize(
    ("soc", "precision", "finished", "told"),
    [
        ("SM8350", "precision=fp16", True, True),
        ("SM8350", "precision=fp16", False, False),  # the plan says so
        ("SM8350", "precision=quantized", True, False),
        ("SM8650", "precision=fp16", True, False),
    ],
)
def test_a_finished_program_with_floats(
    soc: str, precision: str, finished: bool, told: bool, tmp_path: Path
) -> None:
    compiled = CompiledFor(soc_id=QUALCOMM_SOCS[soc].qnn_id, soc=soc, settings=(precision,))
    host = Destination(find_target("linux-x86_64"), "host", reports=True, is_here=True)
    station = Workstation({}, tmp_path)
    notes = list(QNN.bundle_notes(station, host, Partitions((compiled,), finished=finished)))
    wanted = "the program computes floats, and the HTP of SM8350 (V68) may not be able to"
    assert [note.startswith(wanted) for note in notes] == [True] * told


@pytest.mark.parametrize(
    ("soc", "options", "why"),
    [
        ("SM8650", {"vtcm_mib": 9}, "vtcm_mib is 9, and SM8650 has 8 MiB of VTCM"),
        ("SM8650", {"vtcm_mib": -1}, "vtcm_mib is -1, and SM8650 has 8 MiB of VTCM"),
        ("QCM6490", {"vtcm_mib": 4}, "vtcm_mib is 4, and QCM6490 has 2 MiB of VTCM"),
        ("SM8350", {"weight_sharing": True}, "the HTP of SM8350 (V68) shares no weights"),
        ("SM8650", {"vtcm_mib": 8, "weight_sharing": True}, None),
        ("QCM6490", {"vtcm_mib": 2}, None),
        (None, {"vtcm_mib": 99}, None),
    ],
)
def test_options_that_the_soc_does_not_allow_are_refused(
    soc: str | None, options: dict[str, OptionValue], why: str | None
) -> None:
    blocker = option_blocker(options, soc)
    assert (blocker is None) == (why is None)
    assert blocker is None or str(why) in blocker.why


_BILLION = 1_000_000_000


def _sizes(
    parameters: int, cached: int = 0, methods: int = 2, context: int = 1024
) -> LanguageModelSizes:
    return LanguageModelSizes(parameters, parameters // 10, 32, cached, context, 128, methods)


# The limits: 2^31 bytes of weights in a method, and 3.7 GB of weights, keys and values in all.
@pytest.mark.parametrize(
    ("scheme", "options", "sizes", "what", "remedies"),
    [
        ("fp16", {}, _sizes(_BILLION // 2), None, ()),
        ("fp16", {}, _sizes(_BILLION + _BILLION // 10), "2 GB", ("quantization=16a4w",)),
        ("16a8w", {}, _sizes(2 * _BILLION), "2 GB", ("quantization=16a4w", "smaller model")),
        ("16a4w_block", {}, _sizes(4 * _BILLION), "2 GB", ("smaller model",)),
        (
            "16a8w", {}, _sizes(_BILLION * 18 // 10), "4 GB",
            ("weight_sharing=true", "generation.methods=kv", "quantization=16a4w"),
        ),
        ("16a8w", {"weight_sharing": True}, _sizes(_BILLION * 18 // 10), None, ()),
        ("16a8w", {}, _sizes(_BILLION * 18 // 10, methods=1), None, ()),
        ("16a4w", {}, _sizes(_BILLION, 2 * _BILLION), None, ()),
        ("16a4w", {}, _sizes(_BILLION, 3 * _BILLION), "4 GB", ("generation.context",)),
        ("fp16", {}, _sizes(_BILLION // 10, _BILLION), "4 GB", ("generation.context",)),
    ],
)  # fmt: skip
def test_a_model_that_is_too_large_for_the_htp_is_refused(
    scheme: str,
    options: dict[str, OptionValue],
    sizes: LanguageModelSizes,
    what: str | None,
    remedies: tuple[str, ...],
) -> None:
    blocker = QNN.language_blocker(ExportRequest(scheme, "SM8750", options), sizes)
    assert (blocker.what.startswith(what) if blocker and what else blocker) == (what and True)
    assert blocker is None or not lacks(blocker.remedy, *remedies)
    assert blocker is None or "GB" in blocker.why


@pytest.mark.parametrize(
    ("request_", "sizes", "remedies"),
    [
        # 4-bit weights are too many, too; or too many for two methods.
        (ExportRequest("fp16", "SM8750"), _sizes(8 * _BILLION), ()),
        (
            ExportRequest("16a8w", "SM8750"), _sizes(3 * _BILLION),
            ("weight_sharing=true --set export.quantization=16a4w",
             "generation.methods=kv --set export.quantization=16a4w"),
        ),
        # An HTP that shares no weights.
        (
            ExportRequest("16a8w", "SM8350"), _sizes(_BILLION * 18 // 10),
            ("generation.methods=kv", "export.quantization=16a4w"),
        ),
        # 2.0 GB of weights, with each of two methods: no context is short enough.
        (
            ExportRequest("16a4w", "SM8750"), _sizes(3 * _BILLION, _BILLION),
            ("options.weight_sharing=true", "generation.methods=kv"),
        ),
        (
            ExportRequest("16a4w", "SM8750", {"weight_sharing": True}),
            _sizes(_BILLION, 6 * _BILLION, context=8192),
            ("generation.context=4096",),
        ),
    ],
)  # fmt: skip
def test_each_remedy_lets_the_model_fit(
    request_: ExportRequest, sizes: LanguageModelSizes, remedies: tuple[str, ...]
) -> None:
    blocker = QNN.language_blocker(request_, sizes)
    assert blocker is not None
    *lines, last = blocker.remedy.splitlines()
    assert last == "Name a smaller model."
    assert len(lines) == len(remedies)
    assert all(map(str.endswith, lines, remedies)), lines
    for line in lines:
        followed, smaller = _followed(line, request_, sizes)
        assert QNN.language_blocker(followed, smaller) is None


def _followed(
    line: str, request: ExportRequest, sizes: LanguageModelSizes
) -> tuple[ExportRequest, LanguageModelSizes]:
    for setting in line.split("--set ")[1:]:
        name, _, value = setting.strip().removeprefix("export.").partition("=")
        if name == "options.weight_sharing":
            request = replace(request, options={"weight_sharing": True})
        elif name == "quantization":
            request = replace(request, quantization=value)
        elif name == "generation.methods":
            sizes = replace(sizes, methods=1)
        else:
            assert name == "generation.context"
            cached = sizes.cached_values // sizes.context * int(value)
            sizes = replace(sizes, context=int(value), cached_values=cached)
    return request, sizes


def test_the_notes_say_what_a_program_and_its_export_take() -> None:
    request = ExportRequest("16a8w", "SM8750", {"mha2sha": "auto"})
    # As measured: 37 MB for each of two methods, of which a tenth more would be scales and graphs.
    sizes = LanguageModelSizes(28_000_000, 8_400_000, 16, 1_000_000, 1024, 128, 2)
    program, export = QNN.language_notes(request, sizes)
    assert not lacks(program, "28 million weights", "72.8 MB", "each of its methods", "1.0 MB")
    assert not lacks(export, "1.5 GB of memory", "80 GB for a model of a billion")
    on_top = "calibration and quantization come on top"
    assert on_top in export
    assert on_top not in list(QNN.language_notes(replace(request, quantization="fp16"), sizes))[1]
    shared = replace(request, options={"weight_sharing": True})
    assert "36.4 MB of the program as 16a8w;" in next(QNN.language_notes(shared, sizes))
    together = replace(request, options={"mha2sha": "never"})
    long = replace(sizes, context=8192)
    *_, scores = QNN.language_notes(together, long)
    assert not lacks(scores, "all heads take 34.1 MB", "SM8750 has 8.4 MB", "prefill_tokens")
    assert not lacks(scores, "--set export.generation.prefill_tokens=16", "mha2sha=auto")
    *_, fewer = QNN.language_notes(together, replace(long, prefill_tokens=16))
    assert "scores" not in fewer
    assert not any("scores" in note for note in QNN.language_notes(request, long))


# A tenth of the weights are values; embeddings have 16 bits, output layer and values 8, others 4.
@pytest.mark.parametrize(
    ("scheme", "overrides", "megabytes"),
    [
        ("16a8w", (), "3.9 MB"),
        ("16a4w", (), "3.5 MB"),
        ("16a4w_block", (), "3.5 MB"),
        ("8a4w", (), "2.5 MB"),
        ("16a4w", (("model.layers.0", "16a8w"),), "3.9 MB"),
        ("16a4w", (("lm_head", "16a4w"), ("*.v_proj", "16a4w")), "3.0 MB"),
        ("fp16", (), "5.8 MB"),
    ],
)
def test_weights_are_counted_with_the_bits_that_their_layer_gets(
    scheme: str, overrides: tuple[tuple[str, str], ...], megabytes: str
) -> None:
    layers = {
        "lm_head": 1_000_000,
        "model.layers.0.self_attn.v_proj": 100_000,
        "model.layers.0.mlp.up_proj": 800_000,
    }
    sizes = LanguageModelSizes(2_900_000, 1_000_000, 8, 0, 1024, 128, 1, layers)
    request = ExportRequest(scheme, "SM8750", overrides=overrides)
    assert f"about {megabytes} of the program as {scheme};" in next(
        QNN.language_notes(request, sizes)
    )


def test_the_output_layer_is_as_large_as_embeddings_where_headers_do_not_name_it() -> None:
    sizes = LanguageModelSizes(3_000_000, 1_000_000, 8, 0, 1024, 128, 1)
    request = ExportRequest("16a4w", "SM8750")
    assert "about 3.5 MB of the program" in next(QNN.language_notes(request, sizes))
